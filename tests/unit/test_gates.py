"""Fingerprints, and gate T2 over them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np
import pytest

from pytest_microsim.gates.fingerprints import Fingerprint, combined, fingerprint_of_columns
from pytest_microsim.gates.variance import clusters_of, effective_size, judge_fingerprints
from pytest_microsim.gates.verdicts import Group, Outcome, Sample


@dataclass
class Numbers:
    """A column, as far as fingerprints look at it."""

    data: bytes
    dtype: str = "<f8"
    shape: tuple[int, ...] = (2,)


def doubles(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


def group(prints: list[str | None], **changes: object) -> Group:
    samples = tuple(Sample(seed, text, (seed,)) for seed, text in enumerate(prints))
    return replace(Group("test_docks", len(prints), samples), **changes)  # type: ignore[arg-type]


def test_equal_columns_have_equal_fingerprints_whatever_their_order() -> None:
    first = {"reward": Numbers(doubles(1, 2)), "state": Numbers(doubles(3, 4))}
    second = {"state": Numbers(doubles(3, 4)), "reward": Numbers(doubles(1, 2))}
    assert fingerprint_of_columns(first) == fingerprint_of_columns(second)
    assert len(fingerprint_of_columns(first)) == 32


@pytest.mark.parametrize(
    "other",
    [
        {"state": Numbers(doubles(1, 2.0000000000000004))},
        {"state": Numbers(doubles(1, 2), dtype="<i8")},
        {"state": Numbers(doubles(1, 2), shape=(1, 2))},
        {"speed": Numbers(doubles(1, 2))},
        {"state": Numbers(doubles(1, 2)), "more": Numbers(b"", shape=(0,))},
        {"state": Numbers(doubles(-1, 2))},
        {},
    ],
)
def test_any_difference_changes_the_fingerprint(other: dict[str, Numbers]) -> None:
    assert fingerprint_of_columns(other) != fingerprint_of_columns({"state": Numbers(doubles(1, 2))})


def test_signs_of_zero_and_bits_of_nan_count() -> None:
    quiet, other = struct.pack("<Q", 0x7FF8000000000000), struct.pack("<Q", 0x7FF8000000000001)
    prints = {fingerprint_of_columns({"x": Numbers(data)}) for data in (doubles(0), doubles(-0.0), quiet, other)}
    assert len(prints) == 4


def test_values_of_a_hand_driven_episode_do_not_run_together() -> None:
    def of(value: object) -> str:
        fingerprint = Fingerprint()
        fingerprint.add(value)
        return fingerprint.hexdigest()

    values = [None, 0, 1, True, 1.0, "1", b"1", [1, 2], [[1], 2], [12], {"a": 1}, {"a": [1]}, ["a", 1], ""]
    assert len({of(value) for value in values}) == len(values)
    assert of({"a": 1, "b": 2}) == of({"b": 2, "a": 1})
    assert of(np.arange(3.0)) == of(np.arange(3.0))
    assert of(np.arange(3.0)) != of(np.arange(3))
    with pytest.raises(TypeError):
        of(object())


def test_a_rollout_of_several_episodes_has_one_fingerprint() -> None:
    assert combined(["a", "b"]) != combined(["b", "a"])
    assert combined(["a"]) == combined(["a"])


@pytest.mark.parametrize(("sizes", "expected"), [([1] * 64, 64), ([64], 1), ([8] * 8, 8), ([3, 1], 1.6)])
def test_effective_size(sizes: list[int], expected: float) -> None:
    assert effective_size(sizes) == pytest.approx(expected)


def test_all_different_passes() -> None:
    verdict = judge_fingerprints(group([str(k) for k in range(64)]))
    assert verdict.outcome is Outcome.PASSED
    assert (verdict.n, verdict.n_eff, verdict.clusters) == (64, 64, ())


def test_all_equal_fails_and_says_that_the_seed_never_arrived() -> None:
    verdict = judge_fingerprints(group(["same"] * 16))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.n_eff == 1
    assert verdict.clusters == (tuple(range(16)),)
    text = str(verdict)
    assert "16 seeds of test_docks amount to 1.0 independent episodes (N_eff = 1.0, and at most 12 of 16 fails)" in text
    assert "the seed never reached the world" in text
    assert "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ... (16 seeds)" in text
    assert "next step" in text


@pytest.mark.parametrize(
    ("prints", "cause"),
    [
        ([str(k % 8) for k in range(64)], "equal seed % 8"),
        ([str(k // 4) for k in range(64)], "equal seed // 4"),
        (["a", "b", "a", "a"], "some of the world's randomness"),
    ],
)
def test_the_pattern_of_copies_names_the_cause(prints: list[str], cause: str) -> None:
    verdict = judge_fingerprints(group(prints))
    assert verdict.outcome is Outcome.FAILED
    assert cause in verdict.cause


def test_the_test_passing_one_seed_to_all_is_named() -> None:
    samples = tuple(Sample(seed, "same", (5,)) for seed in range(4))
    assert "run(seed=...)" in judge_fingerprints(Group("t", 4, samples)).cause


def test_reseeding_switched_off_is_named() -> None:
    assert "reseed=False" in judge_fingerprints(group(["same"] * 4, reseed=False)).cause


def test_the_threshold_is_three_quarters_inclusive() -> None:
    # One pair among 6: N_eff = 36 / 8 = 4.5 = 0.75 * 6 fails; among 7: 49 / 9 = 5.44 > 5.25 warns.
    assert judge_fingerprints(group(["p", "p", *"abcd"])).outcome is Outcome.FAILED
    verdict = judge_fingerprints(group(["p", "p", *"abcde"]))
    assert verdict.outcome is Outcome.WARNED
    assert verdict.clusters == ((0, 1),)


def test_many_clusters_are_listed_up_to_a_bound() -> None:
    text = str(judge_fingerprints(group([str(k // 2) for k in range(400)])))
    assert "... and 192 more clusters" in text
    assert len(text) < 2000


@pytest.mark.parametrize("changes", [{"variance": "off"}, {"deterministic": True}])
def test_the_marker_can_switch_the_gate_off(changes: dict[str, object]) -> None:
    assert judge_fingerprints(group(["same"] * 4, **changes)).outcome is Outcome.OFF


def test_the_marker_can_turn_failure_into_a_warning() -> None:
    assert judge_fingerprints(group(["same"] * 4, variance="warn")).outcome is Outcome.WARNED


@pytest.mark.parametrize(
    ("prints", "expected", "words"),
    [
        (["a"], 1, "one seed"),
        (["same"] * 5, 64, "5 of 64 seeds ran"),
        (["same", None, "same"], 3, "2 of 3 seeds finished an episode"),
        ([None], 1, "0 of 1 seeds finished"),
    ],
)
def test_partial_groups_are_not_assessed(prints: list[str | None], expected: int, words: str) -> None:
    verdict = judge_fingerprints(group(prints, expected=expected))
    assert verdict.outcome is Outcome.NOT_ASSESSED
    assert words in verdict.message


def test_clusters_come_largest_first() -> None:
    samples = [Sample(seed, text) for seed, text in enumerate(["a", "b", "b", None])]
    assert clusters_of(samples) == [(1, 2), (0,)]


def test_a_large_group_is_judged_quickly() -> None:
    verdict = judge_fingerprints(group([str(k % 2500) for k in range(5000)]))
    assert verdict.outcome is Outcome.FAILED
