"""The jail around an engine's process, seen from the host: what a guest that breaks out of its emulator would find."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from hosting import AS_NOBODY, NOBODY, plain, session, wait_for
from microsim_vm import runtime
from microsim_vm.engines import qemu
from microsim_vm.errors import AgentError, MicrosimError
from microsim_vm.jail import cgroups, layers
from microsim_vm.machine import Machine
from microsim_vm.options import Options
from microsim_vm.reaper import reap
from microsim_vm.world import WarmWorld, warm

pytestmark = pytest.mark.timeout(150)

WITHOUT_MOUNTS = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
ON_QEMU = pytest.mark.parametrize("engine", ["qemu"], indirect=True)
ON_GVISOR = pytest.mark.parametrize("engine", ["gvisor"], indirect=True)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes rights away that an ordinary user has not")
NAMESPACES = ("mnt", "pid", "net", "ipc", "uts")
FILL = "head -c 100M /dev/zero >/dev/shm/large"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, engine: str) -> WarmWorld:
    return warm(plain(tmp_path_factory.mktemp("jail")), Options(engine=engine), print)


@pytest.fixture(scope="module")
def bystander(world: WarmWorld) -> Iterator[Machine]:
    """A guest that nothing must happen to."""
    with world.fork(1) as machine:
        yield machine


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def namespaces(pid: int | str) -> dict[str, str]:
    return {name: os.readlink(f"/proc/{pid}/ns/{name}") for name in NAMESPACES}


def groups_of(pid: int) -> list[Path]:
    """Return the folders of the groups that were made for a process."""
    found = cgroups.candidates(Path(f"/proc/{pid}/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    folders = {place.parent for places in found.values() for place in places}
    return [folder for folder in folders if folder.name.startswith(cgroups.PREFIX)]


def open_files(pid: int) -> dict[int, int]:
    """Return the regular files that a process has open, by their inodes, and how."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if entry.is_file():
            flags = next(line for line in Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text().splitlines()
                         if line.startswith("flags:"))  # fmt: skip
            found[entry.stat().st_ino] = int(flags.split()[1], 8) & os.O_ACCMODE
    return found


def inode_of(world: WarmWorld) -> int:
    return (world.snapshot.directory / "ram").stat().st_ino


@ON_QEMU
def test_an_emulator_has_no_user_no_right_no_file_and_no_network_of_the_hosts(
    world: WarmWorld, bystander: Machine
) -> None:
    own = layers.here()
    if os.geteuid() == 0 and not own.off:
        assert set(own.on) == {*layers.LAYERS} - {"user namespace"}
    with world.fork(2) as machine:
        pid, told, other = machine.pid, status(machine.pid), status(bystander.pid)
        assert (told["NoNewPrivs"], told["Seccomp"]) == ("1", "2")
        if "rights" in own.on:
            sets = {name: int(told[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
            assert sets == dict.fromkeys(sets, 0)
        if "user" in own.on:
            users = {*told["Uid"].split(), *told["Gid"].split()}
            assert len(users) == 1
            assert not users & {*other["Uid"].split(), "0", str(NOBODY)}
            assert told["Groups"] == ""
        wanted = dict(zip(NAMESPACES, ("view", "processes", "network", "ipc", "ipc"), strict=True))
        for mine, theirs in ((namespaces(pid), namespaces("self")), (namespaces(pid), namespaces(bystander.pid))):
            assert [name for name, layer in wanted.items() if layer in own.on and mine[name] == theirs[name]] == []
        if "view" in own.on:
            assert os.listdir(f"/proc/{pid}/root") == []
            (mounted,) = Path(f"/proc/{pid}/mounts").read_text().splitlines()
            assert mounted.split()[1:3] == ["/", "tmpfs"]
            assert "ro" in mounted.split()[3].split(",")
        if "network" in own.on:
            links = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
            assert [line.split(":")[0].strip() for line in links] == ["lo"]
        assert Path(f"/proc/{pid}/environ").read_bytes() == b""
        if "memory" in own.on:
            files = open_files(pid)
            assert inode_of(world) in files
            assert {*files.values()} == {os.O_RDONLY}
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        limits = {line[:26].strip(): line[26:].split()[0] for line in lines}
        assert limits["Max core file size"] == "0"
        assert limits["Max open files"] == "256"


def test_a_guest_has_a_group_with_its_limits_which_ends_with_it(world: WarmWorld, engine: str) -> None:
    found = {**cgroups.places()}
    if engine == "gvisor":  # whose guests see all processors
        found.pop("cpu", None)
    if not found:
        pytest.skip("this user may make no control groups here")
    with world.fork(3) as machine:
        groups = groups_of(machine.pid)
        assert len(groups) == len({place.parent for place in found.values()})
        for each in psutil.Process(machine.pid).children(recursive=True):
            assert groups_of(each.pid) == groups
        values = {file.name: file.read_text().split() for group in groups for file in group.iterdir()
                  if file.name in ("memory.limit_in_bytes", "memory.max", "pids.max")}  # fmt: skip
        assert len(values) == len({"memory", "pids"} & {*found})
        limited = [int(value[0]) >> 20 for name, value in values.items() if name.startswith("memory")]
        promised = world.forker.boot.memory_mib + world.forker.engine.overhead_mib
        assert all(promised <= most <= 2 * promised for most in limited)
    assert [group for group in groups if group.exists()] == []


@ON_GVISOR
def test_gvisors_kernel_jails_itself(bystander: Machine) -> None:
    (kernel,) = (each for each in psutil.Process(bystander.pid).children() if each.cmdline()[0] == "runsc-sandbox")
    told = status(kernel.pid)
    assert (told["NoNewPrivs"], told["Seccomp"]) == ("1", "2")
    assert "0" not in told["Uid"].split()
    mine, hosts = namespaces(kernel.pid), namespaces("self")
    assert all(mine[name] != hosts[name] for name in ("mnt", "net", "ipc", "uts"))
    assert not {"root", "home", "usr"} & {*os.listdir(f"/proc/{kernel.pid}/root")}


def test_guests_that_spin_and_fill_their_memory_leave_their_neighbours_alone(
    world: WarmWorld, bystander: Machine
) -> None:
    with world.fork(4) as spinning, world.fork(5) as filling:

        def run(machine: Machine, command: str) -> None:
            with contextlib.suppress(MicrosimError):  # whatever becomes of it
                machine.exec(command, timeout_seconds=3)

        ends = [
            threading.Thread(target=run, args=(spinning, "while :; do :; done")),
            threading.Thread(target=run, args=(filling, f"{FILL}; sleep 2")),
        ]
        for each in ends:
            each.start()
        for number in range(3):
            assert bystander.exec(f"echo {number}", timeout_seconds=20).stdout == f"{number}\n"
        ends[0].join(60)
        assert spinning.exec("echo here").stdout == "here\n"
    ends[1].join(60)


@ON_QEMU
def test_an_emulator_that_grows_is_ended_alone_and_the_error_says_why(
    world: WarmWorld, bystander: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "memory" not in cgroups.places():
        pytest.skip("this user may make no control groups for memory here")
    monkeypatch.setattr(qemu, "SPARE_MIB", -world.forker.boot.memory_mib)  # all that is the guest's is too much
    with world.fork(6) as machine:
        groups = groups_of(machine.pid)
        with pytest.raises(AgentError) as caught:
            machine.exec(FILL, timeout_seconds=60)
        assert "microsim: killed: its engine used all that it may: 96 MiB" in caught.value.details
    assert [group for group in groups if group.exists()] == []
    assert bystander.exec("echo here").stdout == "here\n"


@ON_QEMU
def test_where_the_memory_file_cannot_be_opened_for_it_an_emulator_opens_it_itself(
    world: WarmWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    less = layers.chosen(dict.fromkeys(layers.here().on, "") | {"memory": "for this test"})
    monkeypatch.setattr(layers, "here", lambda: less)
    with world.fork(7) as machine, machine.fork(1)[0] as child:
        assert child.exec("echo here").stdout == "here\n"
        assert open_files(machine.pid)[inode_of(world)] == os.O_RDWR
        assert os.listdir(f"/proc/{machine.pid}/root") == []
    assert "memory" in less.line()


def test_nothing_of_a_killed_session_is_left(world: WarmWorld, engine: str) -> None:
    hold = "machine = warm(template, options, say).fork(1); say('forked', machine.pid); time.sleep(600)"
    cache = world.forker.cache
    with world.fork(8) as bystander, session(hold, world.template.path, cache.root, engine) as other:
        pid = int(other.expect("forked").split()[1])
        groups, others = groups_of(pid), groups_of(bystander.pid)
        assert bool(groups) == bool(cgroups.places())
        family = psutil.Process(other.process.pid).children(recursive=True)
        other.kill()
        assert psutil.wait_procs(family, timeout=10)[1] == []
        wait_for(lambda: reap(cache) or not any(group.exists() for group in groups), "the end of its groups")
        assert [group for group in groups if group.exists()] == []
        assert [file.name for file in runtime.folder().glob(f"{cgroups.PREFIX}{other.process.pid}-*")] == []
        assert all(group.exists() for group in others)


# Starts a shell in the place of an emulator, which tells what it sees and then waits; and looks at it from outside.
SHELL = """
import json, os, sys
from pathlib import Path
from microsim_vm.jail import cell, layers
from microsim_vm.jail.cell import Cell
from microsim_vm.jail.cgroups import Limits
own = layers.here()
said, say = os.pipe()
wait, go = os.pipe()
secret = Path(sys.argv[1])
given = Path(sys.argv[1] + ".given")
script = "id -u; id -g; echo /*; cat %s 2>&1; kill -9 %d 2>&1; cat %s 2>&1; " % (secret, os.getppid(), given)
script += "head -c 1 /dev/zero | wc -c; exec >&- 3>&-; read x <&4"
null = os.open("/dev/null", os.O_RDONLY)
argv = ["/bin/sh", "-c", "exec 1>&3; " + script]
child = cell.start(argv, Cell(Limits(64, 1, 64), [given], ["/dev/zero"], memory=null), [say, wait], own)
os.close(say)
with open(said) as lines:
    told = lines.read().splitlines()
before = os.listdir("/proc/%d/root" % child.pid)
child.close_in(own)
status = dict(line.split(":", 1) for line in open("/proc/%d/status" % child.pid))
print(json.dumps({"on": own.on, "off": own.off, "line": own.line(), "told": told, "before": sorted(before),
                  "after": os.listdir("/proc/%d/root" % child.pid), "capabilities": status["CapBnd"].strip(),
                  "user": os.stat("/proc/%d" % child.pid).st_uid,
                  "namespace": os.readlink("/proc/%d/ns/user" % child.pid) != os.readlink("/proc/self/ns/user")}))
child.discard()
"""


def jailed_shell(before: Sequence[str], folder: Path) -> Any:
    (folder / "secret").write_text("a secret\n")
    (folder / "secret.given").write_text("what it is given\n")
    (folder / "secret.given").chmod(0o600)
    os.chown(folder / "secret.given", folder.stat().st_uid, -1)
    done = subprocess.run(
        [*before, sys.executable, "-c", SHELL, str(folder / "secret")], capture_output=True, text=True, timeout=30,
        check=False, env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
    )  # fmt: skip
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def nobodys() -> Iterator[Path]:
    """A folder that is nobody's."""
    folder = Path(tempfile.mkdtemp(prefix="microsim-nobody-"))
    os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


@needs_root
def test_an_ordinary_users_emulator_is_jailed_in_a_user_namespace(nobodys: Path) -> None:
    found = jailed_shell(AS_NOBODY, nobodys)
    assert (found["off"], found["line"]) == ({}, "jailed without: control groups")
    assert "user namespace" in found["on"]
    assert (found["user"], found["namespace"]) == (NOBODY, True)
    assert int(found["capabilities"], 16) == 0
    user, group, listed, secret, killed, *given = found["told"]
    assert [line for line in given if line] == ["what it is given", "1"]
    assert (user, group) == (str(NOBODY), str(NOBODY))
    assert not {"/home", "/root", "/proc", "/sys", "/var"} & {*listed.split()}
    assert "No such file" in secret
    assert "No such process" in killed
    assert (found["before"] == sorted(name[1:] for name in listed.split()), found["after"]) == (True, [])


@needs_root
def test_what_a_container_withholds_is_left_out_and_said(tmp_path: Path) -> None:
    found = jailed_shell(WITHOUT_MOUNTS, tmp_path)
    assert {*found["off"]} == {"processes", "network", "ipc", "view"}
    assert found["line"].startswith("jailed without: processes, network, ipc, view")
    assert found["user"] not in (0, NOBODY)
    assert int(found["capabilities"], 16) == 0
    user, _, listed, secret, killed, *_ = found["told"]
    assert int(user) == found["user"]
    assert {"/tmp", "/proc"} <= {*listed.split()}
    assert "Permission denied" in secret
    assert "not permitted" in killed
