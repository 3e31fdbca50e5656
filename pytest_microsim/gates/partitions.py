"""The ways in which copies are spread over seeds, when they are spread by a rule.

``seed % m`` (a world that uses the low part of the seed), ``seed // b`` (one that drops it) and the worker (a state
that lives as long as the process). Each is a partition of the seeds, fixed before any value is seen.

The parts of one partition are cut to one size b, which leaves the exact distribution in :mod:`.purity` with a single
size: a part keeps its first b seeds, smaller parts are left out. b is chosen by the sizes alone, so as to keep the
most equalities that a pure partition would show, ``(b - 1)`` for each part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import lru_cache

MOST_SEEDS = 512
"""Larger groups are judged by so many of their seeds, the lowest; it keeps the exact arithmetic short."""


@dataclass(frozen=True)
class Partition:
    """Disjoint parts of a group's seeds, all of one size.

    Attributes:
        rule: What the seeds of a part have in common, such as ``"seed % 8"``.
        parts: Positions of each part's seeds, in order.
        size: How many those are, 2 or more.
        masks: For each part its first position, and the set of its positions as the bits of a whole number.
    """

    rule: str
    parts: tuple[tuple[int, ...], ...]
    size: int
    masks: tuple[tuple[int, int], ...]


@lru_cache(maxsize=16)
def candidates(seeds: tuple[int, ...], workers: tuple[str, ...]) -> tuple[Partition, ...]:
    """Return all partitions to be looked at: moduli and block lengths from 2 to N/2, and the workers.

    Those that are no partition of these seeds (no two seeds in one part, or all of them) are left out.

    Args:
        seeds: In ascending order.
        workers: Who ran each of them.
    """
    found = []
    for number in range(2, len(seeds) // 2 + 1):
        found.append(_partition(f"seed % {number}", (seed % number for seed in seeds)))
        found.append(_partition(f"seed // {number}", (seed // number for seed in seeds)))
    found.append(_partition("worker", workers))
    return tuple(partition for partition in found if partition is not None)


def _partition(rule: str, labels: Iterable[Hashable]) -> Partition | None:
    by_label: defaultdict[Hashable, list[int]] = defaultdict(list)
    for position, label in enumerate(labels):
        by_label[label].append(position)
    if len(by_label) == 1:
        return None
    sizes = {len(part) for part in by_label.values()} - {1}
    if not sizes:
        return None
    size = max(sizes, key=lambda b: ((b - 1) * sum(len(part) >= b for part in by_label.values()), b))
    parts = tuple(tuple(part[:size]) for part in by_label.values() if len(part) >= size)
    masks = tuple((part[0], sum(1 << position for position in part)) for part in parts)
    return Partition(rule, parts, size, masks)
