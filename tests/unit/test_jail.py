"""The jail without a guest: where control groups may be made, what is said of missing layers, what a program gets."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import msgspec
import psutil
import pytest
from microsim_vm import owner
from microsim_vm.errors import EngineError
from microsim_vm.jail import cell, cgroups, layers
from microsim_vm.jail.cell import Cell
from microsim_vm.jail.cgroups import Group, Limits, Place

VERSION_1 = """\
30 23 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 23 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
33 23 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
VERSION_2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
OWN_1 = "12:memory:/user/one\n4:cpu,cpuacct:/\n1:name=systemd:/user\n0::/user\n"


def test_groups_of_version_1_are_made_inside_our_own() -> None:
    found = cgroups.candidates(OWN_1, VERSION_1)
    assert found["memory"] == [Place(1, Path("/sys/fs/cgroup/memory/user/one"))]
    assert found["cpu"] == [Place(1, Path("/sys/fs/cgroup/cpu,cpuacct"))]
    assert set(found) == {"memory", "cpu", ""}


def test_groups_of_version_2_are_made_inside_our_own_or_beside_it_or_at_the_top() -> None:
    found = cgroups.candidates("0::/user.slice/a.scope\n", VERSION_2)
    parents = ["/sys/fs/cgroup/user.slice/a.scope", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"]
    assert found == {"": [Place(2, Path(parent)) for parent in parents]}
    assert cgroups.candidates("0::/\n", VERSION_2) == {"": [Place(2, Path("/sys/fs/cgroup"))]}


def test_a_containers_part_of_the_groups_is_found_where_it_is_mounted() -> None:
    mounts = "30 23 0:26 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    found = cgroups.candidates("12:memory:/docker/abc/inner\n", mounts)
    assert found == {"memory": [Place(1, Path("/sys/fs/cgroup/memory/inner"))]}


def test_the_kernels_reason_is_told(tmp_path: Path) -> None:
    group = Group([tmp_path], Limits(320, 2, 128))
    for name, text in (("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
                       ("memory.events", "low 0\noom 3\noom_kill {}\noom_group_kill 0\n")):  # fmt: skip
        (tmp_path / name).write_text(text.format(0))
        assert group.why_killed() == ""
        (tmp_path / name).write_text(text.format(2))
        assert "320 MiB of the host's memory are the most" in group.why_killed()
        (tmp_path / name).unlink()


def test_only_groups_of_dead_processes_are_reaped(tmp_path: Path) -> None:
    me = owner.Process.current()
    dead = owner.Process(me.pid, me.started - 1, me.boot)
    parent = tmp_path / "groups"
    for process in (me, dead):
        name = f"microsim-{process.pid}-{process.started}-"
        (parent / f"{name}1").mkdir(parents=True)
        (parent / f"{name}2").mkdir()
        record = {"owner": process, "parents": [str(parent), str(tmp_path / "missing")]}
        (tmp_path / f"{name}.groups").write_bytes(msgspec.json.encode(record))
    busy = parent / f"microsim-{dead.pid}-{dead.started}-2" / "process"  # as rmdir of a group with one does, this fails
    busy.mkdir()
    assert len(cgroups.reap(tmp_path)) == 1
    assert len([*parent.iterdir()]) == 3
    busy.rmdir()
    assert len(cgroups.reap(tmp_path)) == 1
    assert sorted(each.name for each in parent.iterdir()) == [f"microsim-{me.pid}-{me.started}-{n}" for n in (1, 2)]
    assert [each.name for each in tmp_path.glob("*.groups")] == [f"microsim-{me.pid}-{me.started}-.groups"]


@pytest.mark.parametrize(
    ("found", "missing"),
    [
        ({"view": "no", "rights": ""}, {"view"}),
        ({"user namespace": "no", "processes": "", "view": "", "rights": ""}, {"user namespace", "processes", "view"}),
        ({"memory": "no", "user": ""}, {"memory", "user"}),
        ({"memory": "no", "user namespace": ""}, {"memory"}),
        ({"user": "", "memory": ""}, set()),
    ],
)
def test_what_needs_a_missing_layer_is_missing_too(found: dict[str, str], missing: set[str]) -> None:
    chosen = layers.chosen(found)
    assert {*chosen.off} == missing
    assert {*chosen.on} == {*found} - missing
    for name in missing:
        assert name in chosen.line()
        assert layers.LAYERS[name] in chosen.detail()


def test_a_jailed_program_has_the_descriptors_that_it_is_given_and_no_environment() -> None:
    own = layers.here()
    with open(__file__, "rb") as given, open("/dev/null", "rb") as ours:
        os.set_inheritable(ours.fileno(), True)
        room = Cell(Limits(64, 1, 64), [], memory=given.fileno(), memory_path=Path(__file__))
        child = cell.start(["/bin/sleep", "60"], room, [ours.fileno(), given.fileno()], own)
        assert sorted(os.listdir(f"/proc/{child.pid}/fd")) == ["0", "1", "2", "3", "4"]
        assert Path(f"/proc/{child.pid}/environ").read_bytes() == b""
        assert os.path.samestat(os.stat(f"/proc/{child.pid}/fd/4"), os.fstat(given.fileno()))
        child.discard()


def test_a_jailed_program_that_is_killed_says_by_what() -> None:
    with open("/dev/null", "rb") as memory:
        room = Cell(Limits(64, 1, 64), [], memory=memory.fileno())
        child = cell.start(["/bin/sleep", "60"], room, [], layers.here())
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.05)
    child.kill()
    assert child.wait(10) == -signal.SIGKILL
    assert child.why_killed == ""  # by us, and not for its memory
    child.kill()
    child.discard()


def test_a_program_that_is_not_there_is_an_error_and_leaves_no_process() -> None:
    own = layers.here()
    before = {each.pid for each in psutil.Process().children()}
    with open("/dev/null", "rb") as memory, pytest.raises(EngineError, match="No such file"):
        cell.start(["/bin/not-there"], Cell(Limits(64, 1, 64), [], memory=memory.fileno()), [], own)
    assert {each.pid for each in psutil.Process().children()} == before


def test_a_warden_that_was_killed_is_replaced() -> None:
    first = cell.warden()
    assert cell.warden() is first
    os.kill(first._process.pid, signal.SIGKILL)
    first._process.wait(10)
    assert cell.warden() is not first
    assert cell.attempt(()) == ""
