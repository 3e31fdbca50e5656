"""Trajectories of a group as numbers for a picture: 16 bits each, as many as a file bears."""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from ...results.model import Curve, GroupResult, RolloutResult, RunResult

POINTS = 3_000_000
"""Points of all curves of a file; beyond that each curve keeps every second, third, ... of its points."""
NOTHING = 0xFFFF
"""Stands for a number that is not finite."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Thinning:
    """Which share of the points is kept.

    Attributes:
        failed: Of a rollout that did not pass: every so manieth.
        passed: Of one that did.
    """

    failed: int = 1
    passed: int = 1

    @classmethod
    def of(cls, run: RunResult) -> Thinning:
        """Return what a run needs; rollouts that did not pass come first, up to half of the points."""
        counts = {True: 0, False: 0}
        for group in run.groups:
            for rollout in group.rollouts:
                counts[rollout.outcome == "passed"] += sum(len(curve.steps) for _, curve in _curves(rollout))
        failed = math.ceil(counts[False] / (POINTS / 2)) or 1
        return cls(failed, math.ceil(counts[True] / (POINTS - counts[False] / failed)) or 1)


@dataclass
class _Column:
    """All curves of one name: whose each is, how many points it has, and the points one after the other."""

    owners: list[tuple[int, int]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    steps: array[int] = field(default_factory=lambda: array("I"))
    values: list[float | None] = field(default_factory=list)

    def add(self, owner: tuple[int, int], curve: Curve, every: int) -> None:
        steps, values = _thinned(curve.steps, every), _thinned(curve.values, every)
        self.owners.append(owner)
        self.counts.append(len(steps))
        # Differences are small and alike, and so compress well.
        self.steps.extend(max(0, now - before) for before, now in zip((0, *steps), steps, strict=False))
        self.values.extend(value if value is not None and math.isfinite(value) else None for value in values)

    def range(self) -> tuple[float, float]:
        finite = [value for value in self.values if value is not None]
        return (min(finite), max(finite)) if finite else (0.0, 0.0)


def curves(group: GroupResult, thinning: Thinning) -> bytes | None:
    """Return a group's curves, or None where it has none.

    Returns:
        The length of a header (32 bits), the header as JSON, and of each column all differences of steps (32 bits)
        and then all values (16 bits, from 0 for the lowest to 65534 for the highest). All is little-endian, and each
        part is filled up to a multiple of 4 bytes.
    """
    columns: dict[str, _Column] = {}
    for at, rollout in enumerate(group.rollouts):
        every = thinning.passed if rollout.outcome == "passed" else thinning.failed
        for episode, curve in _curves(rollout):
            columns.setdefault(curve.name, _Column()).add((at, episode), curve, every)
    if not columns:
        return None
    header, parts = [], []
    for name, column in columns.items():
        low, high = column.range()
        header.append({"name": name, "low": low, "high": high, "rollout": [owner[0] for owner in column.owners],
                       "episode": [owner[1] for owner in column.owners], "points": column.counts})  # fmt: skip
        parts += [_bytes(column.steps), _bytes(_levels(column.values, low, high))]
    text = json.dumps({"columns": header, "every": thinning.passed}, separators=(",", ":")).encode("ascii")
    return b"".join((len(text).to_bytes(4, "little"), _filled(text), *parts))


def _curves(rollout: RolloutResult) -> Iterator[tuple[int, Curve]]:
    for number, episode in enumerate(rollout.episodes):
        for curve in episode.curves:
            yield number, curve


def _thinned(points: list[_T], every: int) -> list[_T]:
    return points if every == 1 or len(points) < 3 else [*points[:-1:every], points[-1]]


def _levels(values: list[float | None], low: float, high: float) -> array[int]:
    # Halved first: the distance of two large numbers may be infinite.
    scale = (high / 2 - low / 2) or 1.0
    return array("H", [NOTHING if value is None else int((value / 2 - low / 2) / scale * 65534) for value in values])


def _bytes(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return _filled(numbers.tobytes())


def _filled(data: bytes) -> bytes:
    return data + b" " * (-len(data) % 4)
