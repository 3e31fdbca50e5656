"""Whether a metric's spread over seeds changed: what was to be many situations may have become one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .flips import sign_flip


@dataclass(frozen=True)
class Spread:
    """The spread of one metric, then and now.

    Attributes:
        baseline, now: Standard deviations over the seeds.
        p: Two-sided, for the two spreads being equal; paired by seed.
    """

    baseline: float
    now: float
    p: float

    @property
    def shrank(self) -> bool:
        """True if the spread is smaller now."""
        return self.now < self.baseline


def compare_spread(baseline: Any, now: Any) -> Spread:
    """Compare spreads by the seeds' distances from the median, then and now.

    Where the spreads are equal, a seed's two distances could as well be exchanged. That needs no normal distribution,
    and holds where a seed's two values depend on each other, as they do.

    Args:
        baseline: One number per seed, (n,); finite.
        now: The same of the other run, in the same order.
    """
    import numpy as np

    then_, now_ = np.asarray(baseline, dtype=np.float64), np.asarray(now, dtype=np.float64)
    if then_.size < 2:
        return Spread(0.0, 0.0, 1.0)
    distances = [np.abs(values - np.median(values)) for values in (then_, now_)]
    return Spread(float(then_.std(ddof=1)), float(now_.std(ddof=1)), sign_flip(distances[1] - distances[0]))
