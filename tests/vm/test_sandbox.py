"""Sandboxes: made, found, forked, saved, hibernated and woken; what they carry over, and what they never do."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from hosting import ON_ANY_ENGINE, fresh_cache, plain, wait_for
from microsim_vm import Options, Sandbox, wallclock
from microsim_vm.cache import Cache
from microsim_vm.engines import checkpoint
from microsim_vm.errors import (
    ArgumentError,
    CommandFailedError,
    CommandInterruptedError,
    MicrosimError,
    NoSpaceError,
    SandboxNotFoundError,
    SandboxStateError,
    SeedError,
    SnapshotError,
    SnapshotMismatchError,
    UnsupportedByEngineError,
)
from microsim_vm.sandbox import saved
from microsim_vm.sandbox.live import WORTH_WHOLE
from microsim_vm.sandbox.store import Record, Store
from microsim_vm.world import WarmWorld

pytestmark = pytest.mark.timeout(240)

COUNTER = """
(sh -c 'echo $PPID' >/workspace/pid
i=0; while :; do i=$((i+1)); echo $i >/workspace/count; sleep 0.05; done) >/dev/null 2>&1 &
"""
# Everything a program may draw from, one value a line; gVisor's kernel has no file that gives any.
DRAWS = """
import os, random, uuid
print(os.urandom(16).hex(), uuid.uuid4(), random.random(), hash("x"))
if os.uname().release != "4.4.0":
    print(open("/proc/sys/kernel/random/uuid").read())
"""
# Kills the agent, as somebody who may do everything in the guest can.
KILL_AGENT = "kill -9 $PPID; sleep 60"


@pytest.fixture(scope="module")
def options(cartpole: WarmWorld, engine: str) -> Options:
    """Sandboxes of the user's cache, whose world is warm."""
    return Options(engine=engine)


@pytest.fixture(scope="module")
def parent(options: Options) -> Iterator[Sandbox]:
    """A sandbox that the tests of this file fork; none leaves anything in it but what forks of others may have."""
    with Sandbox.create("cartpole", metadata={"role": "parent"}, options=options) as sandbox:
        yield sandbox


@pytest.fixture
def child(parent: Sandbox) -> Iterator[Sandbox]:
    with parent.fork(7) as sandbox:
        yield sandbox


def process_of(sandbox: Sandbox) -> int:
    """Return the engine's process of a sandbox, which has to be alive."""
    pid = sandbox.refresh()._record.pid
    assert psutil.Process(pid).is_running()
    return pid


def count(sandbox: Sandbox) -> int:
    while not (text := sandbox.filesystem.read("/workspace/count")):
        time.sleep(0.01)  # it is being written at this moment
    return int(text)


def counting(sandbox: Sandbox) -> None:
    sandbox.exec(COUNTER, check=True)
    wait_for(lambda: sandbox.filesystem.exists("/workspace/count") and count(sandbox) > 2, "counting")


def test_what_is_known_of_a_sandbox(options: Options, engine: str) -> None:
    before = time.time()
    with Sandbox.create(
        "cartpole", seed=5, metadata={"who": "me"}, ttl_seconds=99, memory_mib=320, options=options
    ) as sandbox:
        assert (sandbox.template, sandbox.status, sandbox.seed, sandbox.metadata) == (
            "cartpole", "running", 5, {"who": "me"},
        )  # fmt: skip
        assert (sandbox.boot_mode, sandbox.from_snapshot, sandbox.persistent) == ("fork", None, False)
        assert (sandbox.ttl_seconds, sandbox.memory_mib, sandbox.vcpus, sandbox.volumes) == (99, 320, 1, ())
        assert before <= sandbox.created_at <= time.time()
        assert 0 < sandbox.boot_ms < 60_000
        assert sandbox.exec("echo $EPISODE_SEED; hostname").stdout == f"5\n{sandbox.id}\n"
        if engine == "qemu":  # gVisor's guests see the host's memory, and are ended where they use more than theirs
            total = int(sandbox.exec("awk '/MemTotal/ {print $2}' /proc/meminfo").stdout)
            assert 250_000 < total < 320 * 1024
        assert sandbox.id in [each.id for each in Sandbox.list()]
        found = Sandbox.get(sandbox.id[:-2])
        assert found.exec("echo here").stdout == "here\n"
        assert found.refresh().status == "running"
    assert found.status == "dead"
    assert sandbox.id not in [each.id for each in Sandbox.list()]
    with pytest.raises(SandboxNotFoundError, match=sandbox.id):
        found.exec("true")
    with pytest.raises(SandboxNotFoundError, match="no-such"):
        Sandbox.get("no-such")
    found.kill()  # once more does no harm


def test_sandboxes_share_no_random_value_and_a_seed_repeats(parent: Sandbox, engine: str) -> None:
    parent.exec("python3 -c 'import random, uuid; random.random()'", check=True)
    results = parent.fork_tree(4)
    children = [result.sandbox for result in results if result.sandbox is not None]
    with contextlib.ExitStack() as stack:
        for each in children:
            stack.enter_context(each)
        drawn = [each.exec(["python3", "-c", DRAWS], check=True).stdout.split() for each in (parent, *children)]
        assert len(drawn[0]) == (5 if engine == "qemu" else 4)
        assert all(len(set(column)) == len(drawn) for column in zip(*drawn, strict=True))
        assert len({each.seed for each in children}) == 4
    hashes = []
    for _ in range(2):
        with parent.fork(seed=11) as again:
            hashes.append(again.exec(["python3", "-c", "print(hash('x'))"]).stdout)
    assert hashes[0] == hashes[1]
    with pytest.raises(SeedError):
        parent.fork(seed=-1)


@ON_ANY_ENGINE
def test_fork_tree_keeps_its_order_and_an_error_is_one_childs_own(parent: Sandbox) -> None:
    results = parent.fork_tree(3, seeds=[21, -1, 23], metadata={"tree": "yes"})
    with contextlib.ExitStack() as stack:
        for result in results:
            if result.sandbox is not None:
                stack.enter_context(result.sandbox)
        assert [result.index for result in results] == [0, 1, 2]
        assert [result.sandbox and result.sandbox.seed for result in results] == [21, None, 23]
        assert isinstance(results[1].error, SeedError)
        assert results[0].error is results[2].error is None
        assert results[2].sandbox is not None
        assert results[2].sandbox.metadata == {"tree": "yes"}
        assert results[2].sandbox.from_snapshot == parent.id
    with pytest.raises(ValueError, match="1 or more"):
        parent.fork_tree(0)


def test_a_fork_continues_the_present_moment(child: Sandbox) -> None:
    child.filesystem.write("/workspace/note", b"\x00\xff")
    counting(child)
    with child.fork() as grandchild:
        at_fork = count(grandchild)
        assert at_fork > 2
        assert grandchild.filesystem.read("/workspace/note") == b"\x00\xff"
        wait_for(lambda: count(grandchild) > at_fork + 2, "the copy of the process runs on")
        grandchild.filesystem.write("/workspace/note", b"mine")
        assert child.filesystem.read("/workspace/note") == b"\x00\xff"
        child.exec("echo new >/workspace/new", check=True)
        with child.fork() as later:  # something was asked since: the moment is a later one
            assert later.filesystem.read("/workspace/new") == b"new\n"
        assert not grandchild.filesystem.exists("/workspace/new")


def test_many_forks_of_a_moment_share_one_copy(child: Sandbox, engine: str) -> None:
    child.exec("head -c 30000000 /dev/urandom >/workspace/big; sha256sum /workspace/big >/workspace/sum", check=True)
    with ThreadPoolExecutor(6) as pool, contextlib.ExitStack() as stack:
        children = [stack.enter_context(each) for each in pool.map(lambda _: child.fork(), range(6))]
        for each in (children[0], children[-1]):
            assert each.exec("sha256sum --check /workspace/sum").exit_code == 0
        point = Cache().folder("sandboxes", child.id) / "forkpoint"
        if engine == "qemu":
            assert {path.name for path in point.iterdir()} == {"ram", "state"}  # merged, so that they share it
        else:
            (image,) = point.iterdir()
            assert image.name == "checkpoint.img"
            size = image.stat().st_size
            assert checkpoint.store(image)
            assert image.stat().st_size == size  # stored already, so that none of them had to decompress it
        with children[-1].fork() as grandchild:
            assert grandchild.exec("sha256sum --check /workspace/sum").exit_code == 0


def test_saved_snapshots_are_listed_used_and_deleted(parent: Sandbox, child: Sandbox) -> None:
    child.filesystem.write("/workspace/note", "saved")
    snapshot = child.snapshot(metadata={"step": "0"})
    cache = Cache()
    try:
        child.filesystem.write("/workspace/note", "changed since")
        assert snapshot.id in [each.id for each in saved.listed(cache)]
        assert (snapshot.sandbox, snapshot.metadata) == (child.id, {"step": "0"})
        with Sandbox.create(from_snapshot=snapshot) as first:
            assert first.from_snapshot == snapshot.id
            assert first.filesystem.read("/workspace/note") == b"saved"
            saved.delete(cache, snapshot.id)
            with pytest.raises(SnapshotError, match=snapshot.id):
                Sandbox.create(from_snapshot=snapshot.id)
            with first.fork() as second:  # it keeps what it was forked from
                assert second.filesystem.read("/workspace/note") == b"saved"
            first.hibernate()
            assert first.filesystem.read("/workspace/note") == b"saved"
        with pytest.raises(ArgumentError, match="alone"):
            Sandbox.create("cartpole", from_snapshot=snapshot.id)
    finally:
        shutil.rmtree(saved.folder_of(cache, snapshot.id), ignore_errors=True)


def test_a_crashed_guest_says_so_and_can_only_be_read_and_killed(parent: Sandbox, engine: str) -> None:
    ends = [(KILL_AGENT, "the agent is gone, and the guest with it")]
    if engine == "qemu":
        ends += [("sync; echo c >/proc/sysrq-trigger; sleep 60", "sysrq")]
    for end, said in ends:
        with parent.fork() as sandbox:
            started = time.monotonic()
            with pytest.raises(CommandInterruptedError):
                sandbox.exec(end)
            assert time.monotonic() - started < 60
            assert sandbox.status == "crashed"
            for request in (lambda: sandbox.exec("true"), sandbox.fork, sandbox.snapshot, sandbox.hibernate):
                with pytest.raises(SandboxStateError, match="has crashed"):
                    request()
            assert said in sandbox.logs()
    with parent.fork() as sandbox:
        os.kill(sandbox._record.pid, signal.SIGKILL)
        wait_for(lambda: sandbox.status == "crashed", "it is noticed without any request")
    with parent.fork() as sandbox:
        os.kill(sandbox._record.pid, signal.SIGKILL)
        with pytest.raises(SandboxStateError, match="has crashed"):
            sandbox.fork()


@ON_ANY_ENGINE
def test_a_named_snapshot_is_not_overwritten(child: Sandbox) -> None:
    name = f"named-{child.id}"
    child.snapshot(name)
    try:
        with pytest.raises(SnapshotError, match="already"):
            child.snapshot(name)
        assert child.exec("echo alive").stdout == "alive\n"
    finally:
        saved.delete(Cache(), name)


def test_a_snapshot_of_another_machine_or_a_damaged_one_is_refused(child: Sandbox, engine: str) -> None:
    snapshot = child.snapshot()
    folder = saved.folder_of(Cache(), snapshot.id)
    try:
        manifest = json.loads((folder / saved.MANIFEST).read_text())
        other = {
            **manifest,
            "origin": {**manifest["origin"], "engine": {**manifest["origin"]["engine"], "cpu": "6502"}},
        }
        (folder / saved.MANIFEST).write_text(json.dumps(other))
        with pytest.raises(SnapshotMismatchError, match="another cpu") as caught:
            Sandbox.create(from_snapshot=snapshot.id)
        assert "6502" in caught.value.details
        (folder / saved.MANIFEST).write_bytes(msgspec.json.encode(snapshot))
        name = "state" if engine == "qemu" else "checkpoint.img"
        whole = (folder / name).read_bytes()
        for damaged in (whole[:100] + b"XX" + whole[102:], whole[:-1], whole[: len(whole) // 2], b""):
            (folder / name).write_bytes(damaged)
            with pytest.raises(SnapshotError, match=f"damaged: {name}"):
                Sandbox.create(from_snapshot=snapshot.id)
    finally:
        saved.delete(Cache(), snapshot.id)


def test_a_paused_sandbox_stands_still(child: Sandbox) -> None:
    counting(child)
    child.pause()
    child.pause()
    assert child.status == "paused"
    for request in (lambda: child.exec("true"), child.hibernate, child.fork, lambda: child.filesystem.read("/x")):
        with pytest.raises(SandboxStateError, match=r"paused(.|\n)*resume"):
            request()
    child.resume()
    assert child.status == "running"
    before = count(child)
    wait_for(lambda: count(child) > before, "counting again")


def test_a_hibernated_sandbox_wakes_as_it_was_at_the_next_request(child: Sandbox) -> None:
    counting(child)
    child.filesystem.write("/workspace/note", "kept")
    pid = child.exec("tr '\\0' ' ' </proc/$(cat /workspace/pid)/stat | cut -d' ' -f1,22", check=True).stdout
    child.hibernate()
    child.hibernate()
    assert child.status == "hibernated"
    assert [each.status for each in Sandbox.list() if each.id == child.id] == ["hibernated"]
    time.sleep(1.5)
    asleep_at = time.time()
    now = float(child.exec("date +%s.%N").stdout)
    assert abs(now - time.time()) < 0.5 + (time.time() - asleep_at)
    assert child.status == "running"
    again = child.exec("tr '\\0' ' ' </proc/$(cat /workspace/pid)/stat | cut -d' ' -f1,22", check=True).stdout
    assert again == pid  # the very process, by its start time
    assert child.filesystem.read("/workspace/note") == b"kept"
    # It went on from where it was: 1.5 s of hibernation are no 30 rounds of its loop.
    first = count(child)
    wait_for(lambda: count(child) > first, "it counts on")
    child.hibernate()
    assert child.wake().status == "running"
    assert child.wake().status == "running"
    with child.fork() as fork:
        assert fork.filesystem.read("/workspace/note") == b"kept"


@ON_ANY_ENGINE
def test_a_sandbox_that_cannot_be_noted_as_hibernated_runs_on(child: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    counting(child)
    real = Store.write

    def full(store: Store, record: Record) -> None:
        if record.status == "hibernated":
            raise OSError(errno.ENOSPC, "no space left on device")
        real(store, record)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", full)
        with pytest.raises(NoSpaceError, match="no space left for a sandbox that is to hibernate"):
            child.hibernate()
    assert child.status == "running"
    before = count(child)
    wait_for(lambda: count(child) > before, "it counts on")
    assert not Cache().folder("sandboxes", child.id).joinpath("hibernated").exists()
    child.hibernate()
    before = count(child)
    wait_for(lambda: count(child) > before, "it counts on")


def test_a_copy_is_refused_where_it_might_not_fit(child: Sandbox, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On gVisor a guest ends with its copy, and is lost where that cannot be written."""
    child.exec("true")  # what is forked has to be copied anew
    forker = child._seat()._forker
    room = forker.boot.memory_mib << 20 if engine == "gvisor" else (forker.boot.memory_mib << 20) - 1
    real = shutil.disk_usage
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=room))
        for copy in (child.fork, child.snapshot, child.hibernate):
            with pytest.raises(NoSpaceError):
                copy()
        patch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=2 * forker.saved_bytes))
        with pytest.raises(NoSpaceError):  # it is written twice, for a moment
            child.snapshot()
    assert child.exec("echo well").stdout == "well\n"


def test_a_fork_does_without_what_only_makes_the_next_ones_cheaper(
    child: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    child.exec("dd if=/dev/urandom of=/dev/shm/large bs=1M count=64", check=True)
    live = child._seat()
    flattened: list[Path] = []
    real, usage = type(live._forker.engine).flatten, shutil.disk_usage

    def flatten(engine: object, folder: Path) -> None:
        flattened.append(folder)
        real(engine, folder)

    monkeypatch.setattr(type(live._forker.engine), "flatten", flatten)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=live._forker.saved_bytes))
        for _ in range(WORTH_WHOLE):
            child.fork().kill()
    assert flattened == []
    child.fork().kill()
    assert flattened != []


def test_a_damaged_hibernation_is_not_woken(parent: Sandbox, engine: str) -> None:
    sandbox = parent.fork()
    sandbox.hibernate()
    name = "state" if engine == "qemu" else "checkpoint.img"
    file = Cache().folder("sandboxes", sandbox.id, "hibernated") / name
    data = file.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    for damaged in (flipped, data[:middle], None):
        if damaged is None:
            file.unlink()
        else:
            file.write_bytes(damaged)
        for _ in range(2):
            with pytest.raises(SnapshotError, match="cannot be woken"):
                sandbox.exec("true")
            assert sandbox.status == "hibernated"
    sandbox.kill()
    assert sandbox.status == "dead"
    assert not file.parent.parent.exists()


@ON_ANY_ENGINE
def test_a_command_cut_off_by_hibernation_or_death_is_an_error_with_what_it_printed(child: Sandbox) -> None:
    for end in (child.hibernate, child.kill):
        caught: list[BaseException] = []

        def run(into: list[BaseException] = caught) -> None:
            try:
                child.exec("echo begun; sleep 2; echo done >/workspace/done; sleep 60", timeout_seconds=100)
            except MicrosimError as error:
                into.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(1.0)
        end()
        thread.join(20)
        assert not thread.is_alive()
        for each in (caught[0], pickle.loads(pickle.dumps(caught[0]))):
            assert isinstance(each, CommandInterruptedError)
            assert (str(each), each.partial.stdout) == (str(caught[0]), "begun\n")
        if end == child.hibernate:
            wait_for(lambda: child.filesystem.exists("/workspace/done"), "it goes on in the guest")


def test_a_watchdog_armed_before_the_snapshot_is_not_fired_by_the_gap(child: Sandbox) -> None:
    watchdog = (
        "import time, pathlib; armed = time.monotonic()\n"
        "while time.monotonic() - armed < 3: time.sleep(0.1)\n"
        "pathlib.Path('/workspace/fired').write_text('x')"
    )
    child.exec(f'python3 -c "{watchdog}" >/dev/null 2>&1 &', check=True)
    snapshot = child.snapshot()
    try:
        child.kill()
        time.sleep(4.0)
        before = time.time()
        with Sandbox.create(from_snapshot=snapshot.id) as fork:
            clock = float(fork.exec("date +%s.%N").stdout)
            assert before - 0.5 < clock < time.time() + 0.5
            assert not fork.filesystem.exists("/workspace/fired")
            wait_for(lambda: fork.filesystem.exists("/workspace/fired"), "its time goes on", timeout_s=20)
    finally:
        saved.delete(Cache(), snapshot.id)


def test_a_clock_can_be_the_same_in_every_replay(cartpole: WarmWorld, engine: str) -> None:
    if engine == "gvisor":  # nobody can set its clock
        with pytest.raises(UnsupportedByEngineError, match="gvisor cannot start with a wall clock of its own"):
            cartpole.fork(1, wall_clock=1_000_000_000.0)
        assert cartpole.wall_clock is None
        with cartpole.fork(1) as machine:
            assert machine.wall_clock is None
        return
    assert cartpole.wall_clock == wallclock.PINNED
    given: list[tuple[float, dict[str, Any]]] = [(1e9, {"wall_clock": 1e9}), (wallclock.PINNED, {})]
    for start, asked in given:
        with cartpole.fork(1, **asked) as machine:
            time.sleep(2)
            first = float(machine.exec("date +%s.%N").stdout)
            assert start + 2 <= first < start + 30
            # Nothing that the warm-up has left is from the future, and a copy goes on where it was copied.
            assert asked or machine.exec(f"find / -xdev -newermt @{start + 60:.0f}", check=True).stdout == ""
            (child,) = machine.fork()
            with child:
                assert first < float(child.exec("date +%s.%N").stdout) < start + 60


def test_a_snapshot_in_the_middle_of_a_long_answer_leaves_no_channel_in_pieces(child: Sandbox) -> None:
    printed: list[int] = []
    thread = threading.Thread(
        target=lambda: printed.append(len(child.exec("head -c 12000000 /dev/zero; sleep 1; echo end").stdout_bytes))
    )
    thread.start()
    time.sleep(0.15)
    children = []
    try:
        while thread.is_alive() and len(children) < 4:
            children.append(child.fork())
        for number in range(20):
            each = children[number % len(children)]
            started = time.monotonic()
            assert each.exec(f"echo {number}", timeout_seconds=15).stdout == f"{number}\n"
            assert time.monotonic() - started < 15
    finally:
        for each in children:
            each.kill()
    thread.join(60)
    assert printed == [12_000_004]
    assert child.exec("echo whole").stdout == "whole\n"


@ON_ANY_ENGINE  # that each engine limits a bomb is in test_engine_contract.py
def test_a_fork_bomb_is_capped_and_stays_in_its_own_sandbox(parent: Sandbox) -> None:
    processes = len(psutil.pids())
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(parent.fork()) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            bomb = pool.submit(children[0].exec, "b() { b | b & b; }; b", timeout_seconds=3)
            others = [pool.submit(each.exec, "sleep 1; echo fine", timeout_seconds=60) for each in children[1:]]
            assert [other.result().stdout for other in others] == ["fine\n"] * 3
            result = bomb.result()
        assert "processes" in result.limits_hit
        assert result.timed_out or result.exit_code != 0
        assert children[0].filesystem.exists("/workspace")  # its agent lives, whatever the bomb has left
        children[0].kill()
        with pytest.raises(CommandFailedError, match="limit of processes"):
            children[1].exec("for i in $(seq 300); do sleep 30 & done; exit 3", check=True)
    wait_for(lambda: len(psutil.pids()) < processes + 30, "the host's processes are as before")


def test_forty_requests_from_many_threads(child: Sandbox) -> None:
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda n: child.exec(["echo", str(n)]).stdout, range(40)))
    assert results == [f"{n}\n" for n in range(40)]


@pytest.mark.parametrize("leave", [lambda sandbox: sandbox.kill(), lambda sandbox: sandbox.hibernate()])
def test_nothing_is_left_of_it(options: Options, leave: Callable[[Sandbox], None]) -> None:
    sandbox = Sandbox.create("cartpole", options=options)
    folder = Cache().folder("sandboxes") / sandbox.id
    before = process_of(sandbox)
    sandbox.fork().kill()
    after = process_of(sandbox)  # gVisor's guests go on in another one after a copy
    leave(sandbox)
    assert not Path(f"/proc/{before}").exists()
    assert not Path(f"/proc/{after}").exists()
    if sandbox.status == "hibernated":
        assert {path.name for path in folder.iterdir()} <= {"hibernated", "origin", "record.json", "lock", "owner.json"}
        sandbox.kill()
    assert not folder.exists()


def test_a_cache_in_a_deep_folder_with_odd_letters(tmp_path: Path, engine: str) -> None:
    deep = tmp_path / ("q" * 100) / "wärehouse, one"
    deep.mkdir(parents=True)
    options = Options(cache_dir=fresh_cache(deep / "cache").root, engine=engine)
    with Sandbox.create(str(plain(deep).path.parent), options=options) as sandbox:
        sandbox.filesystem.write("/workspace/note", "deep")
        sandbox.hibernate()
        with sandbox.fork(detached=True) as child:  # through a door, whose path has room for 107 bytes only
            assert child.filesystem.read("/workspace/note") == b"deep"
        assert len(sandbox.refresh()._record.door) < 107
