import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_microsim.statistics.intervals import beta_cdf, clopper_pearson, clopper_pearson_lower


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_the_interval_is_scipys(share: tuple[int, int], confidence: float) -> None:
    passed, total = share
    expected = stats.binomtest(passed, total).proportion_ci(confidence, "exact")
    assert clopper_pearson(passed, total, confidence) == pytest.approx(
        (expected.low, expected.high), rel=1e-8, abs=1e-12
    )
    lower = stats.binomtest(passed, total, alternative="greater").proportion_ci(confidence, "exact").low
    assert clopper_pearson_lower(passed, total, confidence) == pytest.approx(lower, rel=1e-8, abs=1e-12)


def test_known_intervals() -> None:
    assert clopper_pearson(0, 10) == pytest.approx((0.0, 0.30849710781876083))
    assert clopper_pearson(10, 10) == pytest.approx((0.6915028921812392, 1.0))
    assert clopper_pearson(61, 64) == pytest.approx((0.8691, 0.9902), abs=1e-4)
    assert clopper_pearson(0, 0) == (0.0, 1.0)
    # The rule of three: 59 of 59 are just enough for 95 % with a confidence of 95 %.
    assert clopper_pearson_lower(58, 58) < 0.95 <= clopper_pearson_lower(59, 59)


def test_it_covers_the_true_share_often_enough() -> None:
    for true in (0.02, 0.5, 0.97):
        covered = sum(
            math.comb(40, k) * true**k * (1 - true) ** (40 - k)
            for k in range(41)
            if clopper_pearson(k, 40)[0] <= true <= clopper_pearson(k, 40)[1]
        )
        assert covered >= 0.95


def test_the_beta_functions_ends() -> None:
    assert beta_cdf(0.0, 2, 3) == 0.0
    assert beta_cdf(1.0, 2, 3) == 1.0
    assert beta_cdf(0.5, 3, 3) == pytest.approx(0.5)


@pytest.mark.parametrize(("passed", "total"), [(-1, 4), (5, 4)])
def test_what_is_no_share_is_refused(passed: int, total: int) -> None:
    with pytest.raises(ValueError, match="no share"):
        clopper_pearson(passed, total)


def test_what_is_no_confidence_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        clopper_pearson_lower(1, 2, 1.0)
