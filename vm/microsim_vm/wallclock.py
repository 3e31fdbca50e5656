"""Where a guest's wall clock starts: at a date of its template's, the same in every run, or at the present.

Under QEMU a warm-up begins at :data:`BOOT`, and a pinned fork at :data:`PINNED`, the day after it. No warm-up takes a
whole day, so that no file and no process of the snapshot has ever seen a later time. The clock then runs on with the
host's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

BOOT = "2025-01-01T00:00:00"
"""What the clock of a guest's machine says when it boots, UTC."""

PINNED = 1735776000.0
"""2025-01-02T00:00:00Z, in seconds since 1970."""

NOW = "now"
"""What a template writes for the present."""


@dataclass(frozen=True)
class WallClock:
    """A wall clock that was started somewhere else than at the present.

    Attributes:
        start: Where, in seconds since 1970.
        started: When, by this host's monotonic clock.
    """

    start: float
    started: float

    @classmethod
    def starting(cls, start: float) -> WallClock:
        """Return one that starts at this moment."""
        return cls(start, time.monotonic())

    def present(self) -> float:
        """Return what it says at this moment, in seconds since 1970."""
        return self.start + time.monotonic() - self.started


def start_of(text: str) -> float | None:
    """Read what a template says of its clock.

    Args:
        text: ``now``, or a date and time with its distance from UTC, as in ``2030-06-01T12:00:00Z``.

    Returns:
        Seconds since 1970; None for the present.

    Raises:
        ValueError: It is neither, or no time from :data:`PINNED` to the year 2100.
    """
    if text == NOW:
        return None
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("it does not say how far from UTC it is")
    seconds = moment.timestamp()
    if not PINNED <= seconds < 4102444800.0:
        raise ValueError("it is not from 2025-01-02T00:00:00Z to the year 2100")
    return seconds
