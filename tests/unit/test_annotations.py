"""What is printed for a build server: one remark for each group that failed, where its test is, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_microsim.report.annotations import MOST_REMARKS, MOST_SEEDS, remarks, runner_of
from pytest_microsim.results.model import GateResult, GroupResult, Host, RolloutResult, RunResult

HOST = Host(cpu="a processor", cores=2, memory_mib=1024, kernel="6.1", system="Debian")


def rollout(seed: int, outcome: str = "passed", failure: str = "") -> RolloutResult:
    return RolloutResult(
        nodeid=f"tests/test_it.py::test_dock[seed-{seed:04}]",
        seed=str(seed),
        outcome=outcome,  # type: ignore[arg-type]
        failure=failure,
        replay=f"pytest --microsim-replay {seed}",
    )


def group(*rollouts: RolloutResult, name: str = "tests/test_it.py::test_dock", verdict: str = "") -> GroupResult:
    verdicts = [
        GateResult(gate="T2 fingerprint", outcome=verdict, metric="", message="copies", n=4, n_eff=2.0, clusters=[])
    ]
    return GroupResult(
        key=name,
        name=name,
        location="tests/test_it.py:12",
        world="cartpole",
        expected=len(rollouts),
        rollouts=list(rollouts),
        verdicts=verdicts if verdict else [],
    )


def said(*groups: GroupResult, runner: str = "github") -> list[str]:
    run = RunResult(
        version="0", started="", duration_s=1.0, command="", exit_status=1, workers=1, host=HOST, groups=list(groups)
    )
    return list(remarks(run, runner, rootdir=Path("/repo/robot"), checkout=Path("/repo")))


def test_a_failed_seed_is_a_remark_at_its_test() -> None:
    (line,) = said(group(rollout(0), rollout(7, "failed", "AssertionError: 100% off,\nat the dock")))

    assert line == (
        "::error file=robot/tests/test_it.py,line=12,title=test_dock%3A 1 of 2 seeds failed::"
        "seed 7: AssertionError: 100%25 off,%0A  replay: pytest --microsim-replay 7"
    )


def test_what_is_as_it_should_be_is_not_remarked_on() -> None:
    assert said(group(rollout(0)), group(rollout(1, "skipped"), verdict="passed")) == []
    assert said(group(rollout(0), rollout(1, "missed", "too far"))) == []  # its pass rate is high enough
    assert said(group(rollout(0, "failed")), runner="off") == []


def test_a_group_that_failed_as_a_whole_names_its_verdict_and_what_it_missed() -> None:
    (line,) = said(group(rollout(0), rollout(1, "missed", "too far"), verdict="failed"))
    assert "::T2 fingerprint: copies%0Aseed 1: too far%0A" in line
    (line,) = said(group(rollout(0), verdict="error"))
    assert "title=test_dock%3A the group failed::T2 fingerprint: copies" in line


def test_as_many_remarks_as_the_runner_shows_and_as_many_seeds_as_one_reads() -> None:
    many = [rollout(seed, "failed", "no") for seed in range(20)]
    (line,) = said(group(*many))
    assert line.count("replay:") == MOST_SEEDS
    assert "and 12 more seeds: 8, 9," in line

    lines = said(*(group(rollout(0, "failed"), name=f"t.py::test_{number}") for number in range(14)))
    assert len(lines) == MOST_REMARKS
    assert lines[-1].startswith("::error title=5 more groups failed::test_9: 1 of 1")


def test_a_controllers_words_are_no_commands() -> None:
    hostile = "\r\n::stop-commands::x\n::error::mine\x1b[0K"
    for runner in ("github", "gitlab"):
        lines = said(group(rollout(0, "failed", f"it said {hostile}")), runner=runner)
        assert not [line for line in lines if line.startswith(("::stop", "::error::"))]
        assert all("\n" not in line for line in lines)


def test_gitlab_gets_a_section_to_unfold() -> None:
    first, *lines, last = said(group(rollout(3, "failed", "no")), runner="gitlab")
    assert "section_start:" in first
    assert first.endswith("[collapsed=true]\r\x1b[0Ktest_dock: 1 of 1 seeds failed")
    assert lines == ["seed 3: no", "  replay: pytest --microsim-replay 3"]
    assert "section_end:" in last


@pytest.mark.parametrize(
    ("asked", "environment", "runner"),
    [
        ("auto", {}, "off"),
        ("auto", {"GITHUB_ACTIONS": "true"}, "github"),
        ("auto", {"GITLAB_CI": "true"}, "gitlab"),
        ("off", {"GITHUB_ACTIONS": "true"}, "off"),
        ("gitlab", {"GITHUB_ACTIONS": "true"}, "gitlab"),
    ],
)
def test_the_runner_is_found_out_unless_one_says(asked: str, environment: dict[str, str], runner: str) -> None:
    assert runner_of(asked, environment) == runner
