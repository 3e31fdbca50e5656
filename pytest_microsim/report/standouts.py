"""The seeds of a run that deserve a look: the worst and the slowest, each with the command that replays it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..results.gathering import LOST
from ..results.model import GroupResult, RolloutResult
from .table import names_of, of_seeds

MOST_OF_A_GROUP = 3
MOST = 10
_LONGEST = 120

_Found = tuple[GroupResult, RolloutResult]
_Key = Callable[[RolloutResult], tuple[float, ...]]


def standouts(groups: Sequence[GroupResult]) -> Iterator[str]:
    """Yield lines: the worst seeds first, then the slowest; at most three of a group, and ten of each kind.

    Args:
        groups: Of the run; those of one seed have nothing to stand out from, and of those that are run under several
            schedules the race finder says which one counts.
    """
    many = [group for group in groups if of_seeds(group) and len(group.rollouts) > 1 and not group.schedules]
    names, said = names_of(many), set[str]()
    yield from _listed("worst seeds:", _chosen(many, _badness, _bad), _why, names, said)
    yield from _listed("slowest seeds:", _chosen(many, _slowness, _ran), _how_long, names, said)


def total_reward(rollout: RolloutResult) -> float | None:
    """Return the sum of a rollout's rewards; None where it has none."""
    rewards = [episode.total_reward for episode in rollout.episodes if episode.total_reward is not None]
    return math.fsum(rewards) if rewards else None


def _chosen(
    groups: Sequence[GroupResult], key: _Key, eligible: Callable[[GroupResult], list[RolloutResult]]
) -> list[_Found]:
    found = [(group, rollout) for group in groups for rollout in sorted(eligible(group), key=key)[:MOST_OF_A_GROUP]]
    return sorted(found, key=lambda each: key(each[1]))[:MOST]


def _badness(rollout: RolloutResult) -> tuple[float, ...]:
    reward = total_reward(rollout)
    return (rollout.outcome not in LOST, math.inf if reward is None else reward)


def _slowness(rollout: RolloutResult) -> tuple[float, ...]:
    return (-rollout.duration_s,)


def _bad(group: GroupResult) -> list[RolloutResult]:
    lost = [rollout for rollout in group.rollouts if rollout.outcome in LOST]
    passed = [rollout for rollout in group.rollouts if rollout.outcome == "passed"]
    rewards = {reward for rollout in passed if (reward := total_reward(rollout)) is not None}
    return lost + passed if len(rewards) > 1 else lost  # equal ones are none the worse


def _ran(group: GroupResult) -> list[RolloutResult]:
    return [rollout for rollout in group.rollouts if rollout.outcome != "skipped"]


def _listed(
    title: str,
    found: Sequence[_Found],
    tell: Callable[[RolloutResult], str],
    names: Mapping[str, str],
    said: set[str],
) -> Iterator[str]:
    if not found:
        return
    yield title
    for group, rollout in found:
        run = f", run {rollout.run}" if rollout.run > 1 else ""
        yield f"  {names[group.key]}, seed {rollout.seed}{run}: {tell(rollout)}"
        if rollout.replay and rollout.nodeid not in said:
            yield f"    {rollout.replay}"
        said.add(rollout.nodeid)


def _why(rollout: RolloutResult) -> str:
    parts: list[str] = [rollout.outcome]
    reward = total_reward(rollout)
    if reward is not None:
        parts.append(f"total reward {reward:.4g}")
    text = ", ".join(parts)
    reason = next((line.strip() for line in rollout.failure.splitlines() if line.strip()), "")
    reason = reason.removeprefix("Failed: ")  # what pytest calls pytest.fail
    if len(reason) > _LONGEST:
        reason = f"{reason[: _LONGEST - 3]}..."
    return f"{text}; {reason}" if reason else text


def _how_long(rollout: RolloutResult) -> str:
    parts = []
    for name in ("queue", "fork", "episode"):
        if took := math.fsum(phase.duration_s for phase in rollout.phases if phase.name == name):
            parts.append(f"{name} {took:.2f} s")
    return f"{rollout.duration_s:.2f} s" + (f" ({', '.join(parts)})" if parts else "")
