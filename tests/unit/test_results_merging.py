"""Parts of one suite become one: every group once, and whose worker ran what."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from microsim_vm.cli.main import main

from pytest_microsim.errors import ResultsError
from pytest_microsim.results import file
from pytest_microsim.results.merging import merged
from pytest_microsim.results.model import GroupResult, Host, Phase, RolloutResult, RunResult, WorldResult

HOST = Host(cpu="a processor", cores=2, memory_mib=1024, kernel="6.1", system="Debian")


def part(
    group: str, *, worker: str = "", warmed: bool = False, exit_status: int = 0, duration_s: float = 1.0
) -> RunResult:
    rollout = RolloutResult(nodeid=f"{group}[seed-0000]", seed="0", outcome="passed", worker=worker)
    world = WorldResult(
        name="cartpole", digest="d", snapshot="s", engine="qemu", isolation="emulated", warmed=warmed,
        phases=[Phase(name="warm-up", start_s=0.0, duration_s=2.0)] if warmed else [],
    )  # fmt: skip
    return RunResult(
        version="0.1.0", started=f"2026-01-0{len(group)}T00:00:00+00:00", duration_s=duration_s, command="pytest",
        exit_status=exit_status, workers=1, host=HOST, worlds=[world],
        groups=[GroupResult(key=group, name=group, location="t.py:1", world="w", expected=1, rollouts=[rollout])],
        baselines=["nothing is stale"],
    )  # fmt: skip


def test_each_group_is_there_once_and_the_worst_status_counts() -> None:
    whole = merged([part("aa", worker="gw0", exit_status=1, duration_s=3.0), part("b", warmed=True)], ["one", "two"])

    assert [group.name for group in whole.groups] == ["aa", "b"]
    assert [group.rollouts[0].worker for group in whole.groups] == ["one gw0", "two"]
    assert (whole.exit_status, whole.duration_s, whole.workers) == (1, 3.0, 2)
    assert (whole.started, whole.command) == ("2026-01-01T00:00:00+00:00", "pytest")
    (world,) = whole.worlds
    assert (world.warmed, len(world.phases)) == (True, 1)
    assert whole.baselines == ["nothing is stale"]


def test_parts_that_are_missing_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2, 3):
        run = msgspec.structs.replace(part("a" * number), shard=f"{number}/3")
        file.write(tmp_path / f"{number}.json", run)

    def merge(*numbers: int) -> tuple[str, str]:
        paths = [str(tmp_path / f"{number}.json") for number in numbers]
        assert main(["merge", *paths, "-o", str(tmp_path / "all.json")]) == 0
        return capsys.readouterr().err, file.read(tmp_path / "all.json").shard

    assert merge(1, 2, 3) == ("", "")
    assert merge(1, 3) == ("this is not the whole suite: there are no results of part 2/3\n", "1/3, 3/3")
    (tmp_path / "all.json").rename(tmp_path / "13.json")
    assert merge(13, 2) == ("", ""), "also in two steps"


def test_two_runs_of_the_same_tests_are_no_parts() -> None:
    with pytest.raises(ResultsError, match=r"two and one both have the group a(?s:.)*microsim report A B"):
        merged([part("a"), part("a")], ["one", "two"])


def test_the_command_writes_what_the_other_commands_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        file.write(tmp_path / f"{name}.json", part(name))
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]

    assert main(["merge", *paths, "-o", str(tmp_path / "all.json")]) == 0
    assert "2 groups, 2 rollouts" in capsys.readouterr().out
    assert [group.key for group in file.read(tmp_path / "all.json").groups] == ["a", "b"]

    (tmp_path / "other").mkdir()
    file.write(tmp_path / "other/a.json", part("c"))
    assert main(["merge", paths[0], str(tmp_path / "other/a.json"), "-o", str(tmp_path / "all.json")]) == 0
    workers = [group.rollouts[0].worker for group in file.read(tmp_path / "all.json").groups]
    assert workers == [paths[0], str(tmp_path / "other/a.json")], "two files of one name are told apart"
    capsys.readouterr()

    assert main(["merge", paths[0], paths[0], "-o", str(tmp_path / "no.json")]) == 1
    assert "both have the group a" in capsys.readouterr().err
    assert not (tmp_path / "no.json").exists()
