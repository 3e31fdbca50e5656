"""Whole runs: how often one in which nothing changed is called different, and how often a change is seen."""

from typing import Any

import numpy as np

from pytest_microsim.results.model import Better
from pytest_microsim.statistics.trends import Allowed, Pairs, compare_groups, worst

GROUPS, METRICS, SEEDS = 5, 4, 32


def run(random: np.random.Generator, shift: float = 0.0) -> list[Pairs]:
    """Return two runs of a simulator that is not repeatable: noise of its own each time, over what the seed draws."""
    groups = []
    for number in range(GROUPS):
        situation = random.normal(size=SEEDS)
        passed = [tuple(random.random(2) < 0.9) for _ in range(SEEDS)]
        metrics: dict[str, Any] = {}
        for metric in range(METRICS):
            noise: Any = [random.normal, random.standard_cauchy, random.exponential, random.normal][metric]
            then, now = situation + noise(size=SEEDS), situation + noise(size=SEEDS)
            now = now + (shift if number == metric == 0 else 0.0)
            if metric == 3:
                then, now = np.round(then), np.round(now)  # counts: many ties
            metrics[f"m{metric}"] = list(zip(then.tolist(), now.tolist(), strict=True))
        better: dict[str, Better] = {"m0": "lower", "m1": "higher"}
        groups.append(Pairs([(bool(a), bool(b)) for a, b in passed], metrics, better))
    return groups


def test_a_run_in_which_nothing_changed_is_called_different_no_more_often_than_agreed() -> None:
    random = np.random.default_rng(11)
    runs, alpha = 60, 0.05
    called = shrunk = 0
    for _ in range(runs):
        compared = compare_groups(run(random), alpha=alpha)
        called += any(worst(each.trends) != "indistinguishable" for each in compared)
        shrunk += any(each.spread for each in compared)
    # Three standard deviations above the 3 that are agreed. Uncorrected, 25 tests would call most runs different.
    most = runs * alpha + 3 * (runs * alpha * (1 - alpha)) ** 0.5
    assert called <= most
    assert shrunk <= most


def test_a_change_of_one_metric_among_many_is_seen() -> None:
    random = np.random.default_rng(12)
    seen = sum(worst(compare_groups(run(random, shift=1.5))[0].trends) == "worse" for _ in range(12))
    assert seen >= 10  # about one standard deviation of the difference


def test_the_same_numbers_are_never_different() -> None:
    random = np.random.default_rng(13)
    for _ in range(200):
        group = run(random)[0]
        same = Pairs([(a, a) for a, _ in group.passed], {n: [(a, a) for a, _ in p] for n, p in group.metrics.items()})
        (compared,) = compare_groups([same])
        assert worst(compared.trends) == "indistinguishable"
        assert all(trend.p_corrected is None for trend in compared.trends)
        assert not compared.spread


def test_directions() -> None:
    higher = {"x": [(0.0, 1.0 + i / 100) for i in range(20)]}
    for better, trend in (("higher", "better"), ("lower", "worse"), (None, "shifted")):
        (compared,) = compare_groups([Pairs([], higher, {"x": better} if better else {})])  # type: ignore[dict-item]
        assert worst(compared.trends) == trend
    (compared,) = compare_groups([Pairs([], {"total_reward": higher["x"]})])
    assert worst(compared.trends) == "better"
    (compared,) = compare_groups([Pairs([(True, False)] * 20, {})])
    assert compared.trends[0].metric == "pass rate"
    assert worst(compared.trends) == "worse"


def test_a_metric_that_no_seed_changes_does_not_weaken_the_others() -> None:
    moved = [(0.0, 1.0 + i / 100) for i in range(10)]
    alone = compare_groups([Pairs([], {"x": moved})])[0].trends[0]
    among = compare_groups([Pairs([], {"x": moved, **{f"c{i}": [(1.0, 1.0)] * 10 for i in range(50)}})])[0]
    assert next(trend for trend in among.trends if trend.metric == "x").p_corrected == alone.p_corrected == alone.p


def test_too_few_seeds_to_tell_anything_are_said_to_be() -> None:
    (compared,) = compare_groups([Pairs([], {"x": [(0.0, 1.0 + i) for i in range(4)]}, {"x": "lower"})])
    assert compared.powerless
    assert worst(compared.trends) == "indistinguishable"
    (compared,) = compare_groups([Pairs([], {"x": [(0.0, 1.0 + i) for i in range(12)]}, {"x": "lower"})])
    assert not compared.powerless


def test_what_is_allowed_is_no_change() -> None:
    metrics = {"x": [(float(i), i + 0.05) for i in range(64)]}
    (compared,) = compare_groups([Pairs([], metrics, {"x": "lower"}, {"x": Allowed(absolute=0.1)})])
    assert worst(compared.trends) == "indistinguishable"
    (compared,) = compare_groups([Pairs([], metrics, {"x": "lower"})])
    assert worst(compared.trends) == "worse"


def test_missing_numbers_are_counted() -> None:
    metrics = {"x": [(1.0, None), (None, 1.0), *[(float(i), i + 1.0) for i in range(20)]]}
    (compared,) = compare_groups([Pairs([], metrics)])
    assert compared.trends[0].test.endswith("(2 seeds lack a number)")
