"""All gates over one group: which speak, in which order, and what settings change."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from gate_groups import group, of_episodes, of_probes, of_scalars

from pytest_microsim.gates.judge import judge
from pytest_microsim.gates.variance import judge_effective_seeds
from pytest_microsim.gates.verdicts import Group, Outcome, Repeat, Sample


def full(seeds: int, *, modulo: int = 10**9) -> Group:
    samples = [
        Sample(seed, f"print {seed % modulo}", (seed,), {"wind": f"{seed}"}, {"b": float(seed), "a": seed % modulo})
        for seed in range(seeds)
    ]
    return group(samples)


def said(subject: Group) -> list[tuple[str, str, str]]:
    return [(verdict.gate, verdict.metric, verdict.outcome.value) for verdict in judge(subject)]


def test_every_gate_with_data_speaks_once_in_a_fixed_order() -> None:
    subject = replace(full(32, modulo=8), min_effective_seeds=4, repeats=(Repeat(0, ("x", "x")),))
    assert said(subject) == [
        ("T1 probe", "", "passed"),
        ("T2 fingerprint", "", "failed"),
        ("effective seeds", "", "passed"),
        ("T3 scalar", "a", "failed"),
        ("T3 scalar", "b", "passed"),
        ("determinism", "", "passed"),
    ]
    shuffled = replace(subject, samples=tuple(reversed(subject.samples)))
    assert judge(shuffled) == judge(subject)


def test_a_gate_without_data_is_silent_but_never_are_all() -> None:
    assert said(of_episodes(["a", "b"])) == [("T2 fingerprint", "", "passed")]
    assert said(of_probes([1, 2])) == [("T1 probe", "", "passed"), ("T2 fingerprint", "", "not assessed")]
    assert said(group([Sample(0, None), Sample(1, None)])) == [("T2 fingerprint", "", "not assessed")]


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"expected": 99}, "not assessed"),
        ({"variance": "off"}, "off"),
        ({"deterministic": True}, "off"),
    ],
)
def test_a_group_that_is_not_judged_says_so_once(changes: dict[str, object], outcome: str) -> None:
    assert said(replace(full(8), **changes)) == [("T2 fingerprint", "", outcome)]  # type: ignore[arg-type]
    assert said(full(1)) == [("T2 fingerprint", "", "not assessed")]


def test_strict_makes_the_inconclusive_fail_and_nothing_else() -> None:
    constant = of_scalars([1.0] * 8)
    assert [verdict.outcome for verdict in judge(constant)] == [Outcome.NOT_ASSESSED, Outcome.INCONCLUSIVE]
    verdicts = judge(replace(constant, strict=True))
    assert [verdict.outcome for verdict in verdicts] == [Outcome.NOT_ASSESSED, Outcome.FAILED]
    assert "strict" in verdicts[1].message
    assert judge(replace(full(32), strict=True)) == judge(full(32))


def test_repeats_are_judged_in_a_partial_group_too() -> None:
    subject = replace(full(8), expected=99, deterministic=True, repeats=(Repeat(0, ("x", "y")),))
    assert said(subject) == [("T2 fingerprint", "", "off"), ("determinism", "", "failed")]


def test_a_test_without_seeds_is_judged_by_its_repeats_alone() -> None:
    subject = replace(full(1), over_seeds=False, runs=2)
    assert said(replace(subject, repeats=(Repeat(0, ("x", "x")),))) == [("determinism", "", "passed")]
    assert said(subject) == [("determinism", "", "not assessed")]


@pytest.mark.parametrize(("wanted", "outcome"), [(8, Outcome.PASSED), (9, Outcome.FAILED)])
def test_a_demand_for_effective_seeds_is_held_to_the_whole_number(wanted: int, outcome: Outcome) -> None:
    subject = of_episodes([str(seed % 8) for seed in range(64)], min_effective_seeds=wanted, variance="off")
    verdict = judge_effective_seeds(subject)
    assert verdict.outcome is outcome
    assert verdict.n_eff == 8
    if outcome is Outcome.FAILED:
        assert (
            "64 seeds of test_docks amount to 8.0 independent episodes (N_eff = 8.0), and its test asks for 9"
            in str(verdict)
        )
        assert "equal seed % 8" in verdict.cause


def test_too_few_seeds_for_the_demand_are_named_as_the_cause() -> None:
    verdict = judge_effective_seeds(of_episodes(["a", "b", "c"], min_effective_seeds=32))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.cause == "the group has only 3 seeds"
    assert "over 32 seeds or more" in verdict.next_step
    both = judge_effective_seeds(of_episodes(["a", "a", "c"], min_effective_seeds=32))
    assert both.cause.startswith("the group has only 3 seeds; and ")


@pytest.mark.parametrize(
    ("subject", "outcome", "words"),
    [
        (of_episodes(["a", "a"], min_effective_seeds=2, deterministic=True), Outcome.OFF, "deterministic"),
        (of_episodes(["a", "a"], min_effective_seeds=2, expected=9), Outcome.NOT_ASSESSED, "2 of 9 seeds ran"),
        (of_episodes(["a", None], min_effective_seeds=2), Outcome.NOT_ASSESSED, "1 of 2 seeds finished"),
        (of_episodes([None, None], min_effective_seeds=2), Outcome.INCONCLUSIVE, "none of its 2 seeds finished"),
        (of_episodes(["a"], min_effective_seeds=1), Outcome.PASSED, "1 are asked for"),
    ],
)
def test_when_a_demand_cannot_be_judged(subject: Group, outcome: Outcome, words: str) -> None:
    verdict = judge_effective_seeds(subject)
    assert verdict.outcome is outcome
    assert words in verdict.message


def test_no_demand_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="demands no number"):
        judge_effective_seeds(full(4))


def test_workers_of_clones_are_the_cause_that_t2_names() -> None:
    samples = [Sample(seed, f"w{seed * 7 % 3}", (seed,), worker=f"gw{seed * 7 % 3}") for seed in range(12)]
    (verdict,) = judge(group(samples))
    assert verdict.outcome is Outcome.FAILED
    assert "the rollouts of one worker are all one episode (gw0, gw1, gw2)" in verdict.cause


def test_the_gates_need_nothing_but_the_standard_library() -> None:
    names = "causes comparability determinism differences fingerprints judge occupancy partitions probes purity scalars"
    program = (
        "import sys; before = set(sys.modules)\n"
        f"for name in {names.split()!r}: __import__('pytest_microsim.gates.' + name)\n"
        "roots = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(roots - sys.stdlib_module_names))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "['pytest_microsim']"
