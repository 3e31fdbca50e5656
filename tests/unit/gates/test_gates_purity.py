"""The exact permutation distribution against listing every assignment."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import pytest
from gate_groups import of_scalars

from pytest_microsim.gates import purity
from pytest_microsim.gates.scalars import judge_scalars
from pytest_microsim.gates.verdicts import Outcome


def multisets(n: int, most: int | None = None) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write n as a sum, largest part first."""
    if n == 0:
        yield ()
    for first in range(min(n, most or n), 0, -1):
        for rest in multisets(n - first, first):
            yield (first, *rest)


def assignments(counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield every different assignment of the values to the seeds."""
    if not any(counts):
        yield ()
    for value, count in enumerate(counts):
        if count:
            for rest in assignments((*counts[:value], count - 1, *counts[value + 1 :])):
                yield (value, *rest)


def pure_parts(values: tuple[int, ...], parts: int, size: int) -> int:
    return sum(len(set(values[part * size : (part + 1) * size])) == 1 for part in range(parts))


@pytest.mark.parametrize("n", [2, 3, 5, 6, 7])
def test_tail_and_moments_are_those_of_all_assignments(n: int) -> None:
    for counts in multisets(n):
        listed = list(assignments(counts))
        assert len(listed) == math.factorial(n) // math.prod(map(math.factorial, counts))
        assert purity.arrangements_log(counts) == pytest.approx(math.log(len(listed)), abs=1e-9)
        for size in range(2, n + 1):
            for parts in range(1, n // size + 1):
                seen = Counter(pure_parts(values, parts, size) for values in listed)
                mean = sum(pure * times for pure, times in seen.items()) / len(listed)
                variance = sum(pure**2 * times for pure, times in seen.items()) / len(listed) - mean**2
                assert purity.expected(n, parts, size, counts) == pytest.approx(
                    (mean, math.sqrt(max(0.0, variance))), abs=1e-7
                )
                for pure in range(parts + 1):
                    tail = Fraction(sum(times for j, times in seen.items() if j >= pure), len(listed))
                    assert purity.at_least(pure, n, parts, size, counts) == tail, (counts, parts, size, pure)


def test_all_parts_pure_is_a_ratio_of_multinomials() -> None:
    # seed % 8 of 64 seeds, 8 different values of 8 seeds each: 8! assignments of 64! / 8!**8.
    ways = Fraction(math.factorial(8) * math.factorial(8) ** 8, math.factorial(64))
    assert purity.at_least(8, 64, 8, 8, (8,) * 8) == ways
    assert purity.at_least(9, 64, 8, 8, (8,) * 8) == 0


def test_one_part_is_hypergeometric() -> None:
    chance = Fraction(math.comb(20, 4) + math.comb(12, 4), math.comb(32, 4))
    assert purity.at_least(1, 32, 1, 4, (20, 12)) == chance


def test_values_that_only_one_seed_has_may_be_left_out() -> None:
    counts = (5, 3, 2)
    assert purity.at_least(2, 14, 4, 2, (*counts, 1, 1, 1, 1)) == purity.at_least(2, 14, 4, 2, counts)


@pytest.mark.parametrize("counts", [(4, 4), (6, 2), (3, 3, 2), (2, 2, 2, 1, 1), (4, 2, 1, 1)])
@pytest.mark.parametrize("alpha", [0.5, 0.1])
def test_over_all_assignments_the_gate_keeps_its_level(counts: tuple[int, ...], alpha: float) -> None:
    listed = list(assignments(counts))
    outcomes = Counter(judge_scalars(of_scalars(values), alpha=alpha)[0].outcome for values in listed)
    assert outcomes[Outcome.FAILED] <= alpha * len(listed)
    if (counts, alpha) == ((4, 4), 0.5):
        assert outcomes[Outcome.FAILED] > 0  # the bound is no empty one
