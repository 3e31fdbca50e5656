"""Whether an episode came to what a scenario expects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from microsim_vm.templates.decode import nearest

from ..errors import ScenarioError
from .spec import Bound, Expectations, Scenario

if TYPE_CHECKING:
    from ..episode import Episode

_WORDS = {"below": "below", "at_most": "at most", "above": "above", "at_least": "at least", "equals": "equal to"}


def misses(scenario: Scenario, episode: Episode) -> list[tuple[int, str]]:
    """Return what an episode missed, as lines of the file and what is to be said; nothing if it is as expected.

    Raises:
        ScenarioError: The world has no metric of an expected name.
    """
    expect = scenario.document.expect
    found: list[tuple[int, str]] = []
    for name, bound in expect.metrics.items():
        key = f"expect.metrics.{name}"
        if name not in episode.metrics:
            raise _unknown(scenario, key, name, list(episode.metrics))
        found += [(scenario.line(key), text) for text in _missed(name, float(episode.metrics[name]), bound)]
    for name, value in (("total_reward", episode.total_reward), ("steps", episode.steps)):
        bound_of = getattr(expect, name)
        if bound_of is not None:
            found += [(scenario.line(f"expect.{name}"), text) for text in _missed(name, float(value), bound_of)]
    if expect.terminated is not None and episode.terminated != expect.terminated:
        how = "terminated" if episode.terminated else f"truncated after {episode.steps} steps"
        wanted = "is" if expect.terminated else "is not"
        found.append((scenario.line("expect.terminated"), f"the episode was {how}, and {wanted} to be terminated"))
    return found


def directions(expect: Expectations) -> dict[str, str]:
    """Return which direction of a metric is the better one, where it is bounded on one side alone."""
    bounds = {**expect.metrics} | ({} if expect.total_reward is None else {"total_reward": expect.total_reward})
    found = {}
    for name, bound in bounds.items():
        above = bound.above is not None or bound.at_least is not None
        below = bound.below is not None or bound.at_most is not None
        if above != below and bound.between is None and bound.equals is None:
            found[name] = "higher" if above else "lower"
    return found


def _unknown(scenario: Scenario, key: str, name: str, known: list[str]) -> ScenarioError:
    near = nearest(name, known)
    question = f'did you mean "{near}"? ' if near else ""
    return ScenarioError(
        f"{scenario.path}:{scenario.line(key)}: the world has no metric {name!r}",
        hint=f"{question}its metrics: {', '.join(sorted(known)) or 'none'}",
    )


def _missed(name: str, got: float, bound: Bound) -> Iterator[str]:
    """Yield what a number is not; every comparison with NaN is one that it misses."""
    held = {
        "below": bound.below is None or got < bound.below,
        "at_most": bound.at_most is None or got <= bound.at_most,
        "above": bound.above is None or got > bound.above,
        "at_least": bound.at_least is None or got >= bound.at_least,
        "equals": bound.equals is None or got == bound.equals,
    }
    for key, holds in held.items():
        if not holds:
            wanted = getattr(bound, key)
            yield f"{name} is {_number(got, wanted)}, and has to be {_WORDS[key]} {wanted:g}"
    if bound.between is not None:
        low, high = bound.between
        if not low <= got <= high:
            yield f"{name} is {_number(got, low, high)}, and has to be from {low:g} to {high:g}"


def _number(got: float, *limits: float) -> str:
    """Return a number in short, and in full where it would look like the bound that it misses."""
    short = f"{got:.6g}"
    alike = short in {f"{limit:.6g}" for limit in limits}
    return repr(got) if alike and float(short) != got else short
