"""What an episode missed, and whether enough seeds of a group passed."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scenario_files import scenario
from scipy import stats

from pytest_microsim.errors import ScenarioError
from pytest_microsim.gates.verdicts import Outcome
from pytest_microsim.results.gathering import rate_of
from pytest_microsim.results.model import AskedRate, GroupResult, RolloutResult
from pytest_microsim.scenarios.expectations import directions, misses
from pytest_microsim.scenarios.judging import PassRates
from pytest_microsim.scenarios.passrate import assess, seeds_needed
from pytest_microsim.scenarios.spec import PassRate


def test_bounds_on_one_side_say_which_direction_is_better(tmp_path: Path) -> None:
    written = scenario(
        tmp_path,
        "expect:\n  total_reward: {above: 1}\n  metrics: {a: {below: 1}, b: {at_least: 1}, c: {equals: 1}, "
        "d: {above: 0, below: 1}, e: {between: [0, 1]}}\n",
    )
    assert directions(written.document.expect) == {"total_reward": "higher", "a": "lower", "b": "higher"}


def episode(**facts: Any) -> Any:
    usual = {"metrics": {"d": 0.25, "hits": 0.0}, "total_reward": 1.5, "steps": 40, "terminated": True}
    return SimpleNamespace(**usual | facts)


@pytest.mark.parametrize(
    ("expect", "missed"),
    [
        ("metrics: {d: {below: 0.3, above: 0.2}, hits: {equals: 0}}", []),
        ("metrics: {d: {at_most: 0.25, at_least: 0.25, between: [0.25, 0.25]}}", []),
        ("metrics: {d: {below: 0.25}}", ["d is 0.25, and has to be below 0.25"]),
        ("metrics: {d: {above: 0.25}}", ["d is 0.25, and has to be above 0.25"]),
        ("metrics: {d: {at_most: 0.2}}", ["d is 0.25, and has to be at most 0.2"]),
        ("metrics: {d: {at_least: 1}}", ["d is 0.25, and has to be at least 1"]),
        ("metrics: {hits: {equals: 1}}", ["hits is 0, and has to be equal to 1"]),
        ("metrics: {d: {between: [1, 2]}}", ["d is 0.25, and has to be from 1 to 2"]),
        ("metrics: {d: {below: 0, between: [1, 2]}}", None),
        ("{metrics: {d: {below: 0}}, steps: {above: 40}}", ["d is", "steps is 40, and has to be above 40"]),
        ("{total_reward: {above: 2}}", ["total_reward is 1.5, and has to be above 2"]),
        ("{terminated: true}", []),
        ("{terminated: false}", ["the episode was terminated, and is not to be"]),
    ],
)
def test_what_an_episode_misses(tmp_path: Path, expect: str, missed: list[str] | None) -> None:
    if missed is None:  # a contradiction, which is refused before anything runs
        with pytest.raises(ScenarioError):
            scenario(tmp_path, f"expect:\n  {expect}\n")
        return
    found = misses(scenario(tmp_path, f"expect:\n  {expect}\n"), episode())
    assert len(found) == len(missed)
    for (line, text), words in zip(found, missed, strict=True):
        assert line == 3
        assert text.startswith(words)


def test_a_number_that_looks_like_its_bound_is_shown_in_full(tmp_path: Path) -> None:
    written = scenario(tmp_path, "expect:\n  metrics:\n    d: {at_most: 0.25}\n")
    ((line, text),) = misses(written, episode(metrics={"d": 0.25000000001}))
    assert (line, text) == (4, "d is 0.25000000001, and has to be at most 0.25")


@pytest.mark.parametrize("bound", ["below: 9", "above: -9", "at_most: 9", "at_least: -9", "between: [-9, 9]"])
def test_nan_is_what_nobody_expects(tmp_path: Path, bound: str) -> None:
    written = scenario(tmp_path, f"expect: {{metrics: {{d: {{{bound}}}}}}}\n")
    assert len(misses(written, episode(metrics={"d": math.nan}))) == 1


def test_a_metric_that_the_world_has_not(tmp_path: Path) -> None:
    written = scenario(tmp_path, "expect:\n  metrics:\n    hit: {equals: 0}\n")
    with pytest.raises(ScenarioError, match=r"dock\.scenario\.yaml:4: the world has no metric 'hit'") as raised:
        misses(written, episode())
    assert 'did you mean "hits"? its metrics: d, hits' in str(raised.value)


@pytest.mark.parametrize(
    ("at_least", "confidence", "needed"), [(0.95, 0.95, 59), (0.9, 0.9, 22), (0.5, 0.5, 1), (0.999, 0.99, 4603)]
)
def test_how_many_seeds_a_bound_takes(at_least: float, confidence: float, needed: int) -> None:
    rate = PassRate(at_least=at_least, confidence=confidence, by="bound")
    assert seeds_needed(rate) == needed
    assert assess(rate, needed, needed).met
    if needed > 1:
        few = assess(rate, needed - 1, needed - 1)
        assert (few.met, few.possible) == (False, False)


def test_a_rate_is_met_by_its_share_and_a_bound_by_its_lower_end() -> None:
    rate, bound = PassRate(at_least=0.95), PassRate(at_least=0.95, by="bound")
    assert assess(rate, 19, 20).met
    assert not assess(rate, 18, 20).met
    assert "19 of 20 seeds passed (0.9500; 0.95 confidence interval 0.7513 to 0.9987)" in assess(rate, 19, 20).message
    for passed in range(60, 65):
        lower = stats.beta.ppf(0.05, passed, 65 - passed)
        assert assess(bound, passed, 64).met == (lower >= 0.95)
    assert assess(PassRate(at_least=0.07), 7, 100).met
    assert (seeds_needed(rate), seeds_needed(PassRate(at_least=1.0, by="bound"))) == (1, None)


def group(outcomes: str, expected: int = 0, by: str = "rate", at_least: float = 0.75) -> GroupResult:
    kinds: dict[str, Any] = {"p": "passed", "m": "missed", "f": "failed", "e": "error"}
    rollouts = [
        RolloutResult(nodeid=f"x[{seed}]", seed=str(seed), outcome=kinds[letter])
        for seed, letter in enumerate(outcomes)
    ]
    return GroupResult(
        key="x", name="x", location="x:1", world="w", expected=expected or len(outcomes), rollouts=rollouts,
        pass_rate=rate_of(rollouts), asked_rate=AskedRate(at_least=at_least, confidence=0.95, by=by),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("judged", "outcome", "words"),
    [
        (group("pppm"), Outcome.PASSED, "3 of 4 seeds passed"),
        (group("ppmm"), Outcome.FAILED, "2 of 4 seeds passed"),
        (group("mmmm"), Outcome.FAILED, "0 of 4 seeds passed"),
        (group("ppp", expected=4), Outcome.NOT_ASSESSED, "3 of 4 seeds have passed or missed"),
        (group("pppe"), Outcome.NOT_ASSESSED, "3 of 4 seeds have passed or missed"),
        (group("pppf"), Outcome.NOT_ASSESSED, "1 of 4 seeds failed on their own"),
        (group("", expected=4), Outcome.NOT_ASSESSED, "0 of 4 seeds"),
        (group("pppp", by="bound"), Outcome.INCONCLUSIVE, "so few seeds cannot show it"),
        (group("p" * 11, by="bound"), Outcome.PASSED, "11 of 11"),
        (group("p" * 10 + "m", by="bound"), Outcome.FAILED, "10 of 11"),
    ],
)
def test_the_judge_of_pass_rates(judged: GroupResult, outcome: Outcome, words: str) -> None:
    (verdict,) = PassRates().judge([judged])["x"]
    assert (verdict.outcome, verdict.gate) == (outcome, "pass rate")
    assert words in verdict.message
    assert ("seeds 2, 3" in verdict.cause) == (judged.rollouts[2:3] != [] and verdict.message.startswith("2 of 4"))


def test_groups_that_ask_for_no_rate_are_left_alone() -> None:
    other = group("mm")
    other.asked_rate = None
    assert PassRates().judge([other]) == {}
