"""Groups against their baselines: standing, verdict and words, over metrics of the shipped dock controller.

``dock_metrics.json`` has what 64 seeds of the warehouse gave on gVisor: with ``controllers/dock.py`` as it is shipped,
and with each turn rate that it commands 5 % lower (see ``benchmarks/bench_baselines.py``).
"""

import json
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_microsim.baselines.comparison import GroupNow, compare_all
from pytest_microsim.baselines.judging import verdict_of
from pytest_microsim.baselines.store import Baseline, Entry
from pytest_microsim.baselines.updating import name_of
from pytest_microsim.baselines.wishes import wishes_of
from pytest_microsim.gates.verdicts import Outcome
from pytest_microsim.results.gathering import rate_of
from pytest_microsim.results.model import Better, GroupResult, RolloutResult
from pytest_microsim.results.model import Outcome as Ended

RECORDED = json.loads((Path(__file__).parent / "dock_metrics.json").read_text())
SHIPPED, SLOWER = RECORDED["as shipped"], RECORDED["turn 5 % slower"]
BETTER: dict[str, Better] = {
    "facing_s": "lower", "time_s": "lower", "distance_to_dock": "lower", "collisions": "lower",
}  # fmt: skip
HERE = {"cpu.model": "a", "digest": "d", "engine.engine": "gvisor"}
WHEN = datetime(2026, 11, 29, tzinfo=UTC)
Metrics = Mapping[str, list[float]]


def ended(metrics: dict[str, float]) -> Ended:
    return "passed" if metrics["distance_to_dock"] < 0.25 and metrics["collisions"] == 0 else "failed"


def of_seed(metrics: Metrics, seed: int) -> dict[str, float]:
    return {name: values[seed] for name, values in metrics.items()}


def baseline_of(metrics: Metrics, environment: Mapping[str, Any] = HERE, host: str = "h") -> Baseline:
    name = name_of(environment)
    seeds = {}
    for seed in range(64):
        each = of_seed(metrics, seed)
        seeds[seed] = Entry(ended(each), f"{seed:032x}", each, name, WHEN, host)
    return Baseline("test_dock.py::test_robot_docks", {name: dict(environment)}, seeds)


def group_of(
    then: Metrics,
    now: Metrics,
    *,
    seeds: int = 64,
    baseline: Baseline | None = None,
    wishes: dict[str, Any] | None = None,
    name: str = "test_dock.py::test_robot_docks",
    expected: int | None = None,
    **named: Any,
) -> GroupNow:
    rollouts, standings = [], {}
    for seed in range(seeds):
        each = of_seed(now, seed)
        rollouts.append(
            RolloutResult(nodeid=f"t[{seed}]", seed=str(seed), outcome=ended(each), metrics=dict(each), fingerprint="f")
        )
        same = each == of_seed(then, seed)
        divergence = {"step": 3, "column": "action[1]", "baseline": 1.0, "now": 0.95, "over": 1e9, "episode": 0}
        standings[seed] = {"standing": "identical"} if same else {"standing": "different", "divergence": divergence}
    group = GroupResult(
        key=name, name=name, location="test_dock.py:9", world="warehouse", expected=expected or seeds, rollouts=rollouts
    )
    group.pass_rate = rate_of(rollouts)
    return GroupNow(
        group,
        Path("b.toml"),
        baseline or baseline_of(then),
        HERE,
        "h",
        standings,
        wishes_of(wishes or {}),
        BETTER,
        **named,
    )


def judged(now: GroupNow) -> tuple[Any, Any]:
    (found,) = compare_all([now])
    return found.result, verdict_of(found)


def test_a_turn_that_is_5_percent_slower_is_worse_at_64_seeds_and_the_interval_is_said() -> None:
    result, verdict = judged(group_of(SHIPPED, SLOWER))
    assert verdict.outcome is Outcome.FAILED
    assert "worse: facing_s 0.7557 -> 0.7891 (+0.0334, 95% interval +0.02" in verdict.message
    assert "64 seeds against the baseline of 2026-11-29: 64 different" in verdict.message
    assert verdict.cause == "seed 0 first differs at step 3, action[1]: 1.0 then, 0.95 now"
    trends = {trend.metric: trend for trend in result.trends}
    facing = trends["facing_s"]
    assert facing.trend == "worse"
    assert facing.p_corrected is not None
    assert facing.p_corrected < 1e-9
    assert facing.low is not None
    assert facing.low > 0.02
    # What a suite would look at first does not show it at 64 seeds: the noise of the way to the dock is larger.
    assert trends["time_s"].trend == trends["pass rate"].trend == "indistinguishable"


def test_the_unchanged_controller_is_never_called_different_in_200_repetitions() -> None:
    groups = [group_of(SHIPPED, SHIPPED, name=f"t{number}") for number in range(200)]
    found = compare_all(groups)
    assert {each.result.standing for each in found} == {"identical"}
    verdicts = [verdict_of(each) for each in found]
    assert {verdict.outcome for verdict in verdicts} == {Outcome.PASSED}
    assert not any(each.result.variance for each in found)


def test_seeds_that_give_what_other_seeds_gave_are_not_called_different() -> None:
    # As a simulator that is not repeatable would: each time other situations, from the same distribution.
    draw, different = random.Random(5), 0
    for _ in range(20):
        order = draw.sample(range(64), 64)
        shuffled = {name: [values[place] for place in order] for name, values in SHIPPED.items()}
        result, _ = judged(group_of(SHIPPED, shuffled))
        different += any(trend.trend != "indistinguishable" for trend in result.trends)
    assert different == 0


def test_a_regression_among_many_unchanged_groups_is_still_seen() -> None:
    groups = [group_of(SHIPPED, SHIPPED, name=f"t{number}") for number in range(40)]
    found = compare_all([*groups, group_of(SHIPPED, SLOWER)])
    assert [verdict_of(each).outcome for each in found].count(Outcome.FAILED) == 1
    assert verdict_of(found[-1]).outcome is Outcome.FAILED


def test_it_is_better_the_other_way_round_and_that_warns() -> None:
    result, verdict = judged(group_of(SLOWER, SHIPPED))
    assert verdict.outcome is Outcome.WARNED
    assert "better: facing_s 0.7891 -> 0.7557 (-0.0334" in verdict.message
    assert verdict.next_step == "if the change is meant, record it: pytest --microsim-baseline update"
    assert result.standing == "different"


def test_a_baseline_of_another_machine_is_shown_and_not_compared() -> None:
    other = baseline_of(SHIPPED, {**HERE, "cpu.model": "b"})
    result, verdict = judged(group_of(SHIPPED, SLOWER, baseline=other))
    assert result.standing == "not comparable"
    assert result.trends == []
    assert result.environment[0].startswith("cpu.model is 'b' in the baseline and 'a' now")
    assert (result.identical, result.different) == (0, 0)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.message.index("cpu.model is 'b'") < verdict.message.index("facing_s 0.7891 (0.7557 then)")
    _, verdict = judged(group_of(SHIPPED, SHIPPED, baseline=other, wishes={"must": "tolerance"}))
    assert verdict.outcome is Outcome.FAILED


def test_a_knob_that_the_test_does_not_depend_on_is_said_and_the_metrics_compared() -> None:
    other = baseline_of(SHIPPED, {**HERE, "digest": "older"})
    result, verdict = judged(group_of(SHIPPED, SLOWER, baseline=other, wishes={"across": ["digest"]}))
    assert result.standing == "different"
    assert verdict.outcome is Outcome.FAILED
    assert verdict.message.startswith("digest is 'older' in the baseline and 'd' now")


def test_the_hosts_kernel_is_said_first() -> None:
    _, verdict = judged(group_of(SHIPPED, SHIPPED, baseline=baseline_of(SHIPPED, host="Linux 5")))
    assert verdict.message.startswith("the host is 'Linux 5' in the baseline and 'h' now; 64 seeds")
    assert verdict.outcome is Outcome.PASSED


def test_what_must_be_identical_and_is_not_fails_though_nothing_got_worse() -> None:
    moved = {**SHIPPED, "heading_error": [value + 1e-12 for value in SHIPPED["heading_error"]]}
    _, verdict = judged(group_of(SHIPPED, moved))
    assert verdict.outcome is Outcome.WARNED
    assert "no metric differs" in verdict.message
    _, verdict = judged(group_of(SHIPPED, moved, wishes={"must": "identical"}))
    assert verdict.outcome is Outcome.FAILED
    assert "all must be identical" in verdict.message


def test_a_group_that_was_cut_short_is_not_assessed() -> None:
    result, verdict = judged(group_of(SHIPPED, SLOWER, seeds=20, expected=64))
    assert verdict.outcome is Outcome.NOT_ASSESSED
    assert result.trends == []
    assert "20 of 64 seeds" in verdict.message
    lost = group_of(SHIPPED, SLOWER, lost=frozenset({3}))
    assert judged(lost)[1].outcome is Outcome.NOT_ASSESSED


def test_few_seeds_are_said_to_be_few() -> None:
    _, verdict = judged(group_of(SHIPPED, SLOWER, seeds=4))
    assert verdict.outcome is Outcome.WARNED
    assert "so few seeds differ that no test could have told" in verdict.message


def test_no_baseline_and_stale_ones() -> None:
    empty = Baseline("t")
    result, verdict = judged(group_of(SHIPPED, SHIPPED, baseline=empty))
    assert (result.standing, result.missing, verdict.outcome) == ("missing", 64, Outcome.WARNED)
    _, verdict = judged(group_of(SHIPPED, SHIPPED, baseline=empty, wishes={"must": "identical"}))
    assert verdict.outcome is Outcome.FAILED
    now = group_of(SHIPPED, SHIPPED, seeds=8)
    for rollout in now.group.rollouts:
        rollout.parameters = {"load": 2}
        del rollout.metrics["time_s"]
        rollout.metrics["new"] = 1.0
    (found,) = compare_all([now])
    assert found.result.standing == "stale"
    assert found.stale[0].startswith("recorded with other parameters: 8 seeds (0, 1, 2")
    for rollout in now.group.rollouts[1:]:
        rollout.parameters = {}
    (found,) = compare_all([now])
    assert found.result.standing == "identical"
    assert found.stale == (
        "recorded with other parameters: seed 0",
        "recorded, and not run now: 56 seeds (8, 9, 10, 11, 12, 13, 14, 15, ...)",
        "metrics that are no more: time_s",
        "metrics that are not recorded: new",
    )


def test_a_baseline_that_cannot_be_read_fails() -> None:
    _, verdict = judged(group_of(SHIPPED, SHIPPED, problem="b.toml is not merged yet"))
    assert verdict.outcome is Outcome.ERROR
    assert verdict.failed


@pytest.mark.parametrize("shift", [1e-9, 0.0])
def test_a_tiny_change_that_shifts_every_seed_is_not_worse(shift: float) -> None:
    now = {**SHIPPED, "time_s": [value * (1 + shift) for value in SHIPPED["time_s"]]}
    result, verdict = judged(group_of(SHIPPED, now))
    assert verdict.outcome is (Outcome.WARNED if shift else Outcome.PASSED)
    assert all(trend.trend == "indistinguishable" for trend in result.trends)


def test_a_spread_that_shrank_is_said() -> None:
    middle = sum(SHIPPED["facing_s"]) / 64
    now = {**SHIPPED, "facing_s": [middle + 0.2 * (value - middle) for value in SHIPPED["facing_s"]]}
    result, verdict = judged(group_of(SHIPPED, now))
    assert "facing_s: the spread over seeds (standard deviation) shrank from" in verdict.message
    assert len(result.variance) == 1
