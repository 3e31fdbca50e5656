"""Sessions that die, are interrupted or race: no guest outlives its owner, nobody else's is touched."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest
from hosting import ON_ANY_ENGINE, Session, fresh_cache, guests_of, plain, session, wait_for, warm_cache
from microsim_vm import runtime
from microsim_vm.cache import Cache
from microsim_vm.machine import Machine
from microsim_vm.options import Options
from microsim_vm.owner import start_time
from microsim_vm.templates.spec import Template
from microsim_vm.world import WarmWorld, warm

pytestmark = pytest.mark.timeout(120)

WARM = """
world = warm(template, options, say)
say("warm", "reused" if world.reused else "booted")
"""
# The moment between the last file of a snapshot and its manifest, stretched.
WARM_SLOWLY = (
    """
from microsim_vm import snapshots
seal = snapshots.seal

def slowly(*args):
    time.sleep(5)
    return seal(*args)

snapshots.seal = slowly
"""
    + WARM
)
HOLD = (
    WARM
    + """
machines = [world.fork(seed) for seed in (1, 2)]
say("forked", *[machine.pid for machine in machines])
"""
)
SLEEP = "time.sleep(600)\n"


class Place:
    """A template and a cache in which it is warm."""

    def __init__(self, template: Template, cache: Cache, engine: str) -> None:
        self.template = template
        self.cache = cache
        self.engine = engine
        self.options = Options(cache_dir=cache.root, engine=engine)
        self.world: WarmWorld = warm(template, self.options, print)

    @property
    def arguments(self) -> tuple[Path, Path, str]:
        return self.template.path, self.cache.root, self.engine


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Place:
    folder = tmp_path_factory.mktemp("processes")
    template = plain(folder)
    return Place(template, warm_cache(folder / "cache", template, engine), engine)


def records_of(pid: int) -> list[runtime.GuestRecord]:
    with runtime.locked() as path:
        return [record for _, record in runtime.records(path) if record.owner.pid == pid]


def pids_in(line: str) -> list[int]:
    return [int(word) for word in line.split() if word.isdigit()]


def gone(pids: list[int]) -> bool:
    """Tell whether processes have ended; whether init has buried them yet is not ours to say."""
    return not any(start_time(pid) is not None for pid in pids)


def test_a_killed_session_leaves_no_guest_and_its_records_go_at_the_next_start(place: Place) -> None:
    with session(HOLD + SLEEP, *place.arguments) as other:
        guests = pids_in(other.expect("forked"))
        assert len(guests) == 2
        assert set(guests) <= set(guests_of(place.cache.root))
        other.kill()
    wait_for(lambda: gone(guests), "the end of the guests")
    assert len(records_of(other.process.pid)) == 2
    warm(place.template, place.options, print)
    assert records_of(other.process.pid) == []


def test_a_live_sessions_guests_survive_anothers_start_and_end(place: Place) -> None:
    alive = """
machine = machines[0]
while not Path(sys.argv[3]).exists():
    time.sleep(0.01)
say("answered", machine.exec("echo $EPISODE_SEED").stdout)
"""
    question = place.cache.root / "question"
    with session(HOLD + alive, *place.arguments, question) as first:
        guests = pids_in(first.expect("forked"))
        with session(HOLD + SLEEP, *place.arguments) as second:
            second.expect("forked")
            second.kill()
        runtime.reap(place.cache)
        assert len(records_of(first.process.pid)) == 2
        assert all(psutil.pid_exists(pid) for pid in guests)
        question.touch()
        assert first.expect("answered").split()[1] == "1"


@pytest.mark.parametrize("interrupts", [1, 2])
def test_ctrl_c_during_the_boot_ends_everything(place: Place, tmp_path: Path, interrupts: int) -> None:
    cache = fresh_cache(tmp_path / "cold")
    with session(WARM, place.template.path, cache.root, place.engine) as other:
        wait_for(lambda: guests_of(cache.root), "a boot")
        _interrupt(other, interrupts)
    assert guests_of(cache.root) == []
    if interrupts == 1:
        assert list(cache.folder("staging").iterdir()) == []
        assert records_of(other.process.pid) == []
    assert list(cache.folder("snapshots").iterdir()) == []


@pytest.mark.parametrize(
    "body",
    [
        pytest.param('say("busy"); machines[0].exec("sleep 600", timeout_seconds=600)', id="command"),
        pytest.param(
            'say("busy"); machines[0].run_episode(b"def act(o): return 0", filename="c.py", max_steps=10**7,'
            " timeout_seconds=600)",
            id="episode",
        ),
        pytest.param(
            'Path(sys.argv[2], "c.py").write_text("def act(o): return 0"); say("busy"); '
            'world.map(Path(sys.argv[2], "c.py"), range(8), workers=2, max_steps=10**7)',
            id="map",
        ),
    ],
)
def test_ctrl_c_during_an_episode_ends_everything(place: Place, body: str) -> None:
    with session(HOLD + body + "\n", *place.arguments) as other:
        other.expect("busy")
        time.sleep(1.0)
        children = psutil.Process(other.process.pid).children()
        guests = [child.pid for child in children if child.name().startswith(("qemu", "runsc"))]
        if "map" in body:
            assert len(guests) >= 4  # two of them change from moment to moment, and one may be started ahead
        else:
            assert len(guests) == 2
        every = [child.pid for child in psutil.Process(other.process.pid).children(recursive=True)]
        _interrupt(other, 1)
    wait_for(lambda: gone(every), "the end of the guests")


def _interrupt(other: Session, times: int) -> None:
    """Press Ctrl-C, twice fast where asked, and expect a quick and unsuccessful end."""
    for _ in range(times):
        other.process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert other.wait(30) != 0
    assert "KeyboardInterrupt" in other.text


def test_a_guest_outlives_the_thread_that_forked_it(place: Place) -> None:
    made: list[Machine] = []
    thread = threading.Thread(target=lambda: made.append(place.world.fork(5)))
    thread.start()
    thread.join()
    with made[0] as machine:
        time.sleep(0.5)
        assert machine.exec("echo $EPISODE_SEED").stdout == "5\n"


def test_a_guest_inherits_no_descriptor_and_no_environment(place: Place, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, open(tmp_path / "ours", "w") as ours:
        for inheritable in (server.fileno(), ours.fileno()):
            os.set_inheritable(inheritable, True)
        with place.world.fork(3) as machine:
            process = Path(f"/proc/{machine.pid}")
            assert process.joinpath("environ").read_bytes() == b""
            targets = [os.readlink(entry) for entry in process.joinpath("fd").iterdir()]
            sockets = [target for target in targets if target.startswith("socket:")]
            assert f"socket:[{os.fstat(server.fileno()).st_ino}]" not in sockets
            assert len(sockets) == 2  # the agent's channel, and a way to the engine: pairs without a name
            for name in ("tcp", "tcp6", "udp", "udp6"):
                listed = process.joinpath("net", name).read_text()
                assert not any(target[8:-1] in listed.split() for target in sockets)
            for line in process.joinpath("net/unix").read_text().splitlines()[1:]:
                fields = line.split()
                if f"socket:[{fields[6]}]" in sockets:
                    assert len(fields) == 7, "a socket with a path"
                    assert fields[5] == "03", "a socket that is not connected"
    if place.engine == "gvisor":  # whose kernel and file server have what is theirs; the guest has none of it
        files = {target for target in targets if target.startswith("/") and not target.startswith("/dev/")}
        assert {Path(target).name for target in files} == set()
        return
    image = place.world.snapshot.directory
    files = {target for target in targets if target.startswith("/") and not target.startswith("/dev/")}
    layers = {str(path.resolve()) for path in (*place.cache.folder("bases").resolve().glob("*/base.erofs"),
              *place.cache.folder("pythons").resolve().glob("*/python.erofs"),
              *place.cache.folder("images").glob("*/world.erofs"))}  # fmt: skip
    assert files <= {str(image / "ram"), str(image / "state")} | layers
    assert {target for target in targets if target.startswith("/dev/")} <= {"/dev/null"}
    rest = {target.partition(":")[0] for target in targets if not target.startswith("/")}
    assert rest <= {"socket", "pipe", "anon_inode"}


@ON_ANY_ENGINE
def test_two_sessions_warm_the_same_world_once_also_in_a_deep_folder(tmp_path: Path, engine: str) -> None:
    deep = tmp_path / ("tïef und breit " * 8).strip()
    assert len(str(deep)) > 120
    template = plain(deep)
    cache = fresh_cache(deep / "cache")
    (deep / "tmp").mkdir()
    env = {"TMPDIR": str(deep / "tmp")}
    use = WARM + 'print("seed", world.fork(4).exec("echo $EPISODE_SEED").stdout)\n'
    with (
        session(use, template.path, cache.root, engine, env=env) as one,
        session(use, template.path, cache.root, engine, env=env) as two,
    ):
        assert (one.wait(), two.wait()) == (0, 0)
    both = one.text + "\n" + two.text
    assert both.count("warm booted") == both.count("warm reused") == 1
    assert both.count("warmed up in") == 1
    waited = two if "warm reused" in two.text else one
    assert "waiting for another process: " in waited.text
    assert not any(line.startswith("booting") for line in waited.text.splitlines())  # a trial of KVM does that, too
    assert both.count("seed 4") == 2
    assert guests_of(cache.root) == []
    assert list((deep / "tmp").iterdir()) == []


@ON_ANY_ENGINE
def test_worlds_with_different_keys_are_warmed_side_by_side(tmp_path: Path, engine: str) -> None:
    cache = fresh_cache(tmp_path / "cache")
    first, second = plain(tmp_path / "a"), plain(tmp_path / "b", ("start: 1", "start: 100"))
    with (
        session(WARM, first.path, cache.root, engine) as one,
        session(WARM, second.path, cache.root, engine) as two,
    ):
        wait_for(lambda: len(guests_of(cache.root)) == 2, "two boots at a time")
        for other in (one, two):
            _interrupt(other, 1)
    assert guests_of(cache.root) == []


@ON_ANY_ENGINE
def test_the_builder_is_killed_and_a_waiting_session_takes_over(tmp_path: Path, engine: str) -> None:
    template, cache = plain(tmp_path), fresh_cache(tmp_path / "cache")
    with session(WARM_SLOWLY, template.path, cache.root, engine) as builder:
        builder.expect("loading plain")  # a trial of KVM boots a guest, too, and holds no lock of the world
        with session(WARM + SLEEP, template.path, cache.root, engine) as waiting:
            waiting.expect("waiting for another process: the warm-up of plain")
            # The device state, or the checkpoint, is written after the memory and before the manifest.
            last = "state" if engine == "qemu" else "checkpoint.img"
            wait_for(lambda: list(cache.folder("staging").glob(f"*/work/{last}")), "the snapshot's last file")
            builder.kill()
            assert list(cache.folder("snapshots").iterdir()) == []
            waiting.expect("warm booted")
    assert [line for line in waiting.output if line.startswith("warmed up in")]
    lines: list[str] = []
    world = warm(template, Options(cache_dir=cache.root, engine=engine), lines.append)
    assert world.reused
    assert [line for line in lines if line.startswith("removed what a dead process had left: half-written snapshot-")]
    assert list(cache.folder("staging").iterdir()) == []
    with world.fork(9) as machine:
        assert machine.exec("echo $EPISODE_SEED").stdout == "9\n"


def test_a_killed_build_of_the_base_system_leaves_no_process_and_no_mount(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "empty")
    with session(WARM, plain(tmp_path).path, cache.root, "auto") as builder:
        builder.expect("building the base system")
        wait_for(lambda: _children(builder.process.pid, "apt-get") or _children(builder.process.pid, "dpkg"),
                 "a package being fetched or unpacked", 30)  # fmt: skip
        tree = psutil.Process(builder.process.pid).children(recursive=True)
        builder.kill()
    wait_for(lambda: gone([child.pid for child in tree]), "their end")
    mounts = subprocess.run(["findmnt", "--list", "--noheadings", "--output", "TARGET"], capture_output=True, text=True)
    assert str(cache.root) not in mounts.stdout
    assert "mmdebstrap" not in mounts.stdout
    runtime.reap(cache)
    assert list(cache.folder("staging").iterdir()) == []


def _children(pid: int, name: str) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        try:
            if child.name().startswith(name):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found
