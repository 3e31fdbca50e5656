"""The typical difference of most seeds (Hodges and Lehmann's), and its interval: the signed-rank test turned round."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any


def typical_difference(differences: Any, confidence: float = 0.95) -> tuple[float, float, float]:
    """Return the median of all means of two differences, and its interval.

    Args:
        differences: One number per seed, (n,); finite, and at least one.
        confidence: Between 0 and 1.

    Returns:
        The difference, and both ends of its interval.
    """
    import numpy as np

    values = np.sort(np.asarray(differences, dtype=np.float64))
    pairs = values.size * (values.size + 1) // 2
    spread = (values.size * (values.size + 1) * (2 * values.size + 1) / 24.0) ** 0.5
    # The rank sum's own quantile; continuity makes the interval no shorter than it should be.
    cut = int(np.floor(pairs / 2.0 - NormalDist().inv_cdf((1.0 + confidence) / 2.0) * spread))
    middle = (_smallest(values, (pairs + 1) // 2) + _smallest(values, pairs // 2 + 1)) / 2.0
    if cut < 1:
        return middle, float(values[0]), float(values[-1])
    return middle, _smallest(values, cut), _smallest(values, pairs + 1 - cut)


def _smallest(values: Any, k: int) -> float:
    """Return the k-th smallest mean of two of the sorted values (each with itself too), without writing all down."""
    import numpy as np

    low, high = float(values[0]), float(values[-1])
    indices = np.arange(values.size)
    for _ in range(2000):  # ends when no float is left between the two
        middle = low + (high - low) / 2.0
        if middle in (low, high):
            break
        # Pairs (i, j), i <= j, whose mean is at most `middle`.
        count = int(np.maximum(0, np.searchsorted(values, 2.0 * middle - values, side="right") - indices).sum())
        if count >= k:
            high = middle
        else:
            low = middle
    count = int(np.maximum(0, np.searchsorted(values, 2.0 * low - values, side="right") - indices).sum())
    return low if count >= k else high
