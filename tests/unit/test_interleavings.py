"""The race finder: what its marker may say, which tests it makes, and what the schedules of a seed come to."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from results_samples import group_of, rollout_of

from pytest_microsim.gates.determinism import judge_repeats
from pytest_microsim.gates.verdicts import Group, Outcome, Repeat, Verdict
from pytest_microsim.interleavings.judging import Schedules, overlooked
from pytest_microsim.interleavings.search import Search
from pytest_microsim.results.gathering import rate_under_schedules
from pytest_microsim.results.model import RolloutResult

SUITE = """
    import pytest

    @pytest.mark.interleavings({given})
    {more}
    def test_it(rollout):
        pass
"""


def collected(pytester: pytest.Pytester, given: str, more: str = "", *arguments: str) -> list[str]:
    path = pytester.makepyfile(SUITE.format(given=given, more=more))
    items, _ = pytester.inline_genitems(path, "--microsim-world=cartpole", *arguments)
    return [item.name for item in items]


@pytest.mark.parametrize(
    ("given", "more", "arguments", "names"),
    [
        ("2", "", (), ["schedule-0000", "schedule-0001"]),
        ("schedules=[7, 3], exhaustive=True", "", (), ["schedule-0007", "schedule-0003"]),
        ("range(99999, 100001)", "", (), ["schedule-099999", "schedule-100000"]),
        ("200", "", ("--microsim-interleavings=37,112",), ["schedule-0037", "schedule-0112"]),
        ("2", "@pytest.mark.seeds([5, 6])", (), [
            f"seed-000{seed}-schedule-000{schedule}" for seed in (5, 6) for schedule in (0, 1)
        ]),
        ("1", "@pytest.mark.parametrize('pytestconfig', [8], ids=['x'], indirect=True)", (), ["x-schedule-0000"]),
        ("2", "", ("--microsim-repeat=3",), ["schedule-0000", "schedule-0001"]),
    ],
)  # fmt: skip
def test_each_schedule_of_each_seed_is_a_test(
    pytester: pytest.Pytester, given: str, more: str, arguments: tuple[str, ...], names: list[str]
) -> None:
    assert collected(pytester, given, more, *arguments) == [f"test_it[{name}]" for name in names]


@pytest.mark.parametrize(
    ("given", "more", "words"),
    [
        ("", "", "it takes a number of schedules"),
        ("0", "", "0 is no number of schedules"),
        ("10**6", "", "1000000 is no number of schedules"),
        ("True", "", "a bool is not a list of seeds"),
        ("{1, 2}", "", "schedules are given as seeds are: a set is not a list of seeds"),
        ("[1, 1]", "", "repeated seeds: 1"),
        ("1, 2", "", "it takes one number, or one list, of schedules"),
        ("2, exhaustiv=True", "", "unknown name 'exhaustiv'"),
        ("2, exhaustive=1", "", "exhaustive is True or False, not 1"),
        ("2", "@pytest.mark.microsim(repeat=2)", "a schedule is run once"),
        ("2", "@pytest.mark.microsim(world='dds')", "no network, and that of dds is 'island'"),
    ],
)
def test_what_cannot_be_searched_is_said_at_collection(
    pytester: pytest.Pytester, given: str, more: str, words: str
) -> None:
    path = pytester.makepyfile(SUITE.format(given=given, more=more))
    result = pytester.runpytest("--co", "--microsim-world=cartpole", path)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"*{path.name}:3: @pytest.mark.interleavings: *" if "dds" not in more else "*marker*"])
    assert words in result.stdout.str()


def test_a_test_without_a_rollout_and_another_engine_are_refused(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile("import pytest\n@pytest.mark.interleavings(2)\ndef test_it():\n    pass\n")
    result = pytester.runpytest("--co", path)
    assert "a test with the marker interleavings does not use the fixture rollout" in result.stdout.str()
    for asked in (["--microsim-deterministic"], ["-o", "microsim_deterministic=true"]):
        result = pytester.runpytest("--co", "--microsim-engine=gvisor", *asked)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert "a deterministic machine runs on QEMU with TCG, and gVisor was asked for" in result.stderr.str()


def schedules(*outcomes: Any, seed: int = 7, **fields: Any) -> list[RolloutResult]:
    return [
        rollout_of(seed, outcome, run=run, schedule=str(run + 99), fingerprint=f"{run % 2}", replay=f"r{run}", **fields)
        for run, outcome in enumerate(outcomes, start=1)
    ]


def judged(rollouts: list[RolloutResult], number: int) -> list[Verdict]:
    group = group_of(*rollouts, expected=1, schedules=number)
    return list(Schedules().judge([group, group_of(rollout_of(1), name="other")])[group.key])


def test_the_first_schedule_that_fails_is_named_whichever_came_first() -> None:
    found = schedules("passed", "passed", "failed", "failed", "skipped")
    (verdict,) = judged([found[3], found[2], found[0], found[1], found[4]], 5)
    assert (verdict.outcome, verdict.reported, verdict.n) == (Outcome.FAILED, True, 4)
    assert verdict.message == (
        "schedule 102 is the first of 5 of seed 7 that fails (all 2 before it passed, 4 were run)"
    )
    assert verdict.next_step == "replay it: r3"
    assert "which thread runs when" in verdict.cause
    (verdict,) = judged(schedules("passed", "error"), 2)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.cause == ""  # such as no memory for its machine
    (verdict,) = judged([found[2]], 5)
    assert verdict.message.endswith("that fails (no other was run)")
    assert verdict.cause == ""  # it may fail under every schedule
    (verdict,) = judged([found[0], found[3]], 5)
    assert "(1 of 3 before it passed, 2 were run)" in verdict.message


def test_a_search_that_finds_nothing_says_how_rare_a_fault_it_would_have_missed() -> None:
    (verdict,) = judged(schedules(*["passed"] * 200), 200)
    assert verdict.outcome is Outcome.PASSED
    assert "200 schedules of seed 7 passed, with 2 different episodes; a fault in 1.5 % of all" in verdict.message
    assert (1 - overlooked(200)) ** 200 == pytest.approx(0.05)
    (verdict,) = judged(schedules("passed", "passed", "passed")[::2], 2)
    assert "2 schedules of seed 7 passed, all with the same episode; a fault in" in verdict.message
    (verdict,) = judged(schedules("passed", "skipped"), 2)
    assert verdict.outcome is Outcome.NOT_ASSESSED
    assert "1 of 2 schedules of seed 7 were run" in verdict.message
    assert "fault" not in verdict.message


def test_each_seed_is_judged_alone_and_passes_if_it_does_under_all_schedules() -> None:
    rollouts = [*schedules("passed", "passed", seed=1), *schedules("passed", "failed", seed=2)]
    assert [verdict.outcome for verdict in judged(rollouts, 2)] == [Outcome.PASSED, Outcome.FAILED]
    rate = rate_under_schedules(rollouts)
    assert rate is not None
    assert (rate.passed, rate.total) == (1, 2)
    assert rate_under_schedules(schedules("skipped")) is None


def test_the_first_failure_is_known_to_all_processes_of_a_session(tmp_path: Path) -> None:
    ours = Search.of_session(tmp_path)
    theirs = Search.at(ours.address)
    assert ours.first("test") is theirs.first("test") is None
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda place: (ours if place % 2 else theirs).failed("test", place), range(60, 20, -1)))
    assert ours.first("test") == theirs.first("test") == 21
    assert ours.first("test\0other") is None
    ours.close()
    assert theirs.first("test") is None
    assert not any((tmp_path / "staging").iterdir())


def test_a_seed_that_is_run_twice_has_to_repeat_all_of_a_deterministic_machine() -> None:
    def twice(fingerprints: tuple[str | None, str | None], digests: tuple[str, str]) -> Verdict:
        repeat = Repeat(3, fingerprints, run_digests=digests)
        return judge_repeats(Group("test", 1, (), runs=2, repeats=(repeat,)))

    assert twice(("a", "a"), ("x", "x")).outcome is Outcome.PASSED
    differ = twice(("a", "a"), ("x", "y"))
    assert differ.outcome is Outcome.FAILED
    assert "seed 3: the episodes are the same, and the rest of the deterministic machine is not" in differ.message
    assert "asks something else of the machine" in differ.cause
    assert twice((None, None), ("x", "x")).outcome is Outcome.PASSED  # no episode, and all of the machine
    assert twice((None, None), ("", "")).outcome is Outcome.NOT_ASSESSED
