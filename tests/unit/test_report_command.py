"""``microsim report``: one run, two runs, and what it refuses."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from microsim_vm.cli.main import main
from report_samples import HOSTILE, run_of

from pytest_microsim.errors import ReportError
from pytest_microsim.results.comparison import against, compare
from pytest_microsim.results.file import write
from pytest_microsim.results.model import RunResult

NAMES = ("before.json", "now.json")


@pytest.fixture
def before() -> RunResult:
    return run_of(160, seed=1)


@pytest.fixture
def now() -> RunResult:
    """The same run, in which seeds 0 to 11 of one group broke, and another one's robot is slower."""
    run = run_of(160, seed=1)
    for rollout in run.groups[1].rollouts[:12]:
        rollout.outcome, rollout.fingerprint = "failed", "f" * 32
    for rollout in run.groups[0].rollouts:
        rollout.metrics["time_s"] = 1.1 * (rollout.metrics["time_s"] or 0.0)
    return run


def files(folder: Path, *runs: RunResult) -> list[str]:
    paths = [folder / name for name in NAMES[: len(runs)]]
    for path, run in zip(paths, runs, strict=True):
        write(path, run)
    return [str(path) for path in paths]


def test_seeds_that_broke_and_metrics_that_changed_are_found(before: RunResult, now: RunResult) -> None:
    found = compare(before, now, NAMES)
    slower, broken, *others = found.groups
    assert broken.broke == [str(seed) for seed in range(12)]
    assert (broken.mended, broken.paired, broken.identical) == ([], 32, 20)
    assert [trend.metric for trend in broken.trends if trend.trend == "worse"] == ["pass rate"]
    # The runs' own baseline says that less time is better.
    assert [trend.metric for trend in slower.trends if trend.trend == "worse"] == ["time_s"]
    assert [group.trend for group in others] == ["indistinguishable"] * 3
    assert found.trend == "worse"
    assert found.environment == []


def test_a_run_is_not_different_from_itself(before: RunResult) -> None:
    found = compare(before, before, NAMES)
    assert found.trend == "indistinguishable"
    assert [(group.identical, group.broke, group.mended) for group in found.groups] == [(32, [], [])] * 5


def test_groups_of_one_run_alone_are_listed(before: RunResult, now: RunResult) -> None:
    gone, fresh = before.groups.pop(0), now.groups.pop(4)
    found = compare(before, now, NAMES)
    assert (found.only_before, found.only_now) == ([fresh.name], [gone.name])
    assert len(found.groups) == 3


def test_seeds_that_ran_once_are_left_out(before: RunResult, now: RunResult) -> None:
    del before.groups[0].rollouts[:30]
    before.groups[0].rollouts[0].outcome = "skipped"
    assert compare(before, now, NAMES).groups[0].paired == 1
    del before.groups[0].rollouts[:]
    assert compare(before, now, NAMES).groups[0].paired == 0


def test_the_earlier_run_is_the_baseline_of_pictures(before: RunResult, now: RunResult) -> None:
    del before.groups[4]
    run = against(before, now, compare(before, now, NAMES))
    baseline = run.groups[1].baseline
    assert baseline is not None
    assert (baseline.standing, baseline.identical, baseline.different) == ("different", 20, 12)
    assert baseline.metrics["3"] == before.groups[1].rollouts[3].metrics
    assert run.groups[4].baseline is None
    assert now.groups[1].baseline is not baseline


def test_environments_come_before_numbers(
    before: RunResult, now: RunResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now.host.kernel = "6.12.0"
    now.groups[0].environment = {**now.groups[0].environment, "digest": "other"}
    assert main(["report", *files(tmp_path, before, now)]) == 0
    text = capsys.readouterr().out
    assert text.index("host.kernel is '6.1.0-28-amd64' before and '6.12.0' now") < text.index("TREND")
    assert text.index("digest is '9f2c41d07be3' before and 'other' now") < text.index("TREND")
    assert "worse" in text
    assert "0,1,2,3,4,5,6,7 +4" in text


def test_what_is_worse_fails_where_that_is_asked_for(before: RunResult, now: RunResult, tmp_path: Path) -> None:
    paths = files(tmp_path, before, now)
    assert main(["report", *paths]) == 0
    assert main(["report", *paths, "--fail-on-worse"]) == 1
    assert main(["report", *paths[::-1], "--fail-on-worse"]) == 0


def test_a_group_that_is_gone_fails_too_and_a_new_one_does_not(before: RunResult, tmp_path: Path) -> None:
    fewer = msgspec.structs.replace(before, groups=before.groups[1:])
    paths = files(tmp_path, before, fewer)
    assert main(["report", *paths, "--fail-on-worse"]) == 1
    assert main(["report", *paths[::-1], "--fail-on-worse"]) == 0


def test_the_comparison_is_json_too(
    before: RunResult, now: RunResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *files(tmp_path, before, now), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["groups"][1]["broke"][:3] == ["0", "1", "2"]
    assert found["before"]["name"] == "before.json"


def test_one_run_is_shown_and_rendered(before: RunResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = files(tmp_path, before)
    target = tmp_path / "out" / "report.html"
    assert main(["report", path, "-o", str(target)]) == 0
    done = capsys.readouterr()
    assert "test_narrow_aisle" in done.out
    assert done.err == f"report: {target}\n"
    assert target.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert main(["report", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"][0]["pass_rate"]["total"] == 32


def test_hostile_names_cannot_move_the_cursor(
    now: RunResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = HOSTILE.replace("\ud800", "")
    hostile, other = run_of(20, text=text), run_of(20, text=text)
    other.worlds[0].digest, other.groups[1].key = "other", "other"
    paths = files(tmp_path, hostile, other)
    assert main(["report", *paths]) == 0
    assert main(["report", paths[0]]) == 0
    shown = capsys.readouterr().out
    assert "only now:" in shown
    assert not {"\x1b", "\0", "\u202e"} & set(shown)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["{0}", "{0}", "{0}"], "3 results files were given, and two can be compared"),
        (["{0}", "--fail-on-worse"], "--fail-on-worse compares two runs"),
        (["{folder}/none.json"], "cannot be read"),
        (["{0}", "-o", "{0}/report.html"], "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said(
    arguments: list[str], why: str, before: RunResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = files(tmp_path, before)
    assert main(["report", *(word.format(path, folder=tmp_path) for word in arguments)]) == 1
    assert why in capsys.readouterr().err


def test_without_numpy_two_runs_are_refused(before: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "numpy":
            raise ModuleNotFoundError("No module named 'numpy'", name="numpy")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ReportError, match=r"without numpy\n  next step: .*pip install 'pytest-microsim\[baselines\]'"):
        compare(before, before, NAMES)
