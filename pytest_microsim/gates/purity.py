"""How often a random assignment of values to seeds makes whole parts of them constant, exactly.

N values, of which ``c_v`` are v, are assigned to N seeds at random; k disjoint parts have b seeds each (the rest of
the seeds, if any, is in no part). T is the number of pure parts: those whose seeds all have the same value.

One part is pure with the hypergeometric probability ``sum_v C(c_v, b) / C(N, b)``. For j given parts, count the ways to
fill them: a of them with the value v, out of the c_v seats that v has, in ``c_v (c_v - 1) ... (c_v - a b + 1)`` ways:

    P(j given parts are pure) = j! [x**j] prod_v ( sum_a  (c_v)_{a b} / a!  x**a )  /  (N)_{j b}

with ``(n)_m = n! / (n - m)!``. With ``S_j = C(k, j) * P(j given parts are pure)``, the expected number of sets of j
pure parts, inclusion and exclusion gives the tail (Feller, An Introduction to Probability Theory and Its Applications
I, IV.5):

    P(T >= t) = sum_{j >= t} (-1)**(j - t) C(j - 1, t - 1) S_j

All of it is computed in whole numbers. There is no asymptotics and no sampling, and ties need no care: they are what
the formula counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache


@lru_cache(maxsize=65536)
def expected(seeds: int, parts: int, size: int, counts: tuple[int, ...]) -> tuple[float, float]:
    """Return mean and standard deviation of the number of pure parts.

    Args:
        seeds: N.
        parts: k.
        size: b, with ``k b <= N``.
        counts: The c_v, in descending order; values that only one seed has may be left out.
    """
    one = two = squares = 0
    for count in counts:
        if count < size:
            break
        ways = math.perm(count, size)
        one += ways
        squares += ways * ways
        two += math.perm(count, 2 * size)
    mean = parts * one / math.perm(seeds, size)
    pairs = parts * (parts - 1) * (one * one - squares + two) / math.perm(seeds, 2 * size) if parts > 1 else 0.0
    return mean, math.sqrt(max(0.0, pairs + mean - mean * mean))


@lru_cache(maxsize=65536)
def at_least(pure: int, seeds: int, parts: int, size: int, counts: tuple[int, ...]) -> Fraction:
    """Return ``P(T >= pure)``; the other arguments are those of :func:`expected`."""
    if pure < 1:
        return Fraction(1)
    ways = _fillings(parts, size, counts)
    most = len(ways) - 1
    total = 0
    for j in range(pure, most + 1):
        sets = math.comb(parts, j) * math.factorial(j) * ways[j]
        rest = math.perm(seeds - j * size, (most - j) * size)
        total += (-1) ** (j - pure) * math.comb(j - 1, pure - 1) * sets * rest
    return Fraction(total, math.perm(seeds, most * size))


def arrangements_log(counts: Sequence[int]) -> float:
    """Return the natural logarithm of ``N! / prod_v c_v!``, in how many ways the values can be assigned.

    No event has a probability below ``exp(-...)`` of this, so that too few ways mean that nothing can be told.
    """
    return math.lgamma(sum(counts) + 1) - math.fsum(math.lgamma(count + 1) for count in counts)


def _fillings(parts: int, size: int, counts: tuple[int, ...]) -> list[int]:
    """Return the coefficients of ``prod_v sum_a (c_v)_{a b} / a! x**a``, up to ``x**parts``."""
    product = [1]
    for count, times in Counter(counts).items():
        factor = [math.perm(count, a * size) // math.factorial(a) for a in range(min(count // size, parts) + 1)]
        for _ in range(times if len(factor) > 1 else 0):
            product = _times(product, factor, parts)
    return product


def _times(first: list[int], second: list[int], most: int) -> list[int]:
    result = [0] * min(len(first) + len(second) - 1, most + 1)
    for i, a in enumerate(first):
        for j, b in enumerate(second[: len(result) - i]):
            result[i + j] += a * b
    return result
