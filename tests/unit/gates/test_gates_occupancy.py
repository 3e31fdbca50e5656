"""The occupancy distribution against counting, and gate T2 for worlds of few episodes."""

from __future__ import annotations

import itertools
import math
import random
import time
from fractions import Fraction

import pytest
from gate_groups import of_episodes

from pytest_microsim.gates import occupancy
from pytest_microsim.gates.variance import judge_fingerprints
from pytest_microsim.gates.verdicts import Outcome


def exact(distinct: int, draws: int, outcomes: int) -> Fraction:
    """Count onto-functions: C(K, j) j! S(N, j) / K**N, summed."""
    total = 0
    for j in range(1, min(distinct, outcomes) + 1):
        onto = sum((-1) ** i * math.comb(j, i) * (j - i) ** draws for i in range(j + 1))
        total += math.comb(outcomes, j) * onto
    return Fraction(total, outcomes**draws)


@pytest.mark.parametrize(("draws", "outcomes"), [(1, 1), (1, 4), (4, 1), (3, 5), (5, 3), (6, 4)])
def test_it_agrees_with_listing_all_draws(draws: int, outcomes: int) -> None:
    different = [len(set(drawn)) for drawn in itertools.product(range(outcomes), repeat=draws)]
    for distinct in range(draws + 2):
        share = sum(count <= distinct for count in different) / len(different)
        assert occupancy.at_most(distinct, draws, outcomes) == pytest.approx(share, rel=1e-14)


@pytest.mark.parametrize(("draws", "outcomes"), [(40, 8), (64, 64), (100, 20), (30, 1000), (200, 150)])
def test_it_agrees_with_whole_numbers_down_to_rounding(draws: int, outcomes: int) -> None:
    for distinct in range(1, min(draws, outcomes) + 1):
        true = float(exact(distinct, draws, outcomes))
        assert occupancy.at_most(distinct, draws, outcomes) == pytest.approx(true, rel=1e-12, abs=1e-36)
        assert occupancy.at_most(distinct, draws, outcomes) >= true * (1 - 1e-12)


def test_ten_thousand_draws_of_ten_thousand_take_seconds() -> None:
    started = time.process_time()
    middle = occupancy.at_most(6321, 10_000, 10_000)  # about K (1 - 1/e) are different
    rare = occupancy.at_most(6000, 10_000, 10_000)
    assert time.process_time() - started < 8.0
    assert 0.4 < middle < 0.6
    assert 1e-26 < rare < 1e-23


def test_no_draws_is_refused() -> None:
    with pytest.raises(ValueError, match="0 draws"):
        occupancy.at_most(1, 0, 3)
    with pytest.raises(ValueError, match="0 outcomes"):
        occupancy.at_most(1, 3, 0)


def of_unequal(chances: list[Fraction], draws: int) -> list[Fraction]:
    """Return the distribution of the number of different outcomes, by walking through their sets."""
    reached = {frozenset[int](): Fraction(1)}
    for _ in range(draws):
        step: dict[frozenset[int], Fraction] = {}
        for seen, p in reached.items():
            for outcome, chance in enumerate(chances):
                after = seen | {outcome}
                step[after] = step.get(after, Fraction(0)) + p * chance
        reached = step
    return [sum((p for seen, p in reached.items() if len(seen) == j), Fraction(0)) for j in range(len(chances) + 1)]


def test_the_rule_of_the_likeliest_outcome_never_understates() -> None:
    rng = random.Random(1)
    for _ in range(60):
        weights = [rng.randint(1, 20) for _ in range(rng.randint(2, 6))]
        chances = [Fraction(weight, sum(weights)) for weight in weights]
        support = math.floor(1 / max(chances))
        draws = rng.randint(2, 9)
        masses = of_unequal(chances, draws)
        for distinct in range(1, draws + 1):
            assert float(sum(masses[: distinct + 1])) <= occupancy.at_most(distinct, draws, support) * (1 + 1e-12)


def test_the_sum_of_squares_would_understate() -> None:
    # The example of the docstring: one outcome of 0.7, thirty of 0.01; 1 / sum(p**2) is 2.03.
    assert 1e5 * occupancy.at_most(1, 40, 2) < 0.7**40
    assert occupancy.at_most(1, 40, math.floor(1 / 0.7)) == 1.0


def test_a_world_of_few_episodes_passes_with_its_support() -> None:
    rng = random.Random(2)
    prints: list[str | None] = [str(rng.randrange(10)) for _ in range(64)]
    assert judge_fingerprints(of_episodes(prints)).outcome is Outcome.FAILED
    verdict = judge_fingerprints(of_episodes(prints, support=10))
    assert verdict.outcome is Outcome.PASSED
    assert verdict.clusters
    assert "10 equally likely episodes" in verdict.message


def test_fewer_episodes_than_the_support_explains_fail() -> None:
    verdict = judge_fingerprints(of_episodes([str(seed % 4) for seed in range(64)], support=10))
    assert verdict.outcome is Outcome.FAILED
    assert "4 different ones in 64" in verdict.message
    assert "equal seed % 4" in verdict.cause
    warned = judge_fingerprints(of_episodes([str(seed % 4) for seed in range(64)], support=10, variance="warn"))
    assert warned.outcome is Outcome.WARNED


def test_the_level_is_one_in_a_million() -> None:
    # 21 equal draws of 2: 2**-20 = 9.5e-7 fails; 20: 1.9e-6 does not.
    assert judge_fingerprints(of_episodes(["same"] * 21, support=2)).outcome is Outcome.FAILED
    assert judge_fingerprints(of_episodes(["same"] * 20, support=2)).outcome is Outcome.PASSED


def test_a_huge_group_is_judged_by_its_lowest_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(occupancy, "MOST_DRAWS", 30)
    prints: list[str | None] = ["same"] * 30 + [str(seed) for seed in range(30)]
    verdict = judge_fingerprints(of_episodes(prints, support=50))
    assert verdict.outcome is Outcome.FAILED
    assert "1 different ones in 30" in verdict.message
