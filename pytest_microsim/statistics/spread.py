"""Whether a metric's spread over seeds changed: what was to be many situations may have become one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .flips import sign_flip
from .scale import scale_of


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
    scale = scale_of(then_, now_)
    values = then_ / scale, now_ / scale
    distances = [np.abs(each - np.median(each)) for each in values]
    then_s, now_s = (float(each.std(ddof=1)) * scale for each in values)
    return Spread(then_s, now_s, sign_flip(distances[1] - distances[0]))
