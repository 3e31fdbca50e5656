"""Seeds that were run twice, and results that can or cannot be compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_microsim.gates.comparability import compare
from pytest_microsim.gates.determinism import judge_repeats
from pytest_microsim.gates.differences import Difference
from pytest_microsim.gates.verdicts import Group, Outcome, Repeat

ALIKE = Repeat(1, ("a", "a"))
OTHER = Repeat(2, ("a", "b"), Difference("the first difference is at step 7, state[7]", step=7, distance=9))
GROUP = Group("test_docks", 4, ())


def repeated(*repeats: Repeat) -> Group:
    return replace(GROUP, repeats=repeats)


def test_the_same_each_time_passes() -> None:
    verdict = judge_repeats(repeated(ALIKE, replace(ALIKE, seed=3)))
    assert verdict.outcome is Outcome.PASSED
    assert "2 seeds run twice" in verdict.message


def test_another_episode_fails_and_says_where() -> None:
    verdict = judge_repeats(repeated(ALIKE, OTHER))
    assert verdict.outcome is Outcome.FAILED
    assert "1 of 2 repeated seeds of test_docks gave another episode" in verdict.message
    assert "seed 2: the first difference is at step 7" in verdict.message
    assert "another order" in verdict.cause


def test_fingerprints_alone_are_enough_to_fail() -> None:
    verdict = judge_repeats(repeated(replace(OTHER, difference=None)))
    assert verdict.outcome is Outcome.FAILED
    assert "no trajectory was kept" in verdict.message


def test_a_difference_at_the_reset_has_its_own_cause() -> None:
    verdict = judge_repeats(repeated(replace(OTHER, difference=Difference("at the reset", step=0, distance=1))))
    assert "the reset draws on something other than the seed" in verdict.cause


def test_many_differing_seeds_are_bounded() -> None:
    text = judge_repeats(repeated(*(replace(OTHER, seed=seed) for seed in range(40)))).message
    assert "seed 3: the first" in text
    assert "seed 4: the first" not in text
    assert "and seeds 4, 5" in text
    assert "(36 seeds)" in text


@pytest.mark.parametrize(
    ("repeat", "words"),
    [
        (Repeat(5, ("a", None)), "seed 5: a run finished no episode"),
        (
            Repeat(5, ("a", "b"), incomparable=("engine is 'qemu' in one",)),
            "engine is 'qemu'",
        ),
    ],
)
def test_what_cannot_be_compared_is_not_assessed(repeat: Repeat, words: str) -> None:
    verdict = judge_repeats(repeated(ALIKE, repeat))
    assert verdict.outcome is Outcome.NOT_ASSESSED
    assert "1 of 2 repeated seeds cannot be compared" in verdict.message
    assert words in verdict.message


@pytest.mark.parametrize(
    ("runs", "repeats", "outcome", "words"),
    [
        (2, [], Outcome.NOT_ASSESSED, "0 of 4 seeds ran twice"),
        (2, [ALIKE, replace(ALIKE, seed=3)], Outcome.NOT_ASSESSED, "2 of 4 seeds ran twice"),
        (2, [ALIKE, OTHER], Outcome.FAILED, "1 of 2 repeated seeds of test_docks gave another episode"),
        (2, [replace(ALIKE, seed=seed) for seed in range(4)], Outcome.PASSED, "4 seeds run twice, each time the same"),
        (3, [replace(ALIKE, seed=seed) for seed in range(4)], Outcome.NOT_ASSESSED, "0 of 4 seeds ran 3 times"),
        (
            3,
            [replace(ALIKE, seed=seed, run=run) for seed in range(4) for run in (2, 3)],
            Outcome.PASSED,
            "4 seeds run 3 times, each time the same",
        ),
        (3, [ALIKE, replace(OTHER, run=3)], Outcome.FAILED, "seed 2 (run 3): the first difference"),
    ],
)
def test_a_run_that_is_missing_keeps_from_passing_and_not_from_failing(
    runs: int, repeats: list[Repeat], outcome: Outcome, words: str
) -> None:
    verdict = judge_repeats(replace(GROUP, runs=runs, repeats=tuple(repeats)))
    assert verdict.outcome is outcome
    assert words in verdict.message


def test_what_was_left_to_chance_is_named_with_the_cause() -> None:
    text = judge_repeats(repeated(replace(OTHER, unpinned=("wall_clock",)))).cause
    assert text.endswith("; not pinned: wall_clock")


def test_no_repeats_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no seed of test_docks was run twice"):
        judge_repeats(GROUP)


KNOBS = {"threads": {"OMP_NUM_THREADS": "1"}, "hash_seed": 0, "wall_clock": None, "cpu": "Xeon", "engine": "qemu"}


def test_equal_environments_are_comparable() -> None:
    result = compare(KNOBS, dict(KNOBS))
    assert result.comparable
    assert str(result) == "comparable"
    assert compare({}, {}).comparable
    assert compare({"flags": ("avx", "fma")}, {"flags": ["avx", "fma"]}).comparable  # as JSON gives them back


def test_each_knob_that_differs_is_a_sentence() -> None:
    result = compare(KNOBS, KNOBS | {"threads": {"OMP_NUM_THREADS": "4"}, "cpu": "EPYC", "wall_clock": 1.7e9})
    assert not result.comparable
    assert result.knobs == ("cpu", "threads.OMP_NUM_THREADS", "wall_clock")
    text = str(result)
    assert "threads.OMP_NUM_THREADS is '1' in one and '4' in the other: sums are split among threads" in text
    assert "cpu is 'Xeon' in one and 'EPYC' in the other" in text
    assert "wall_clock is not pinned in one and 1700000000.0 in the other" in text


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"locale": "C.UTF-8"}, {}, "locale is 'C.UTF-8' in one and not recorded in the other"),
        ({"versions": {"numpy": "2.1"}}, {"versions": {}}, "versions.numpy is '2.1' in one and not recorded"),
        ({"hash_seed": 0}, {"hash_seed": False}, "hash_seed is 0 in one and False in the other"),
        ({"wall_clock": None}, {}, "wall_clock is not pinned in one and not recorded in the other"),
        ({"mine": 1}, {"mine": 2}, "mine is 1 in one and 2 in the other"),
    ],
)
def test_what_is_not_known_to_be_the_same_is_not_comparable(
    first: dict[str, object], second: dict[str, object], words: str
) -> None:
    result = compare(first, second)
    assert len(result.differences) == 1
    assert result.differences[0].startswith(words)
