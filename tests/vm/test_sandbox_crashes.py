"""A process that dies at any point leaves nothing behind that one next command does not remove."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hosting import ON_ANY_ENGINE, QUICK, Place, wait_for
from microsim_vm import Options, Sandbox, owner, reaper, runtime
from microsim_vm.errors import SandboxNotFoundError
from microsim_vm.sandbox import saved
from microsim_vm.world import warm

pytestmark = pytest.mark.timeout(120)

COUNTER = "(i=0; while :; do i=$((i+1)); echo $i >>/workspace/count; sleep 0.05; done) >/dev/null 2>&1 &"
# The victims' points: the imports, and what stands still.
BOOTING = "from microsim_vm import warmup; stop(warmup, '_wait_for_agent')\n"
LOADING = """
from microsim_vm.agent import AgentClient
stop(AgentClient, '_send', lambda self, op, *rest: op == 'world.load', after=True)
"""
SEALING = "stop(os, 'rename', lambda old, new: new.parent.name == 'snapshots')\n"
FORKING = "from microsim_vm.machine import Machine; stop(Machine, 'adopt')\n"
SAVING = "from microsim_vm.sandbox import saved; stop(saved, 'seal')\n"
KEEPING = "stop(os, 'rename', lambda old, new: new.parent.name == 'saved')\n"
WRITING_IMAGE = "stop(os, 'rename', lambda old, new: new.name == 'hibernated')\n"
WRITING_RECORD = "from microsim_vm.sandbox.live import Live; stop(Live, '_put')\n"
ENDING = "from microsim_vm.sandbox.live import Live; stop(Live, 'end')\n"
REMOVING = "import shutil; stop(shutil, 'rmtree', after=True)\n"
# Of gVisor's guests: a layer is unpacked; one is started; one is being written, or has been, and not started again.
UNPACKING = "stop(os, 'rename', lambda old, new: str(new).endswith('.tree'))\n"
UNPACKED = "stop(os, 'rename', lambda old, new: str(old).endswith('.partial') and 'root-' in str(old))\n"
STARTED = "from microsim_vm.engines import overuse; stop(overuse, 'watch')\n"
CHECKPOINTING = """
import subprocess
stop(subprocess.Popen, 'communicate', lambda self, *rest: 'checkpoint' in self.args)
"""
CHECKPOINTED = "from microsim_vm.engines.gvisor import GvisorVm; stop(GvisorVm, '_wait')\n"
STORING = "stop(os, 'replace', lambda old, new: str(new).endswith('checkpoint.img'))\n"
STARTING = "from microsim_vm.sandbox import launch; stop(launch, 'start')\n"
WAKING = """
from microsim_vm.agent import AgentClient
stop(AgentClient, '_send', lambda self, op, *rest: op == 'wake')
"""
FORK_POINT = """
sandbox = create()
stop(os, 'rename', lambda old, new: new.parent.name == 'forkpoint')
sandbox.fork()
"""


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Place:
    """Nothing is warm in it until a test lets something become so."""
    place = Place.fresh(tmp_path_factory.mktemp("cold"), engine)
    # In the user's cache: it writes the lock, an input of the next, and all trials of the engine are known after it.
    warm(place.template, Options(engine=engine), print)
    return place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Place:
    return Place.warm(tmp_path_factory.mktemp("crashes"), engine)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose number a dead one had."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def killed(place: Place, body: str, *arguments: object) -> int:
    """Kill a script where it stands still, and return the process's number."""
    with place.session(body, *arguments) as victim:
        victim.expect("stopped")
        victim.kill()
    return victim.process.pid


def listed(place: Place) -> list[str]:
    """Give the one next command."""
    return [each.id for each in Sandbox.list(place.options)]


# The first time to unpack the image, and the next ones, which find in part what the one before has left.
GVISORS = {
    "unpacking": UNPACKING, "unpacked": UNPACKED, "started": STARTED, "checkpointing": CHECKPOINTING,
    "checkpointed": CHECKPOINTED, "storing": STORING, "boot": BOOTING, "load": LOADING, "seal": SEALING,
}  # fmt: skip
QEMUS = {"boot": BOOTING, "load": LOADING, "seal": SEALING}
if QUICK != "qemu":  # loading differs from booting in nothing that it has on the host, and takes seconds of emulation
    del QEMUS["load"]


def test_killed_while_the_first_snapshot_is_made_and_then_it_is_made_anew(cold: Place, engine: str) -> None:
    """One after the other, in one place: each finds what the one before has left."""
    for name, point in (GVISORS if engine == "gvisor" else QEMUS).items():
        pid = killed(cold, point + "create()")
        assert listed(cold) == [], name
        assert cold.left(pid) == [], name
        assert list(cold.cache.folder("snapshots").iterdir()) == [], name
        # What was unpacked in part is replaced by the next one, and nothing takes it for whole meanwhile.
        partials = list(cold.cache.root.rglob("*.partial"))
        assert bool(partials) == (point in (UNPACKING, UNPACKED)), name
        for partial in partials:
            assert partial.is_dir()
            assert not partial.with_suffix("").exists()
    if engine == QUICK:
        lines: list[str] = []
        with cold.create(seed=3, progress=lines.append) as sandbox:
            assert sandbox.exec("echo $EPISODE_SEED").stdout == "3\n"
        assert [line for line in lines if line.startswith("warmed up in")]
        assert list(cold.cache.root.rglob("*.partial")) == []


# What depends on the engine, as far as QEMU has it; and the store's own files.
RUNNING = {"fork": FORKING + "create()", "copied": SAVING + "create().snapshot('half')", "forkpoint": FORK_POINT,
           "image": WRITING_IMAGE + "create().hibernate()"}  # fmt: skip
STORED = {
    "exec": "create().exec_stream('echo; sleep 600', on_stdout=lambda _: say('stopped'), timeout_seconds=600)",
    "snapshot": KEEPING + "create().snapshot('half')",
    "record": "sandbox = create()\n" + WRITING_RECORD + "sandbox.hibernate()",
    "removal": "sandbox = create()\n" + REMOVING + "sandbox.kill()",
}


@pytest.mark.parametrize(
    ("engine", "body"),
    [
        pytest.param(engine, body, id=f"{engine}-{name}")
        for engine in ("qemu", "gvisor")
        for name, body in (RUNNING | STORED if engine == QUICK else RUNNING).items()
    ],
    indirect=["engine"],
)
def test_killed_while_a_sandbox_runs(place: Place, stranger: subprocess.Popen[bytes], body: str) -> None:
    with runtime.locked() as path:
        dead = owner.Process(stranger.pid, 1, owner.boot_id())
        planted = runtime.new_record(path, runtime.GuestRecord(dead, 100, "a stranger's number", dead))
    pid = killed(place, body)
    assert any(line.startswith("sandbox sb-") for line in reaper.reap(place.cache))
    assert place.left(pid) == []
    assert not planted.exists()
    assert stranger.poll() is None
    assert saved.listed(place.cache) == []
    with place.create() as sandbox:
        assert sandbox.exec("echo well").stdout == "well\n"


@pytest.mark.parametrize("engine", ["gvisor"], indirect=True)
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(STARTED + "create()", id="restore"),
        pytest.param("sandbox = create()\n" + CHECKPOINTING + "sandbox.fork()", id="copying"),
        pytest.param("sandbox = create()\n" + CHECKPOINTED + "sandbox.fork()", id="copied"),
        pytest.param("sandbox = create()\n" + STARTED + "sandbox.fork()", id="going on"),
        pytest.param("sandbox = create()\n" + STORING + "sandbox.snapshot('half')", id="storing"),
        pytest.param("sandbox = create()\n" + CHECKPOINTING + "sandbox.hibernate()", id="hibernating"),
        pytest.param("sandbox = create()\n" + CHECKPOINTED + "sandbox.hibernate()", id="hibernated"),
        pytest.param("sandbox = create(); sandbox.pause(); say('stopped'); sleep()", id="paused"),
        pytest.param("sandbox = create(); sandbox.fork_tree(3); say('stopped'); sleep()", id="tree"),
    ],
)
def test_gvisors_guests_killed_while_a_sandbox_runs(place: Place, body: str) -> None:
    pid = killed(place, "create().kill()\n" + body)
    assert any(line.startswith("sandbox sb-") for line in reaper.reap(place.cache))
    assert place.left(pid) == []
    assert saved.listed(place.cache) == []


def test_killed_before_the_engine_knows_whose_it_is(place: Place, tmp_path: Path) -> None:
    """The engine's process is told to end with its owner a moment after it was started: let that moment be long."""
    slow = tmp_path / "setpriv"
    slow.write_text(f'#!/bin/sh\n: >{tmp_path}/started\nsleep 1\nexec {shutil.which("setpriv")} "$@"\n')
    slow.chmod(0o755)
    body = "os.environ['PATH'] = sys.argv[3] + ':' + os.environ['PATH']\ncreate()"
    with place.session(body, tmp_path) as victim:
        wait_for((tmp_path / "started").exists, "the start of the engine's process")
        victim.kill()
    time.sleep(1.5)
    assert listed(place) == []
    assert place.left(victim.process.pid) == []


def counted(sandbox: Sandbox) -> list[int]:
    return [int(line) for line in sandbox.filesystem.read("/workspace/count").split()]


def hibernated(place: Place) -> str:
    """Leave a counter that hibernates, and return its sandbox's id."""
    sandbox = place.create()
    sandbox.exec(COUNTER, check=True)
    wait_for(lambda: sandbox.filesystem.exists("/workspace/count"), "counting")
    sandbox.hibernate()
    return sandbox.id


def goes_on(place: Place, sandbox: str) -> None:
    """Wake a counter that was saved, see that it goes on without a gap, and kill it."""
    with Sandbox.get(sandbox, place.options) as woken:
        before = counted(woken)
        assert before == list(range(1, len(before) + 1))
        wait_for(lambda: len(counted(woken)) > len(before) + 2, "more counting")
        after = counted(woken)
        assert after == list(range(1, len(after) + 1))
    wait_for(lambda: place.left() == [], "the end of its keeper")


def test_killed_once_the_hibernation_is_complete(place: Place) -> None:
    with place.session(
        f"sandbox = create()\nsandbox.exec({COUNTER!r})\nsay(sandbox.id)\n{ENDING}sandbox.hibernate()"
    ) as victim:
        sandbox = victim.expect("sb-")
        victim.expect("stopped")
        victim.kill()
    assert listed(place) == [sandbox]
    assert place.left(victim.process.pid, hibernated=[sandbox]) == []
    goes_on(place, sandbox)


@pytest.mark.parametrize("point", [STARTING, WAKING], ids=["started", "restored"])
def test_killed_while_a_sandbox_wakes(place: Place, point: str) -> None:
    # In the process that made it; any other has it woken in a keeper.
    body = f"sandbox = create()\nsandbox.exec({COUNTER!r})\nsandbox.hibernate()\nsay(sandbox.id)\n{point}sandbox.wake()"
    with place.session(body) as victim:
        sandbox = victim.expect("sb-")
        victim.expect("stopped")
        victim.kill()
    pid = victim.process.pid
    record = place.store.read(sandbox)
    assert record is not None
    assert record.status == "waking"
    assert listed(place) == [sandbox]
    assert place.left(pid, hibernated=[sandbox]) == []
    assert Sandbox.get(sandbox, place.options).status == "hibernated"
    goes_on(place, sandbox)


def test_killed_after_a_wake_is_the_end_of_what_ran_on(place: Place) -> None:
    body = "sandbox = create(); sandbox.hibernate(); sandbox.exec('true'); say(sandbox.id); say('stopped'); sleep()"
    with place.session(body) as victim:
        sandbox = victim.expect("sb-")
        victim.expect("stopped")
        victim.kill()
    with pytest.raises(SandboxNotFoundError):
        Sandbox.get(sandbox, place.options)
    assert place.left(victim.process.pid) == []


@ON_ANY_ENGINE
def test_a_passer_by_wakes_it_without_taking_it_along(place: Place) -> None:
    sandbox = hibernated(place)
    with place.session("say(Sandbox.get(sys.argv[3], options).exec('echo up').stdout)", sandbox) as visitor:
        visitor.expect("up")
        assert visitor.wait() == 0
    assert Sandbox.get(sandbox, place.options).status == "running"
    goes_on(place, sandbox)


@ON_ANY_ENGINE
def test_a_record_with_a_strangers_number_is_that_of_a_dead_one(
    place: Place, stranger: subprocess.Popen[bytes]
) -> None:
    sandbox = hibernated(place)
    record = place.store.read(sandbox)
    assert record is not None
    dead = owner.Process(stranger.pid, 1, owner.boot_id())
    place.store.write(msgspec.structs.replace(record, status="running", owner=dead, pid=stranger.pid))
    door = runtime.folder() / f"{stranger.pid}-1.door"
    door.touch()
    assert listed(place) == []
    assert place.left(stranger.pid) == []
    assert stranger.poll() is None


INTERRUPTED = [
    pytest.param(FORKING + "say('busy'); create()", id="create"),
    pytest.param("sandbox = create(); say('busy'); sandbox.exec('sleep 600', timeout_seconds=600)", id="exec"),
    pytest.param("sandbox = create(); say('busy'); sandbox.fork_tree(200)", id="fork_tree"),
]  # fmt: skip


@ON_ANY_ENGINE  # that the end of a session is that of each engine's guests is in test_host_processes.py
@pytest.mark.parametrize("body", INTERRUPTED)
def test_ctrl_c_ends_everything_quickly(place: Place, body: str) -> None:
    with place.session(body) as other:
        other.expect("busy")
        time.sleep(1.0)
        other.process.send_signal(signal.SIGINT)
        assert other.wait(30) != 0
        assert "KeyboardInterrupt" in other.text
        assert place.left(other.process.pid) == []
