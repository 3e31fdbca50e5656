"""Exact paired tests: if nothing changed, each seed's difference could as well have had the other sign.

Whatever the numbers are, that is true when the two runs of a seed are alike in distribution; no shape of it is assumed.
The distribution of a sum of differences with random signs is worked out whole, on a grid, and not by drawing signs: so
the same data give the same p-value, and a small p-value is not cut off by a number of draws.
"""

from __future__ import annotations

from typing import Any

CELLS = (1 << 12, 1 << 17)
"""Fewest and most cells of the grid, which has 256 for each difference between these."""


def sign_flip(differences: Any) -> float:
    """Return the two-sided p-value for the mean of paired differences being zero.

    Args:
        differences: One number per seed, (n,); finite. Those that are zero say nothing.
    """
    import numpy as np

    values = _moved(differences)
    if values.size == 0:
        return 1.0
    counts = _on_a_grid(np.abs(values))
    # The test is exact for the sum of what the grid made of the differences, whatever it made of them.
    return _two_sided(counts[counts > 0], abs(int((np.sign(values).astype(np.int64) * counts).sum())))


def signed_rank(differences: Any) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test, exact with ties too.

    It asks whether most seeds moved one way, and one seed that went far astray does not drown the others.

    Args:
        differences: One number per seed, (n,); finite. Those that are zero say nothing.
    """
    import numpy as np

    values = _moved(differences)
    if values.size == 0:
        return 1.0
    ranks = doubled_ranks(np.abs(values))
    if ranks.sum() > CELLS[1]:
        return sign_flip(np.sign(values) * ranks)
    return _two_sided(ranks, abs(int((np.sign(values).astype(np.int64) * ranks).sum())))


def _moved(differences: Any) -> Any:
    """Return the differences that are not zero."""
    import numpy as np

    values = np.asarray(differences, dtype=np.float64)
    return values[values != 0.0]


def _on_a_grid(magnitudes: Any) -> Any:
    """Return whole numbers in proportion to ``magnitudes``: exactly so where a small unit divides all of them."""
    import numpy as np

    cells = int(min(max(256 * magnitudes.size, CELLS[0]), CELLS[1]))
    shares = magnitudes / magnitudes.max()
    with np.errstate(all="ignore"):  # the smallest may be no part of the largest that a float could tell
        for parts in range(1, 17):
            counts = shares * (parts / shares.min())
            if counts.sum() <= cells and np.abs(counts - np.rint(counts)).max() < 1e-6:
                return np.rint(counts).astype(np.int64)
    return np.rint(shares * (cells / shares.sum())).astype(np.int64)


def doubled_ranks(magnitudes: Any) -> Any:
    """Return twice the rank of each number, from 2 on; equal ones share the mean of theirs.

    Args:
        magnitudes: (n,).

    Returns:
        Whole numbers, (n,).
    """
    import numpy as np

    _, inverse, counts = np.unique(magnitudes, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (2 * last - counts + 1)[inverse]


def _two_sided(counts: Any, threshold: int) -> float:
    """Return the probability that a sum of ``counts`` with random signs is ``threshold`` or more from zero."""
    import numpy as np

    total = int(counts.sum())
    if threshold <= 0 or total == 0:
        return 1.0
    if threshold > total:
        threshold = total
    # chances[k]: that those with a plus add up to k, which makes the sum 2 k - total.
    chances = np.zeros(total + 1)
    chances[0] = 1.0
    reached = 0
    for count in np.sort(counts).tolist():
        reached += count
        chances[count : reached + 1] += chances[: reached + 1 - count].copy()
        chances[: reached + 1] *= 0.5
    first = (total + threshold + 1) // 2
    return float(min(1.0, 2.0 * chances[first:].sum()))
