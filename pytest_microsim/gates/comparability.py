"""Whether two results can be compared: they can if whatever changes a trajectory beside the seed was the same.

An environment is a plain dict of knobs and what each was set to. Nested dicts (versions by package, say) are compared
key by key; a knob that only one of them has makes them incomparable, since nobody knows what it was in the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_WHY = {
    "threads": "sums are split among threads, and added in another order",
    "hash_seed": "sets and dicts of text are walked in another order",
    "wall_clock": "a world that reads the time sees another",
    "timezone": "local times differ",
    "locale": "numbers and names are read, written and sorted in another way",
    "cpu": "numerical libraries choose their code by the processor's features, so the last bits may differ",
    "schedule": "threads take turns in another order",
    "snapshot": "another warm-up has left threads elsewhere, and the same schedule is another order of them",
    "engine": "engines show their guests other processors, clocks and kernels",
    "digest": "the image holds other code",
    "versions": "another version may compute another number",
}
"""What a knob does to a trajectory, by the first part of its name."""

_ABSENT = object()


@dataclass(frozen=True)
class Comparability:
    """Whether two results are comparable.

    Attributes:
        differences: One sentence for each knob that differs, in order of their names; empty if they are comparable.
        knobs: The names of those knobs.
    """

    differences: tuple[str, ...]
    knobs: tuple[str, ...]

    @property
    def comparable(self) -> bool:
        """True if no knob differs."""
        return not self.knobs

    def __str__(self) -> str:
        if self.comparable:
            return "comparable"
        return "not comparable:\n" + "\n".join(f"  {line}" for line in self.differences)


def compare(
    first: Mapping[str, object], second: Mapping[str, object], *, called: tuple[str, str] = ("in one", "in the other")
) -> Comparability:
    """Compare the environments of two results.

    Args:
        first: Knobs by name; values are simple types, or dicts of them. None says that a knob was not pinned.
        second: Those of the other.
        called: What the two are called in sentences, as in "digest is 'a' in one and 'b' in the other".
    """
    ours, theirs = dict(_flat(first)), dict(_flat(second))
    knobs, lines = [], []
    for name in sorted(ours.keys() | theirs.keys()):
        one, other = ours.get(name, _ABSENT), theirs.get(name, _ABSENT)
        if type(one) is type(other) and one == other:
            continue
        knobs.append(name)
        why = next((_WHY[part] for part in (name.partition(".")[0],) if part in _WHY), "")
        lines.append(f"{name} is {_said(one)} {called[0]} and {_said(other)} {called[1]}" + (f": {why}" if why else ""))
    return Comparability(tuple(lines), tuple(knobs))


def unpinned(environment: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the knobs that were left to chance."""
    return tuple(sorted(name for name, value in _flat(environment) if value is None))


def _flat(knobs: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in knobs.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", list(value) if isinstance(value, tuple) else value


def _said(value: object) -> str:
    return "not recorded" if value is _ABSENT else "not pinned" if value is None else repr(value)
