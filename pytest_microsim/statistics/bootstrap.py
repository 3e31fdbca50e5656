"""The interval of a mean of paired differences, by the bias-corrected and accelerated bootstrap (BCa)."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

DRAWS = 2999
FEWEST = 5
"""Fewer seeds than this have no interval: there is too little to draw from."""

_SEED = 20_231_117
_AT_A_TIME = 1 << 21
_NORMAL = NormalDist()


def mean_interval(differences: Any, confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the interval of the mean; the same differences always give the same one.

    Args:
        differences: One number per seed, (n,); finite.
        confidence: Between 0 and 1.

    Returns:
        Both ends; equal where all differences are. None for fewer than :data:`FEWEST`.
    """
    import numpy as np

    values = np.asarray(differences, dtype=np.float64)
    if values.size < FEWEST:
        return None
    mean = float(values.mean())
    if np.ptp(values) == 0.0:
        return mean, mean
    means = _resampled(values)
    tail = (1.0 - confidence) / 2.0
    low, high = (_adjusted(values, means, mean, share) for share in (tail, 1.0 - tail))
    found = np.quantile(means, [low, high])
    return float(found[0]), float(found[1])


def _resampled(values: Any) -> Any:
    """Return means of samples drawn with replacement, (DRAWS,)."""
    import numpy as np

    generator = np.random.Generator(np.random.PCG64(_SEED))
    at_a_time = max(1, _AT_A_TIME // values.size)
    parts = [
        values[generator.integers(0, values.size, size=(min(at_a_time, DRAWS - begun), values.size))].mean(axis=1)
        for begun in range(0, DRAWS, at_a_time)
    ]
    return np.concatenate(parts)


def _adjusted(values: Any, means: Any, mean: float, share: float) -> float:
    """Return the quantile of the resampled means that stands for ``share``."""
    below = float((means < mean).mean() + (means == mean).mean() / 2.0)
    bias = _NORMAL.inv_cdf(min(max(below, 0.5 / DRAWS), 1.0 - 0.5 / DRAWS))
    centred = values - mean
    squares = float((centred**2).sum())
    skew = float((centred**3).sum()) / (6.0 * squares**1.5) if squares > 0.0 else 0.0
    shifted = bias + _NORMAL.inv_cdf(share)
    scale = 1.0 - skew * shifted
    return share if scale <= 0.0 else _NORMAL.cdf(bias + shifted / scale)
