"""Two shares of the same seeds: how many passed then and now. Seeds that did the same both times say nothing."""

from __future__ import annotations

import math
from statistics import NormalDist

from .intervals import beta_cdf


def mcnemar(gained: int, lost: int) -> float:
    """Return the two-sided p-value of McNemar's exact test.

    Args:
        gained: Seeds that failed and now pass.
        lost: Seeds that passed and now fail.
    """
    changed, fewer = gained + lost, min(gained, lost)
    if changed == 0 or gained == lost:
        return 1.0
    # At most `fewer` heads in `changed` throws of a fair coin.
    return min(1.0, 2.0 * beta_cdf(0.5, changed - fewer, fewer + 1))


def share_interval(gained: int, lost: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Tango's score interval of the difference between two shares of the same seeds, now minus then.

    Unlike the simplest interval it has a width also where no seed changed, and where few did it holds what it says.

    Args:
        gained: Seeds that failed and now pass.
        lost: Seeds that passed and now fail.
        total: All seeds, at least one.
        confidence: Between 0 and 1.
    """
    bound = NormalDist().inv_cdf((1.0 + confidence) / 2.0)
    low = _crossing(gained, lost, total, bound)
    return low, -_crossing(lost, gained, total, bound)


def _crossing(gained: int, lost: int, total: int, bound: float) -> float:
    """Return the difference at which the score is ``bound``; the score falls as the difference rises."""
    low, high = -1.0, (gained - lost) / total
    for _ in range(100):
        middle = (low + high) / 2.0
        if _score(gained, lost, total, middle) > bound:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _score(gained: int, lost: int, total: int, difference: float) -> float:
    a = 2.0 * total
    b = -gained - lost + (2.0 * total - gained + lost) * difference
    c = -lost * difference * (1.0 - difference)
    share = (math.sqrt(max(0.0, b * b - 4.0 * a * c)) - b) / (2.0 * a)
    variance = total * (2.0 * share + difference * (1.0 - difference))
    over = gained - lost - total * difference
    return math.copysign(math.inf, over) if variance <= 0.0 else over / math.sqrt(variance)
