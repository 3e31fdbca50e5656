"""Results put together from what reports carry."""

from __future__ import annotations

import math
from typing import Any

import pytest
from results_samples import rollout_of

from pytest_microsim.gates.verdicts import Outcome, Verdict
from pytest_microsim.results.gathering import complete, finite, group_of, phases_of, rate_of

FACTS: dict[str, Any] = {
    "key": "t.py::test[a]", "test": "t.py::test", "parameters": "a", "location": ["t.py", 4, "test"], "scenario": "",
    "tags": ["slow"], "world": "w", "environment": {"wall_clock": None}, "expected": 3, "asked_rate": None,
    "schedules": 0,
}  # fmt: skip


def test_only_what_a_test_had_its_say_in_counts_for_its_pass_rate_and_each_seed_once() -> None:
    rollouts = [
        rollout_of(1),
        rollout_of(1, "failed", run=2),
        rollout_of(2, "failed"),
        rollout_of(3, "missed"),
        rollout_of(4, "error"),
        rollout_of(5, "skipped"),
    ]
    rate = rate_of(rollouts)
    assert rate is not None
    assert (rate.passed, rate.total, rate.confidence) == (1, 3, 0.95)
    assert rate.low < 1 / 3 < rate.high
    assert rate_of(rollouts[4:]) is None


def test_a_group_is_complete_once_each_seed_has_been_tried() -> None:
    assert complete(group_of(FACTS, [rollout_of(1), rollout_of(2, "failed"), rollout_of(3, "missed")], []))
    assert not complete(group_of(FACTS, [rollout_of(1), rollout_of(2), rollout_of(3, "error")], []))
    assert not complete(group_of(FACTS, [], []))


def test_seeds_are_in_order_of_their_numbers_and_runs() -> None:
    rollouts = [rollout_of(10), rollout_of(9, run=2), rollout_of(9), rollout_of(2)]
    group = group_of(FACTS, rollouts, [])
    assert [(each.seed, each.run) for each in group.rollouts] == [("2", 1), ("9", 1), ("9", 2), ("10", 1)]
    assert (group.name, group.location, group.tags) == ("t.py::test[a]", "t.py:5", ["slow"])


@pytest.mark.parametrize(
    ("outcome", "n_eff"),
    [(Outcome.PASSED, 2.5), (Outcome.FAILED, 2.5), (Outcome.WARNED, 2.5), (Outcome.OFF, None),
     (Outcome.NOT_ASSESSED, None), (Outcome.ERROR, None)],
)  # fmt: skip
def test_what_was_not_assessed_has_no_effective_seeds(outcome: Outcome, n_eff: float | None) -> None:
    verdicts = [
        Verdict("T1 probe", "g", Outcome.PASSED, "m", n_eff=9.0),
        Verdict("T2 fingerprint", "g", outcome, "m", n=3, n_eff=2.5, clusters=((2**70, 1),), cause="c", next_step="s"),
    ]
    group = group_of(FACTS, [], verdicts)
    assert group.n_eff == n_eff
    assert group.verdicts[1].outcome == outcome.value
    assert group.verdicts[1].clusters == [[str(2**70), "1"]]


def test_numbers_that_json_cannot_have_are_null() -> None:
    assert finite({"a": 1, "b": True, "c": math.nan, "d": -math.inf, "e": "x", "f": 10**400}) == {
        "a": 1.0, "b": 1.0, "c": None, "d": None, "e": None, "f": None,
    }  # fmt: skip


def test_phases_count_from_the_beginning_of_the_run_and_are_in_order() -> None:
    first, second = phases_of([("fork", 12.5, 0.25), ("test", 12.0, 1.0)], 10.0)
    assert (first.name, first.start_s, first.duration_s) == ("test", 2.0, 1.0)
    assert (second.name, second.start_s) == ("fork", 2.5)
