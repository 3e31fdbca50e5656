"""Gate T3: recorded numbers that follow a part of the seed, or the worker."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

import pytest
from gate_groups import group, of_scalars

from pytest_microsim.gates import partitions
from pytest_microsim.gates.scalars import judge_scalars
from pytest_microsim.gates.verdicts import Group, Outcome, Sample


def measured(key: object) -> float:
    return random.Random(str(key)).gauss(0.0, 1.0)


@pytest.mark.parametrize(
    ("values", "rule", "n_eff"),
    [
        ([measured(seed % 8) for seed in range(32)], "seed % 8", 8),
        ([measured(seed % 16) for seed in range(32)], "seed % 16", 16),
        ([measured(seed // 4) for seed in range(32)], "seed // 4", 8),
        ([measured(seed % 8) > 0 for seed in range(64)], "seed % 8", 8),
        ([measured(seed % 12) for seed in range(50)], "seed % 12", 50 * 50 / (12 * 16 + 2)),
    ],
)
def test_a_number_that_follows_a_part_of_the_seed_fails(values: Sequence[object], rule: str, n_eff: float) -> None:
    (verdict,) = judge_scalars(of_scalars(values))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.metric == "distance"
    assert f"parts of {rule}," in verdict.message
    assert f"equal {rule}, equal value" in verdict.cause
    assert verdict.n_eff == pytest.approx(n_eff)
    assert "next step" in str(verdict)


def test_the_message_names_test_metric_sizes_probability_and_copies() -> None:
    (verdict,) = judge_scalars(of_scalars([measured(seed % 8) for seed in range(32)]))
    text = str(verdict)
    # 8! / (32! / 4!**8), of 30 partitions: moduli and blocks from 2 to 16.
    p = math.factorial(8) * math.factorial(4) ** 8 / math.factorial(32)
    assert (
        "metric 'distance' of test_docks is constant within 8 of 8 parts of seed % 8, 4 seeds each: its 32 values "
        f"amount to 8.0 (N_eff = 8.0; independent seeds do that with probability {p:.1e}, and at most 3e-08 fails)"
    ) in text
    assert "seeds 0, 8, 16, 24\n" in text


def test_some_parts_are_enough_where_they_are_too_many() -> None:
    values = [measured(seed % 8) for seed in range(64)]
    for seed in (3, 12):
        values[seed] = measured(f"other {seed}")
    (verdict,) = judge_scalars(of_scalars(values))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.n_eff > 8


def test_workers_that_repeat_are_found_whatever_their_sizes() -> None:
    workers = [0, 1, 2, 0, 0, 1, 2, 2, 1, 0, 2, 1, 1, 0, 2, 0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 1, 0, 2, 1, 0, 0, 0]
    samples = [
        Sample(seed, None, scalars={"distance": measured(worker)}, worker=f"gw{worker}")
        for seed, worker in enumerate(workers)
    ]
    (verdict,) = judge_scalars(group(samples))
    assert verdict.outcome is Outcome.FAILED
    assert "3 of 3 parts of worker" in verdict.message
    assert "as long as the worker" in verdict.cause


def test_reseeding_switched_off_is_named() -> None:
    (verdict,) = judge_scalars(of_scalars([measured(seed % 8) for seed in range(32)], reseed=False))
    assert "reseed=False" in verdict.cause


@pytest.mark.parametrize(
    "values",
    [
        [measured(seed) for seed in range(32)],
        [True] * 31 + [False],
        [measured(seed) > 0 for seed in range(128)],
        [measured("same")] * 30 + [measured(1), measured(2)],
        [0.0, -0.0] * 16,
    ],
)
def test_ties_alone_do_not_fail(values: Sequence[object]) -> None:
    (verdict,) = judge_scalars(of_scalars(values))
    assert verdict.outcome in (Outcome.PASSED, Outcome.INCONCLUSIVE)


def test_seeds_that_are_no_range_are_judged() -> None:
    seeds = random.Random(3).sample(range(10**12), 48)
    samples = [Sample(seed, None, scalars={"distance": measured(seed % 6)}) for seed in seeds]
    (verdict,) = judge_scalars(group(samples))
    assert verdict.outcome is Outcome.FAILED
    assert "seed % 6" in verdict.message
    assert all(len({seed % 6 for seed in cluster}) == 1 for cluster in verdict.clusters)


@pytest.mark.parametrize("values", [[3.5] * 16, [True] * 15 + [False]])
@pytest.mark.parametrize(
    ("episodes", "outcome", "words"),
    [
        (0, Outcome.INCONCLUSIVE, "and there is no episode to tell more"),
        (15, Outcome.NOT_ASSESSED, "and 15 of 16 seeds finished an episode"),
        (16, Outcome.PASSED, "the episodes tell whether the seeds differ"),
    ],
)
def test_what_can_tell_nothing_passes_only_beside_episodes(
    values: list[object], episodes: int, outcome: Outcome, words: str
) -> None:
    # That generators were given different seeds does not show that the number has anything to do with them.
    samples = [
        Sample(seed, "f" if seed < episodes else None, scalars={"distance": value}, probes={"world.wind": str(seed)})
        for seed, value in enumerate(values)
    ]
    (verdict,) = judge_scalars(group(samples))
    assert verdict.outcome is outcome
    assert words in verdict.message
    assert ("unchecked=['distance']" in verdict.next_step) is (outcome is Outcome.INCONCLUSIVE)


def test_each_metric_has_its_verdict_and_shares_the_level() -> None:
    samples = [
        Sample(seed, None, scalars={"b": measured(seed), "a": measured(seed % 8), "c": 1.0}) for seed in range(32)
    ]
    verdicts = judge_scalars(group(samples))
    assert [(verdict.metric, verdict.outcome) for verdict in verdicts] == [
        ("a", Outcome.FAILED),
        ("b", Outcome.PASSED),
        ("c", Outcome.INCONCLUSIVE),
    ]
    assert "at most 1e-08 fails" in verdicts[0].message  # 1e-6 / (30 partitions * 3 metrics)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (math.nan, "is NaN in seeds 2, 5"),
        (math.inf, "is infinite in seeds 2, 5"),
        (-math.inf, "is infinite in seeds 2, 5"),
        (True, "a number in seed 0, a bool in seed 2"),
        ("far", "a number in seed 0, a str in seed 2"),
        (None, "a NoneType in seed 2"),
    ],
)
def test_values_that_cannot_be_compared_are_errors(bad: object, words: str) -> None:
    (verdict,) = judge_scalars(of_scalars([0.5, 1, bad, 2.5, 3, bad, 4]))
    assert verdict.outcome is Outcome.ERROR
    assert verdict.failed
    assert "metric 'distance' of test_docks" in verdict.message
    assert words in verdict.message


def test_a_metric_that_some_seeds_lack_is_not_assessed() -> None:
    samples = [Sample(seed, None, scalars={"lap": 1.0} if seed else {}) for seed in range(4)]
    (verdict,) = judge_scalars(group(samples))
    assert verdict.outcome is Outcome.NOT_ASSESSED
    assert "3 of 4 seeds have it; it is missing in seeds 0" in verdict.message


@pytest.mark.parametrize(
    ("lap", "outcomes"), [(1.0, []), (math.nan, [Outcome.ERROR])], ids=["a number", "one that is wrong all the same"]
)
def test_a_metric_that_went_missing_with_its_episode_is_not_said_again(lap: float, outcomes: list[Outcome]) -> None:
    samples = [Sample(seed, str(seed) if seed else None, scalars={"lap": lap} if seed else {}) for seed in range(4)]
    assert [verdict.outcome for verdict in judge_scalars(group(samples))] == outcomes
    # Of a seed that has finished its episode, it is said.
    samples[3] = Sample(3, "3")
    assert Outcome.PASSED not in {verdict.outcome for verdict in judge_scalars(group(samples))}
    assert len(judge_scalars(group(samples))) == 1


@pytest.mark.parametrize(
    ("subject", "outcome"),
    [
        (of_scalars([1.0, 1.0], expected=4), Outcome.NOT_ASSESSED),
        (of_scalars([1.0]), Outcome.NOT_ASSESSED),
        (of_scalars([1.0, 1.0], variance="off"), Outcome.OFF),
        (of_scalars([math.nan, 1.0], deterministic=True), Outcome.OFF),
        (of_scalars([measured(seed % 8) for seed in range(32)], variance="warn"), Outcome.WARNED),
    ],
)
def test_when_nothing_fails(subject: Group, outcome: Outcome) -> None:
    (verdict,) = judge_scalars(subject)
    assert verdict.outcome is outcome


def test_partitions_have_parts_of_one_size_and_are_fixed_by_the_seeds() -> None:
    found = {partition.rule: partition for partition in partitions.candidates(tuple(range(11)), ("gw0",) * 11)}
    assert set(found) == {f"seed {sign} {number}" for sign in ("%", "//") for number in range(2, 6)}
    assert found["seed % 4"].parts == ((0, 4, 8), (1, 5, 9), (2, 6, 10))  # (3, 7) is smaller
    assert found["seed // 5"].parts == ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))
    for partition in found.values():
        flat = [position for part in partition.parts for position in part]
        assert len(flat) == len(set(flat))
        assert {len(part) for part in partition.parts} == {partition.size}
        assert [mask for _, mask in partition.masks] == [sum(1 << place for place in part) for part in partition.parts]


def test_a_huge_group_is_judged_by_its_lowest_seeds_in_seconds() -> None:
    started = time.process_time()
    (verdict,) = judge_scalars(of_scalars([measured(seed % 8) > 0 for seed in range(20_000)]))
    assert verdict.outcome is Outcome.FAILED
    assert "the lowest 512 of 20000 seeds" in verdict.message
    assert time.process_time() - started < 8.0
