"""Which tests are in which part of a suite."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MOST_SHARDS = 1000
SEPARATOR = ", "


@dataclass(frozen=True)
class Shard:
    """The ``number``-th of ``total`` parts, from 1."""

    number: int
    total: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``2/4``.

        Raises:
            argparse.ArgumentTypeError: It is none.
        """
        number, slash, total = text.partition("/")
        if slash and all(part.isascii() and part.isdigit() and len(part) < 9 for part in (number, total)):
            shard = cls(int(number), int(total))
            if 1 <= shard.number <= shard.total <= MOST_SHARDS:
                return shard
        raise argparse.ArgumentTypeError(
            f"{text!r} is no part of a suite; write 1/4 for the first of four (at most {MOST_SHARDS})"
        )

    def of(self, units: Mapping[str, int]) -> set[str]:
        """Return the units of this part; the parts together have each unit once.

        They are spread by their sizes, the largest first, each to the part that has least.

        Args:
            units: The size of each, by a name that is the same in all jobs.
        """
        parts: list[set[str]] = [set() for _ in range(self.total)]
        loads = [0] * self.total
        for key, size in sorted(units.items(), key=lambda unit: (-unit[1], _digest(unit[0]))):
            least = loads.index(min(loads))
            parts[least].add(key)
            loads[least] += size
        return parts[self.number - 1]

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"


def missing(parts: Iterable[str]) -> list[str]:
    """Return the parts that are not among these, as far as these tell of them: of ``["1/3", "3/3"]``, ``["2/3"]``."""
    there = {part for each in parts for part in each.split(SEPARATOR)}
    totals = {int(part.rpartition("/")[2]) for part in there}
    return [part for total in sorted(totals) for k in range(1, total + 1) if (part := f"{k}/{total}") not in there]


def _digest(key: str) -> str:
    # Equal sizes are the rule: by name, all tests of one file would lie side by side.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
