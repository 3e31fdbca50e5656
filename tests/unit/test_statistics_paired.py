"""Paired tests against scipy, known values, and runs in which nothing changed."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pytest_microsim.statistics.bootstrap import mean_interval
from pytest_microsim.statistics.corrections import holm
from pytest_microsim.statistics.flips import sign_flip, signed_rank
from pytest_microsim.statistics.paired import NO_TEST, OF_MEAN, OF_RANKS, paired_numbers, paired_shares
from pytest_microsim.statistics.shares import mcnemar, share_interval
from pytest_microsim.statistics.spread import compare_spread
from pytest_microsim.statistics.typical import typical_difference

whole = st.lists(st.integers(-6, 6), min_size=1, max_size=10)


@given(whole)
def test_the_sign_flip_is_that_of_all_signs(differences: list[int]) -> None:
    values = np.array(differences, dtype=float)
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(values))).reshape(len(values), -1)
    expected = (np.abs(values @ signs) >= abs(values.sum())).mean()
    assert sign_flip(values) == pytest.approx(expected)


def test_the_sign_flip_is_scipys_permutation_test() -> None:
    values = np.random.default_rng(3).standard_cauchy(14) + 1.0
    expected = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf).pvalue
    # scipy doubles the smaller tail, and the distribution is symmetric; the grid rounds.
    assert sign_flip(values) == pytest.approx(expected, abs=5e-3)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40, unique_by=abs))
def test_the_signed_rank_is_scipys(differences: list[float]) -> None:
    values = [value for value in differences if abs(value) > 1e-6]
    if values:
        expected = stats.wilcoxon(values, method="exact").pvalue
        assert signed_rank(values) == pytest.approx(expected, rel=1e-9)


def test_the_signed_rank_is_exact_with_ties_and_drops_zeros() -> None:
    # All eight signs of ranks 1.5, 1.5, 3: a sum of 6 or -6 is two of them.
    assert signed_rank([1.0, 1.0, 2.0, 0.0]) == pytest.approx(2 / 8)
    assert signed_rank([0.0, 0.0]) == 1.0


def test_small_p_values_are_not_cut_off_and_large_groups_are_quick() -> None:
    assert sign_flip(np.ones(64)) == pytest.approx(2.0**-63)
    assert signed_rank(np.arange(1, 65)) == pytest.approx(2.0**-63)
    values = np.random.default_rng(1).normal(0.02, 1.0, 5000)
    normal = stats.norm.sf(abs(values.sum()) / math.sqrt((values**2).sum())) * 2
    assert sign_flip(values) == pytest.approx(normal, rel=0.05)
    assert signed_rank(values) == pytest.approx(stats.wilcoxon(values).pvalue, rel=0.05)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_binomial_test(gained: int, lost: int) -> None:
    expected = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert mcnemar(gained, lost) == pytest.approx(expected)


def test_the_shares_interval_covers_and_has_a_width_where_nothing_changed() -> None:
    assert share_interval(0, 0, 64) == pytest.approx((-0.0566, 0.0566), abs=1e-3)
    low, high = share_interval(0, 6, 64)
    assert low < -6 / 64 < high < 0.0
    random = np.random.default_rng(5)
    covered = 0
    drawn = Counter((int(gained), int(lost)) for gained, lost, _ in random.multinomial(64, [0.05, 0.12, 0.83], 2000))
    for (gained, lost), often in drawn.items():
        low, high = share_interval(gained, lost, 64)
        covered += often * (low <= -0.07 <= high)
    assert covered / 2000 > 0.935


def test_holm_is_as_published() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_the_bootstrap_is_scipys() -> None:
    values = np.random.default_rng(7).exponential(1.0, 64)
    expected = stats.bootstrap((values,), np.mean, method="BCa", rng=np.random.default_rng(1)).confidence_interval
    assert mean_interval(values) == pytest.approx((expected.low, expected.high), rel=0.03)
    assert mean_interval(values) == mean_interval(values)
    assert mean_interval([2.0] * 6) == (2.0, 2.0)
    assert mean_interval([1.0, 2.0]) is None
    low, high = mean_interval([0.0] * 63 + [1.0]) or (0.0, 0.0)
    assert 0.0 <= low <= 1 / 64 <= high < 1.0


@given(st.lists(st.integers(-20, 20).map(float), min_size=1, max_size=30))
def test_the_typical_difference_is_the_median_of_pairwise_means(differences: list[float]) -> None:
    values = np.array(differences)
    means = [(values[i] + values[j]) / 2 for i in range(len(values)) for j in range(i, len(values))]
    middle, low, high = typical_difference(values)
    assert middle == pytest.approx(np.median(means))
    assert low <= middle <= high


def test_one_seed_that_went_astray_does_not_hide_a_small_change_of_all() -> None:
    random = np.random.default_rng(2)
    then = random.normal(10.0, 3.0, 64)
    now = then + random.normal(0.05, 0.05, 64)
    now[5] -= 40.0
    found = paired_numbers(list(zip(then, now, strict=True)))
    assert found.test == OF_RANKS
    assert found.p < 1e-6
    assert found.low is not None
    assert found.difference is not None
    assert 0.0 < found.low < 0.05 < found.difference + 0.02


def test_numbers_that_are_missing_or_not_finite_are_left_out() -> None:
    found = paired_numbers([(1.0, 2.0), (None, 1.0), (1.0, math.nan), (math.inf, 1.0)])
    assert (found.n, found.left_out, found.changed) == (1, 3, 1)
    assert found.p == 1.0
    assert found.effect is None
    assert (found.low, found.high) == (None, None)
    nothing = paired_numbers([(None, None)])
    assert (nothing.n, nothing.baseline, nothing.test) == (0, None, NO_TEST)


def test_the_same_difference_of_every_seed_has_no_effect_size_and_an_interval_without_width() -> None:
    found = paired_numbers([(float(i), i + 0.5) for i in range(16)])
    assert found.effect is None
    assert (found.difference, found.low, found.high) == (0.5, 0.5, 0.5)
    assert found.p == pytest.approx(2 * 2.0**-15)
    assert found.test == OF_MEAN


def test_a_change_in_the_last_digits_of_every_seed_is_none() -> None:
    found = paired_numbers([(float(i + 1), (i + 1) * (1 + 1e-9)) for i in range(64)], relative=1e-6)
    assert (found.changed, found.p, found.test) == (0, 1.0, NO_TEST)
    assert paired_numbers([(float(i), i + 0.05) for i in range(64)], absolute=0.1).changed == 0


def test_numbers_that_are_nearly_infinite_are_compared() -> None:
    found = paired_numbers([(1e308, -1e308 * (1 + i / 100)) for i in range(9)])
    assert found.p == pytest.approx(2 * 2.0**-8)
    assert found.difference is not None
    assert found.difference < 0


@given(st.lists(st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 2), min_size=1, max_size=12))
@settings(max_examples=40)
def test_any_finite_numbers_are_compared_without_a_warning(pairs: list[tuple[float, float]]) -> None:
    found = paired_numbers(pairs, relative=1e-6)
    assert 0.0 <= found.p <= 1.0
    spread = compare_spread([then for then, _ in pairs], [now for _, now in pairs])
    assert 0.0 <= spread.p <= 1.0


def test_shares() -> None:
    found = paired_shares([(True, True)] * 50 + [(True, False)] * 14)
    assert (found.baseline, found.now, found.difference) == (1.0, 50 / 64, -14 / 64)
    assert found.p == pytest.approx(2.0**-13)
    assert found.high is not None
    assert found.high < 0
    assert paired_shares([(True, True)] * 8).test == NO_TEST
    assert paired_shares([]).n == 0


def test_a_spread_that_shrank_is_seen_and_one_that_did_not_is_not() -> None:
    random = np.random.default_rng(4)
    then = random.normal(0.0, 1.0, 64)
    shrunk = compare_spread(then, 0.3 * then + 5.0)
    assert shrunk.shrank
    assert shrunk.p < 1e-9
    assert shrunk.now == pytest.approx(0.3 * shrunk.baseline)
    assert compare_spread([1.0], [2.0]).p == 1.0
    assert compare_spread([1.0] * 8, [2.0] * 8).p == 1.0


@pytest.mark.parametrize("draw", ["normal", "standard_cauchy", "exponential"])
def test_equal_spreads_are_not_called_different_too_often(draw: str) -> None:
    random = np.random.default_rng(6)
    called = 0
    for _ in range(400):
        shared = random.normal(size=32)  # the seed's own situation
        then, now = (shared + getattr(random, draw)(size=32) for _ in range(2))
        called += compare_spread(then, now).p <= 0.05
    assert called <= 35  # 20 are expected; more than 35 have a probability of 5e-4
