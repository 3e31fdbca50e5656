"""Sandboxes that several processes use: found, woken, ended and outlived by others; volumes between them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hosting import ON_ANY_ENGINE, Place, guests_of, share_snapshot, wait_for
from microsim_vm import Options, Sandbox, Volume
from microsim_vm.errors import SandboxNotFoundError, SnapshotError, UnsupportedByEngineError, VolumeBusyError
from microsim_vm.owner import start_time

pytestmark = pytest.mark.timeout(120)

COUNTER = "(i=0; while :; do i=$((i+1)); echo $i >>/workspace/count; sleep 0.05; done) >/dev/null 2>&1 &"
# gVisor's guests have none, and a volume is one.
WITH_DISKS = pytest.mark.parametrize("engine", ["qemu"], indirect=True)
# A process that makes a sandbox and keeps it; and one that does so until it is told to go on.
OWNER = "sandbox = create()\nsay(sandbox.id)\n"
# One that says nothing until the file named by its third argument is there.
GIVEN = """
def given(name):
    while not Path(sys.argv[2], name).exists():
        time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Place:
    return Place.warm(tmp_path_factory.mktemp("sharing"), engine)


@pytest.fixture(autouse=True)
def nothing_is_left(place: Place) -> Iterator[None]:
    yield
    Sandbox.list(place.options)
    wait_for(lambda: place.left() == [], "the end of all", period_s=0.1)


def get(place: Place, sandbox: str) -> Sandbox:
    return Sandbox.get(sandbox, place.options)


def gone(pid: int) -> bool:
    return start_time(pid) is None


def counted(sandbox: Sandbox) -> list[int]:
    return [int(line) for line in sandbox.filesystem.read("/workspace/count").split()]


def counting(sandbox: Sandbox, more_than: int = 0) -> int:
    """Wait until its counter goes on without a gap, and return how far it got."""
    wait_for(
        lambda: sandbox.filesystem.exists("/workspace/count") and len(counted(sandbox)) > more_than + 2, "counting"
    )
    found = counted(sandbox)
    assert found == list(range(1, len(found) + 1))
    return len(found)


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_a_counter_hibernates_in_one_process_and_goes_on_in_another(place: Place, how: str) -> None:
    body = OWNER + f"sandbox.exec({COUNTER!r}); time.sleep(0.3); sandbox.hibernate(); say('hibernated')\n"
    with place.session(body + ("sleep()" if how == "is killed" else "")) as maker:
        sandbox = get(place, maker.expect("sb-"))
        maker.expect("hibernated")
        if how == "ends":
            assert maker.wait() == 0
    assert guests_of(place.cache.root) == []
    assert get(place, sandbox.id).status == "hibernated"
    with sandbox:
        first = counting(sandbox)
        assert first < 40  # it did not count while it was hibernated: nothing ran
        assert counting(sandbox, first) > first


@ON_ANY_ENGINE
def test_another_process_uses_forks_saves_and_wakes_a_sandbox(place: Place) -> None:
    body = (
        GIVEN
        + OWNER
        + """
sandbox.exec("echo theirs >/workspace/file")
given("wake")
say("says", sandbox.exec("cat /workspace/file").stdout)
given("killed")
try:
    sandbox.exec("true")
except MicrosimError as error:
    say(type(error).__name__, error)
"""
    )
    with place.session(body) as owning:
        visited = get(place, owning.expect("sb-"))
        wait_for(lambda: visited.filesystem.exists("/workspace/file"), "the file")
        assert visited.exec("cat /workspace/file").stdout == "theirs\n"
        with visited.fork(5) as child:
            (theirs, ours) = (place.store.read(each.id) for each in (visited, child))
            assert theirs is not None
            assert ours is not None
            assert theirs.owner is not None
            assert theirs.owner.pid == owning.process.pid
            assert ours.owner is not None
            assert ours.owner.pid == os.getpid()
            assert child.exec("cat /workspace/file; echo $EPISODE_SEED").stdout == "theirs\n5\n"
        assert visited.snapshot("visited").sandbox == visited.id
        visited.filesystem.write("/workspace/file", b"ours\n")
        with Sandbox.create(from_snapshot="visited", options=place.options) as copy:
            assert copy.exec("cat /workspace/file").stdout == "theirs\n"
        visited.hibernate()
        assert visited.status == "hibernated"
        assert guests_of(place.cache.root) == []
        (place.cache.root / "wake").touch()
        assert owning.expect("says") == "says ours"
        assert visited.status == "running"
        assert len(guests_of(place.cache.root)) == 1
        visited.kill()
        (place.cache.root / "killed").touch()
        assert visited.id in owning.expect("SandboxNotFoundError")
        assert owning.wait() == 0
    assert Sandbox.list(place.options) == []


@ON_ANY_ENGINE
def test_two_processes_wake_one_sandbox_at_once(place: Place) -> None:
    sandbox = place.create()
    sandbox.exec("echo kept >/workspace/file", check=True)
    sandbox.hibernate()
    body = (
        GIVEN
        + """
sandbox = Sandbox.get(sys.argv[3], options)
say("ready")
given("now")
say("says", sandbox.exec("cat /workspace/file").stdout)
given("end")
"""
    )
    with place.session(body, sandbox.id) as one, place.session(body, sandbox.id) as two:
        for each in (one, two):
            each.expect("ready")
        (place.cache.root / "now").touch()
        assert [each.expect("says") for each in (one, two)] == ["says kept"] * 2
        assert len(guests_of(place.cache.root)) == 1
        sandbox.kill()
        (place.cache.root / "end").touch()
        assert (one.wait(), two.wait()) == (0, 0)


def test_requests_during_hibernation_all_get_an_answer(place: Place) -> None:
    with place.create() as sandbox, ThreadPoolExecutor(4) as pool:
        done = threading.Event()
        answers = [0] * 3

        def ask(number: int) -> None:
            while not done.is_set():
                sandbox.filesystem.write(f"/workspace/{number}", b"%d" % answers[number])
                assert sandbox.filesystem.read(f"/workspace/{number}") == b"%d" % answers[number]
                answers[number] += 1

        asking = [pool.submit(ask, number) for number in range(3)]
        try:
            for _ in range(3):
                time.sleep(0.2)
                sandbox.hibernate()
            wait_for(lambda: min(answers) > 4 or any(each.done() for each in asking), "answers to all")
        finally:
            done.set()
        for each in asking:
            each.result()


def keeper_of(place: Place, sandbox: Sandbox) -> int:
    record = place.store.read(sandbox.id)
    assert record is not None
    assert record.owner is not None
    return record.owner.pid


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_a_persistent_sandbox_outlives_its_maker_and_dies_with_its_keeper(place: Place, how: str) -> None:
    body = "sandbox = create(persistent=True)\nsandbox.exec('echo kept >/workspace/file')\nsay(sandbox.id)\n"
    with place.session(body + ("sleep()" if how == "is killed" else "")) as maker:
        name = maker.expect("sb-")
        if how == "ends":
            assert maker.wait() == 0
    (sandbox,) = Sandbox.list(place.options)
    assert sandbox.id == name
    with sandbox:
        assert sandbox.exec("cat /workspace/file").stdout == "kept\n"
    (guest,) = guests_of(place.cache.root)
    keeper = keeper_of(place, sandbox)
    os.kill(keeper, signal.SIGKILL)
    wait_for(lambda: gone(guest) and gone(keeper), "the end of both")
    assert Sandbox.list(place.options) == []
    assert place.left(keeper) == []
    with pytest.raises(SandboxNotFoundError):
        sandbox.exec("true")


KEEPER_STARTED = """
import subprocess
stop(subprocess.Popen, "__enter__", lambda self: "microsim_vm.sandbox.keeper" in self.args)
"""


@ON_ANY_ENGINE
@pytest.mark.parametrize("up", [False, True])
def test_a_maker_killed_while_the_keeper_starts_leaves_nothing(place: Place, up: bool) -> None:
    with place.session(KEEPER_STARTED + "create(detached=True)") as maker:
        maker.expect("stopped")
        assert [each.status for each in place.store.records()] == ["starting"]
        if up:
            wait_for(lambda: [each.status for each in place.store.records()] == ["running"], "the sandbox")
        maker.kill()
    wait_for(lambda: not guests_of(place.cache.root), "the end of its microVM")
    Sandbox.list(place.options)
    wait_for(lambda: place.left(maker.process.pid) == [], "the end of the keeper")


@ON_ANY_ENGINE
def test_a_waker_stopped_while_the_keeper_starts_costs_nothing(place: Place) -> None:
    with place.create(detached=True) as sandbox:
        sandbox.exec(COUNTER, check=True)
        before = counting(sandbox)
        for end, up in ((signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGINT, True)):
            sandbox.hibernate()
            with place.session(KEEPER_STARTED + "Sandbox.get(sys.argv[3], options).wake()", sandbox.id) as waker:
                waker.expect("stopped")
                if up:
                    wait_for(lambda: sandbox.status == "running", "its wake")
                waker.process.send_signal(end)
                assert waker.wait() != 0
            before = counting(sandbox, before)
            assert len(guests_of(place.cache.root)) == 1


@ON_ANY_ENGINE
def test_a_killed_visitors_command_is_cancelled(place: Place) -> None:
    body = """
sandbox = Sandbox.get(sys.argv[3], options)
sandbox.exec_stream("sleep 567 & echo; wait", on_stdout=lambda _: say("runs"), timeout_seconds=600)
"""
    running = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 56[7]'"
    with place.create() as sandbox:
        with place.session(body, sandbox.id) as visitor:
            visitor.expect("runs")
            assert sandbox.exec(running).stdout != "0\n"
            visitor.kill()
        wait_for(lambda: sandbox.exec(running).stdout == "0\n", "the end of its command")


@ON_ANY_ENGINE
def test_time_to_live_and_idle_hibernation(place: Place) -> None:
    with contextlib.ExitStack() as stack:
        for_ever = place.create(persistent=True, ttl_seconds=1.0)
        stack.callback(for_ever.kill)
        sleepy = stack.enter_context(place.create(hibernate_after=1.0))
        sleepy.filesystem.write("/workspace/file", b"kept")
        # Each is put to use as soon as it is there: what comes after it may take longer than it has to live.
        idle, at_work = (stack.enter_context(place.create(ttl_seconds=3.0)) for _ in range(2))
        long = ThreadPoolExecutor(1).submit(at_work.exec, "sleep 8; echo done")
        busy = stack.enter_context(place.create(ttl_seconds=3.0))
        started = time.monotonic()
        while time.monotonic() - started < 5.0:
            assert busy.exec("true").exit_code == 0
            time.sleep(0.2)
        assert idle.status == "dead"
        assert sleepy.status == "hibernated"
        assert for_ever.status == "running"
        assert long.result().stdout == "done\n"
        assert at_work.status == "running"
        assert sleepy.exec("cat /workspace/file").stdout == "kept"
        assert sleepy.status == "running"
        wait_for(lambda: busy.status == at_work.status == "dead", "their ends", period_s=0.1)
    with pytest.raises(SandboxNotFoundError):
        idle.exec("true")


@ON_ANY_ENGINE
def test_an_interrupted_fork_tree_leaves_no_child(place: Place) -> None:
    body = """
sandbox = create()
say("busy")
try:
    sandbox.fork_tree(200)
except KeyboardInterrupt:
    say("left", *[each.id for each in Sandbox.list(options)])
    sandbox.kill()
"""
    with place.session(body) as other:
        other.expect("busy")
        wait_for(lambda: len(guests_of(place.cache.root)) > 3, "children")
        other.process.send_signal(signal.SIGINT)
        assert len(other.expect("left", 10).split()) == 2
        assert other.wait() == 0


@pytest.mark.parametrize("engine", ["gvisor"], indirect=True)
def test_gvisors_guests_have_no_volumes_and_auto_takes_another_engine_for_them(place: Place) -> None:
    volume = Volume.create("unmounted", 16, options=place.options)
    with pytest.raises(UnsupportedByEngineError, match="gvisor cannot mount volumes") as refused:
        place.create(volumes={"/data": "unmounted"})
    assert "qemu" in refused.value.hint
    assert place.store.records() == []
    share_snapshot(place.cache, place.template, "qemu")  # that of the engine that it comes to
    auto = Options(cache_dir=place.cache.root)
    with Sandbox.create(place.template.path, volumes={"/data": "unmounted"}, options=auto) as sandbox:
        record = place.store.read(sandbox.id)
        assert record is not None
        assert record.origin.engine["engine"] == "qemu"
        assert sandbox.exec("echo kept >/data/file && cat /data/file").stdout == "kept\n"
    volume.delete(place.options)


LETTERS = """
import hashlib

def content(letter):
    return hashlib.sha256(letter.encode()).digest() * 5000

def write(letter):
    for folder in ("/data", "/workspace"):
        sandbox.filesystem.write(f"{folder}/{letter}", content(letter))

def compare(letters, *folders):
    found = [sandbox.filesystem.read(f"{folder}/{letter}") for letter in letters for folder in folders]
    say("same", found == [content(letter) for letter in letters for _ in folders], sandbox.id)
"""
WOKEN = LETTERS + "sandbox = Sandbox.get(sys.argv[3], options)\n"
STARTING = """
from microsim_vm.sandbox import launch
stop(launch, "start")
"""
WAKING = """
from microsim_vm.agent import AgentClient
stop(AgentClient, "_send", lambda self, op, *rest: op == "wake")
"""


@WITH_DISKS
def test_writes_survive_any_number_of_hibernations_and_a_volume_has_one_writer(place: Place) -> None:
    volume = Volume.create("letters", 16, options=place.options)
    first = (
        LETTERS
        + """
sandbox = create(volumes={"/data": "letters"}, hibernate_after=1.0)
write("A")
sandbox.hibernate()
write("B")  # which nobody flushes
say(sandbox.id)
while sandbox.status != "hibernated":
    time.sleep(0.05)
write("C")
sandbox.hibernate()
say("hibernated")
"""
    )
    with place.session(first) as one:
        name = one.expect("sb-")
        one.expect("hibernated")
        assert one.wait() == 0
    with place.session(WOKEN + "compare('ABC', '/data', '/workspace'); sleep()", name) as two:
        assert two.expect("same") == f"same True {name}"
        with pytest.raises(VolumeBusyError, match=name):
            place.create(volumes={"/data": "letters"})
        with pytest.raises(VolumeBusyError, match=name):
            volume.delete(place.options)
        get(place, name).hibernate()
        with pytest.raises(VolumeBusyError, match=name):
            place.create(volumes={"/other": "letters"})
    get(place, name).kill()
    created = LETTERS + "sandbox = create(volumes={'/data': 'letters'})\n"
    pid = _killed(place, created + "sandbox.hibernate()\n" + WAKING + "sandbox.wake()")
    # Its memory may no longer fit the volume: it is gone, its claim is free, and the volume is whole.
    assert Sandbox.list(place.options) == []
    assert place.left(pid) == []
    again = created + "compare('ABC', '/data')\ngiven('seen')\nsandbox.hibernate()\n" + STARTING + "sandbox.wake()"
    with place.session(GIVEN + again) as holder:
        _, equal, other = holder.expect("same").split()
        assert equal == "True"
        with pytest.raises(VolumeBusyError, match=other):
            place.create(volumes={"/data": "letters"})
        (place.cache.root / "seen").touch()
        holder.expect("stopped")
        holder.kill()
    # Its microVM had not run: it is as it was.
    (same,) = Sandbox.list(place.options)
    assert same.status == "hibernated"
    same.kill()
    volume.delete(place.options)
    assert Volume.list(place.options) == []


def _killed(place: Place, body: str, *arguments: object) -> int:
    with place.session(body, *arguments) as victim:
        victim.expect("stopped")
        victim.kill()
    return victim.process.pid


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for little."""
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@WITH_DISKS
def test_hibernation_is_refused_where_a_volume_cannot_be_flushed(place: Place, small: Path) -> None:
    volume = Volume.create("narrow", 32, options=place.options)
    image = place.cache.folder("volumes", "narrow") / "image"
    subprocess.run(["cp", "--sparse=always", image, small / "image"], check=True)
    image.unlink()
    image.symlink_to(small / "image")
    with place.create(volumes={"/data": "narrow"}) as sandbox:
        sandbox.exec("head -c 16M /dev/urandom >/data/big", check=True)
        with pytest.raises(SnapshotError, match="the guest cannot be copied now") as refused:
            sandbox.hibernate()
        print(refused.value)
        assert sandbox.status == "running"
        assert sandbox.exec("echo works").stdout == "works\n"
        assert list(place.cache.folder("staging").iterdir()) == []
    volume.delete(place.options)
