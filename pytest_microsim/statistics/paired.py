"""One metric of the same seeds, then and now: what it differs by, and whether beyond chance.

Two exact tests look at a metric. One is of the mean: a few seeds that went far astray move it. The other is of ranks: a
small change of most seeds moves it, also where a few that went far astray would drown that in the mean. The smaller of
the two p-values counts, doubled, which keeps the chance of an error. What is reported is the difference that the
test which decided is about, with its interval: the mean's, or that of the typical seed among those that changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .bootstrap import mean_interval
from .flips import sign_flip, signed_rank
from .scale import scale_of
from .shares import mcnemar, share_interval
from .typical import typical_difference

OF_MEAN = "sign flip, of the mean"
OF_RANKS = "signed rank, of the typical seed that changed"
OF_SHARES = "McNemar, of the seeds that changed"
NO_TEST = "none: no seed differs"

_ROUNDING = 1e-12
"""What of numbers of the size of 1 is not a difference between differences."""

Pair = tuple[float | None, float | None]


@dataclass(frozen=True)
class Paired:
    """A comparison of the same seeds, then and now.

    Attributes:
        n: Seeds that have both numbers.
        left_out: Seeds that lack one, or where it is not finite.
        changed: Seeds whose numbers differ by more than is told to be nothing.
        baseline, now: Means over the n; None where n is 0.
        difference: Now minus baseline: of the means, or under the test of ranks of the typical seed that changed.
        low, high: Its interval; None with too few seeds.
        effect: The differences' mean over their standard deviation; None where that is zero.
        p: Two-sided; 1.0 where no seed differs.
        test: Which test decided.
        least_p: The smallest p-value that so many changed seeds could have given.
    """

    n: int
    left_out: int
    changed: int
    baseline: float | None
    now: float | None
    difference: float | None
    low: float | None
    high: float | None
    effect: float | None
    p: float
    test: str
    least_p: float = 1.0


def paired_numbers(
    pairs: Sequence[Pair], *, absolute: float = 0.0, relative: float = 0.0, confidence: float = 0.95
) -> Paired:
    """Compare a metric.

    Args:
        pairs: The numbers of each seed, then and now.
        absolute: Differences up to this count as none, so that a change in the last digits of every seed is not one
            of the robot.
        relative: So do those up to this share of the number then, in addition.
        confidence: Of the interval.
    """
    import numpy as np

    both = [pair for pair in pairs if all(value is not None and math.isfinite(value) for value in pair)]
    if not both:
        return Paired(0, len(pairs), 0, None, None, None, None, None, None, 1.0, NO_TEST)
    values = np.asarray(both, dtype=np.float64)
    scale = scale_of(values)
    then, now = values.T / scale
    differences = now - then
    counted = np.where(np.abs(differences) <= absolute / scale + relative * np.abs(then), 0.0, differences)
    changed = int(np.count_nonzero(counted))
    left_out = len(pairs) - len(both)
    means = float(then.mean()) * scale, float(now.mean()) * scale
    deviation = float(differences.std(ddof=1)) if np.ptp(differences) > _ROUNDING else 0.0
    mean = float(differences.mean())
    effect = mean / deviation if deviation > 0.0 else None
    if changed == 0:
        return Paired(len(both), left_out, 0, *means, mean * scale, mean * scale, mean * scale, effect, 1.0, NO_TEST)
    of_mean, of_ranks = sign_flip(counted), signed_rank(counted)
    least = min(1.0, 2.0 * 2.0 ** (1 - changed))
    if of_mean <= of_ranks or min(1.0, 2.0 * of_ranks) == 1.0:
        estimate, test = mean, OF_MEAN
        interval = mean_interval(differences, confidence)
    else:
        estimate, *ends = typical_difference(counted[counted != 0.0], confidence)
        interval, test = (ends[0], ends[1]), OF_RANKS
    low, high = (None, None) if interval is None else (interval[0] * scale, interval[1] * scale)
    p = min(1.0, 2.0 * min(of_mean, of_ranks))
    return Paired(len(both), left_out, changed, *means, estimate * scale, low, high, effect, p, test, least)


def paired_shares(pairs: Sequence[tuple[bool, bool]], *, confidence: float = 0.95) -> Paired:
    """Compare how many seeds passed.

    Args:
        pairs: Whether each seed passed, then and now.
        confidence: Of the interval.
    """
    total = len(pairs)
    if total == 0:
        return Paired(0, 0, 0, None, None, None, None, None, None, 1.0, NO_TEST)
    gained = sum(not then and now for then, now in pairs)
    lost = sum(then and not now for then, now in pairs)
    difference, changed = (gained - lost) / total, gained + lost
    low, high = share_interval(gained, lost, total, confidence)
    variance = (changed / total - difference**2) * total / (total - 1) if total > 1 else 0.0
    return Paired(
        n=total,
        left_out=0,
        changed=changed,
        baseline=sum(then for then, _ in pairs) / total,
        now=sum(now for _, now in pairs) / total,
        difference=difference,
        low=low,
        high=high,
        effect=difference / math.sqrt(variance) if variance > 0.0 else None,
        p=mcnemar(gained, lost),
        test=OF_SHARES if changed else NO_TEST,
        least_p=min(1.0, 2.0 ** (1 - changed)),
    )
