"""Exact intervals of a share, such as a pass rate."""

from __future__ import annotations

import math
from collections.abc import Callable

_MOST_TERMS = 100_000
"""Most terms of a continued fraction. It takes about the square root of the number of seeds."""

_TINY = 1e-300


def clopper_pearson(passed: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) two-sided interval of a share.

    It covers the true share at least as often as ``confidence`` says, for any number of seeds.

    Args:
        passed: How many passed.
        total: Out of how many; of none, nothing is known, and the interval is (0, 1).
        confidence: Between 0 and 1.

    Returns:
        Both ends, from 0 to 1.

    Raises:
        ValueError: For counts or a confidence that cannot be.
    """
    tail = (1.0 - _checked(passed, total, confidence)) / 2.0
    return _lower(passed, total, tail), 1.0 - _lower(total - passed, total, tail)


def clopper_pearson_lower(passed: int, total: int, confidence: float = 0.95) -> float:
    """Return the exact one-sided lower bound of a share: it is below the true share as often as ``confidence`` says.

    Raises:
        ValueError: For counts or a confidence that cannot be.
    """
    return _lower(passed, total, 1.0 - _checked(passed, total, confidence))


def _checked(passed: int, total: int, confidence: float) -> float:
    if not 0 <= passed <= total:
        raise ValueError(f"{passed} of {total} is no share")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence is between 0 and 1, not {confidence!r}")
    return confidence


def _lower(passed: int, total: int, tail: float) -> float:
    """Return the share under which ``passed`` or more of ``total`` have the probability ``tail``."""
    if passed == 0:
        return 0.0
    if passed == total:
        return float(tail ** (1.0 / total))
    return _solved(lambda share: beta_cdf(share, passed, total - passed + 1) - tail)


def _solved(rising: Callable[[float], float]) -> float:
    """Bisect for where a rising function of a share is zero, down to neighbouring floats."""
    low, high = 0.0, 1.0
    while True:
        middle = (low + high) / 2.0
        if middle in (low, high):
            return middle
        if rising(middle) < 0.0:
            low = middle
        else:
            high = middle


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), for ``0 <= x <= 1`` and positive ``a`` and ``b``."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    # The fraction converges fast on this side of the mean, and the function is symmetric about it.
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1.0 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function by Lentz's method."""
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for term in (even, odd):
            d = 1.0 / _away(1.0 + term * d)
            c = _away(1.0 + term / c)
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value


def _away(number: float) -> float:
    return number if abs(number) > _TINY else _TINY
