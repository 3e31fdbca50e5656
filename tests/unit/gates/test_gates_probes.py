"""Gate T1: generators that repeat."""

from __future__ import annotations

import random

import pytest
from gate_groups import group, of_probes

from pytest_microsim.gates.probes import judge_probes
from pytest_microsim.gates.verdicts import Group, Outcome, Sample


def honest(seeds: int) -> list[int]:
    rng = random.Random(seeds)
    return [rng.getrandbits(64) for _ in range(seeds)]


def test_all_different_passes() -> None:
    (verdict,) = judge_probes(of_probes(honest(64)))
    assert (verdict.outcome, verdict.n, verdict.n_eff) == (Outcome.PASSED, 64, 64)
    assert "'world.wind'" in verdict.message


def test_one_pair_fails_and_is_named() -> None:
    bits = honest(64)
    bits[40] = bits[7]
    (verdict,) = judge_probes(of_probes(bits))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.clusters == ((7, 40),)
    assert verdict.metric == "world.wind"
    text = str(verdict)
    assert "generator 'world.wind' drew the same 64 bits under different seeds" in text
    assert "64 seeds of test_docks amount to 62.1" in text
    assert "probability below 1e-16" in text  # 64**2 / 2**65
    assert "seeds 7, 40" in text
    assert "next step" in text


@pytest.mark.parametrize(
    ("bits", "cause"),
    [
        ([5] * 16, "the seed never reached the generator"),
        ([seed % 8 for seed in range(16)], "equal seed % 8"),
        ([seed // 2 for seed in range(16)], "equal seed // 2"),
        ([0, 0, *range(2, 16)], "in some forks (such as those of seeds 0, 1)"),
    ],
)
def test_the_pattern_names_the_cause(bits: list[int], cause: str) -> None:
    (verdict,) = judge_probes(of_probes(bits))
    assert verdict.outcome is Outcome.FAILED
    assert cause in verdict.cause


def test_workers_that_fork_copies_are_named() -> None:
    samples = [
        Sample(seed, None, probes={"wind": "aa" if seed % 3 == 1 else str(seed)}, worker=f"gw{seed % 3}")
        for seed in range(12)
    ]
    (verdict,) = judge_probes(group(samples))
    assert verdict.clusters == ((1, 4, 7, 10),)
    assert "one worker draw the same (gw1)" in verdict.cause


def test_reseeding_switched_off_is_named() -> None:
    (verdict,) = judge_probes(of_probes([1] * 4, reseed=False))
    assert verdict.outcome is Outcome.FAILED
    assert "reseed=False" in verdict.cause


def test_sources_with_the_same_copies_share_a_verdict_and_others_have_their_own() -> None:
    samples = [
        Sample(seed, None, probes={"b": "same", "a": "same", "half": str(seed // 2), "fine": str(seed)})
        for seed in range(8)
    ]
    verdicts = judge_probes(group(samples))
    assert [(verdict.metric, verdict.outcome) for verdict in verdicts] == [
        ("a, b", Outcome.FAILED),
        ("half", Outcome.FAILED),
        ("fine", Outcome.PASSED),
    ]
    assert "each of the generators 'a', 'b' drew" in verdicts[0].message


def test_a_source_that_some_seeds_lack_is_said() -> None:
    late: list[dict[str, str]] = [{}, {}, *({"late": str(seed)} for seed in range(2, 6))]
    samples = [Sample(seed, None, probes={"wind": str(seed)} | late[seed]) for seed in range(6)]
    verdicts = judge_probes(group(samples))
    assert [verdict.outcome for verdict in verdicts] == [Outcome.INCONCLUSIVE, Outcome.PASSED]
    assert "'late' is missing in seeds 0, 1: 4 of 6 seeds" in verdicts[0].message


def test_copies_are_found_and_gaps_said_in_one_source() -> None:
    samples = [Sample(seed, None, probes={"late": "same"} if seed > 1 else {"wind": str(seed)}) for seed in range(4)]
    late = judge_probes(group(samples))[0]
    assert late.outcome is Outcome.FAILED
    assert late.clusters == ((2, 3),)
    assert "seeds 0, 1 do not have it" in late.message


@pytest.mark.parametrize(
    ("subject", "outcome", "words"),
    [
        (of_probes([1, 1], expected=4), Outcome.NOT_ASSESSED, "2 of 4 seeds ran"),
        (of_probes([1]), Outcome.NOT_ASSESSED, "one seed"),
        (
            group([Sample(0, None, probes={"a": "1"}), Sample(1, None)]),
            Outcome.NOT_ASSESSED,
            "1 of 2 seeds were probed",
        ),
        (of_probes([1, 1], variance="off"), Outcome.OFF, 'variance="off"'),
        (of_probes([1, 1], deterministic=True), Outcome.OFF, "deterministic=True"),
        (of_probes([1, 1], variance="warn"), Outcome.WARNED, "same 64 bits"),
    ],
)
def test_when_nothing_fails(subject: Group, outcome: Outcome, words: str) -> None:
    (verdict,) = judge_probes(subject)
    assert verdict.outcome is outcome
    assert words in verdict.message
