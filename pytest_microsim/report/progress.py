"""How far a group of seeds has come, in one line."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from .table import shortened

Clock = Callable[[], float]


class GroupProgress:
    """What is known of a group while it runs. Reports of a rerun replace those of the run before.

    Args:
        name: The group's.
        expected: How many rollouts it has: seeds, times how often each is run.
        over_seeds: It is run over seeds, so that copies matter.
        clock: Seconds, ascending.

    Attributes:
        updated: When it was last heard of, by the clock.
    """

    def __init__(self, name: str, expected: int, *, over_seeds: bool = True, clock: Clock = time.monotonic) -> None:
        self.name = name
        self.expected = expected
        self.updated = self._began = clock()
        self._over_seeds = over_seeds
        self._clock = clock
        self._lost: set[str] = set()
        self._done: dict[str, bool] = {}
        self._passed = 0
        self._ended = self._began
        self._prints: dict[str, str] = {}
        self._copies: Counter[str] = Counter()
        self._squares = 0

    @property
    def done(self) -> int:
        """Rollouts that have ended."""
        return len(self._done)

    @property
    def finished(self) -> bool:
        """All of them have."""
        return self.done >= self.expected

    def begin(self, nodeid: str) -> None:
        """Forget what was known of a rollout: it begins, perhaps again."""
        self._lost.discard(nodeid)
        self._passed -= self._done.pop(nodeid, False)
        self.updated = self._clock()

    def hear(self, nodeid: str, *, lost: bool, payload: Mapping[str, Any] | None) -> None:
        """Take up what one report says.

        Args:
            nodeid: Whose.
            lost: It failed, was skipped, or missed what is expected of it.
            payload: What it carries, if anything.
        """
        self.updated = self._clock()
        if lost:
            self._lost.add(nodeid)
        sample = (payload or {}).get("sample")
        if sample is not None and sample["fingerprint"] is not None and payload and payload["repeat"]["run"] == 1:
            self._count(nodeid, sample["fingerprint"])

    def end(self, nodeid: str) -> None:
        """Count a rollout that has ended."""
        passed = nodeid not in self._lost
        self._passed += passed - self._done.get(nodeid, False)
        self._done[nodeid] = passed
        self.updated = self._ended = self._clock()

    def line(self, width: int) -> str:
        """Return the line while it runs, in at most ``width`` columns."""
        return self._line(self._left(), width)

    def summary(self, width: int) -> str:
        """Return the line once it has finished."""
        return self._line(f"in {_duration(self._ended - self._began)}", width)

    def _line(self, last: str, width: int) -> str:
        parts = [f"{self.done} of {self.expected}"]
        if self._done:
            parts.append(f"{self._passed} passed ({_share(self._passed, self.done)})")
        if self._over_seeds and self._squares:
            parts.append(f"N_eff {len(self._prints) ** 2 / self._squares:.1f}")
        parts += [last] if last else []
        text = ", ".join(parts)
        return f"{shortened(self.name, max(width - len(text) - 2, 8))}: {text}"[:width]

    def _left(self) -> str:
        if not 0 < self.done < self.expected:
            return ""
        return f"{_duration((self._ended - self._began) / self.done * (self.expected - self.done))} left"

    def _count(self, nodeid: str, fingerprint: str) -> None:
        before = self._prints.get(nodeid)
        if before is not None:
            self._copies[before] -= 1
            self._squares -= 2 * self._copies[before] + 1
        self._prints[nodeid] = fingerprint
        self._squares += 2 * self._copies[fingerprint] + 1
        self._copies[fingerprint] += 1


def _share(passed: int, total: int) -> str:
    # 999 of 1000 is not all of them.
    return "100 %" if passed == total else f"{min(100 * passed / total, 99.9):.3g} %"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
