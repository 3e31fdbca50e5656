"""What every engine promises of a guest, and what the others of these files do not show of each."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest
from hosting import REPOSITORY, wait_for
from microsim_vm import runtime
from microsim_vm.engines.base import ABILITIES
from microsim_vm.errors import CommandInterruptedError, ControllerError, UnsupportedByEngineError
from microsim_vm.machine import Machine
from microsim_vm.options import Options
from microsim_vm.templates import rootfs
from microsim_vm.world import WarmWorld, warm

from pytest_microsim.gates.fingerprints import fingerprint_of_columns

pytestmark = pytest.mark.timeout(300)

BALANCE = (REPOSITORY / "example_tests/controllers/balance.py").read_bytes()
MEMORY_MIB = 256  # the world's template says so
ENTROPY_SCRIPT = """
import ctypes, os, uuid
AT_RANDOM = 25
libc = ctypes.CDLL(None)
libc.getauxval.restype = ctypes.c_void_p
with open("/dev/urandom", "rb", buffering=0) as file:
    print(file.read(16).hex())
print(os.getrandom(16).hex(), ctypes.string_at(libc.getauxval(AT_RANDOM), 16).hex(), uuid.uuid4().hex)
"""
SEEDED = b"import random\nprint(random.random())\ndef act(observation):\n    return 0\n"
# All that root can do to files, to each file and folder there is; a large one is not written to, as a copy of it
# would be the guest's memory.
VANDAL = r"""
import collections, json, os
done = collections.Counter()
def attempt(name, action):
    try:
        action()
    except OSError:
        return
    done[name] += 1
def append(path):
    with open(path, "ab") as file:
        file.write(b"was here")
for folder, names, files in os.walk("/", topdown=False):
    if folder.split("/")[1] in ("proc", "sys", "dev", "run"):
        continue
    for name in files:
        path = os.path.join(folder, name)
        if not os.path.islink(path):
            attempt("chmod", lambda: os.chmod(path, 0o777))
            attempt("utime", lambda: os.utime(path, (0, 0)))
            if os.path.getsize(path) < 10_000:
                attempt("write", lambda: append(path))
        attempt("rename", lambda: os.rename(path, path + "~"))
        attempt("delete", lambda: os.remove(path + "~"))
    attempt("create", lambda: append(folder + "/new"))
    for name in names:
        attempt("folder", lambda: os.rename(os.path.join(folder, name), os.path.join(folder, name + "~")))
print(json.dumps(done))
"""
DISABLE = "sleep 0.5; kill -STOP $(grep -l 'microsim[_]guest' /proc/[0-9]*/cmdline | cut -d/ -f3)"
BOMB = "import os\ndef act(observation):\n    while True:\n        os.fork()\n"
HOG = "def act(observation):\n    hoard = []\n    while True:\n        hoard.append(bytearray(b'x') * 4_000_000)\n"


@contextlib.contextmanager
def nothing_starts() -> Iterator[None]:
    """Find out that no guest of ours was admitted meanwhile."""
    before = _guests()
    yield
    assert _guests() == before


def _guests() -> list[str]:
    with runtime.locked() as path:
        return sorted(file.name for file, record in runtime.records(path) if record.owner.pid == os.getpid())


def answers(machine: Machine) -> None:
    assert machine.exec("echo alive", timeout_seconds=30).stdout == "alive\n"


def survivors(machine: Machine) -> str:
    """Return what is there of the shells of a bomb."""
    return machine.exec("grep -l 'b [|] b' /proc/[0-9]*/cmdline", timeout_seconds=30).stdout


def test_what_an_engine_lacks_is_refused_with_the_reason(cartpole: WarmWorld, engine: str) -> None:
    lacks = cartpole.forker.engine.lacks
    assert sorted(lacks) == ([] if engine == "qemu" else ["foreign images", "kernel", "volumes", "wall clock"])
    for ability in lacks:
        ask: Callable[[], object] = partial(warm, cartpole.template, Options(engine=engine), print, needs=[ability])
        if ability == "wall clock":
            ask = partial(cartpole.fork, 1, wall_clock=1e9)
        with nothing_starts(), pytest.raises(UnsupportedByEngineError) as caught:
            ask()
        assert caught.value.what == f"a guest of engine gvisor cannot {ABILITIES[ability]}"
        assert caught.value.cause == lacks[ability]
        assert "qemu" in caught.value.hint
    if not lacks:
        with cartpole.fork(1, wall_clock=1e9) as machine:
            assert 0 <= float(machine.exec("date +%s", check=True).stdout) - 1e9 < 60


def test_forks_of_one_seed_share_what_is_seeded_and_no_entropy(cartpole: WarmWorld) -> None:
    """The entropy is read by the very first thing that a fork does."""
    entropy: list[str] = []
    seeded = set()
    names = set()
    for _ in range(4):
        with cartpole.fork(5, wall_clock="now") as machine:
            entropy += machine.exec(["python3", "-c", ENTROPY_SCRIPT], check=True).stdout.split()
            names.add(machine.exec("hostname", check=True).stdout.strip())
            assert machine.id in names
            before, guest, after = time.time(), float(machine.exec("date +%s.%N").stdout), time.time()
            assert before - 0.5 < guest < after + 0.5
            hand = machine.reset()[0]
            record = machine.run_episode(SEEDED, filename="idle.py", max_steps=5)
            assert record.error is None
            fingerprint = fingerprint_of_columns(record.columns)
            seeded.add((str(hand), str(machine.probes), record.controller_stdout, fingerprint))
    assert len(names) == 4
    assert len(entropy) == len(set(entropy)) == 4 * 4, "forks share kernel random bytes"
    assert len(seeded) == 1, "the same seed gives two episodes"


def test_what_guests_share_is_beyond_the_reach_of_their_root(cartpole: WarmWorld) -> None:
    before = _shared(cartpole)
    with cartpole.fork(1) as vandal:
        result = vandal.exec(["python3", "-c", VANDAL], check=True, timeout_seconds=240)
        done = json.loads(result.stdout)
        assert min(done[name] for name in ("chmod", "utime", "write", "rename", "delete", "create")) > 100
        assert done["folder"] > 0  # Linux's overlay refuses to rename those that are in a layer
        assert not vandal.filesystem.exists("/usr/bin/env")
        with cartpole.fork(2) as other:  # made while the first one still lives
            assert other.exec("env python3 -c 'print(6 * 7)'", check=True).stdout == "42\n"
            assert other.run_episode(BALANCE, filename="balance.py", max_steps=20).error is None
    assert _shared(cartpole) == before


def _shared(world: WarmWorld) -> str:
    """Return a hash of all that the host's files say about what guests have in common."""
    layers = world.forker.boot.layers
    shared = [rootfs.ensure(layers)] if world.forker.engine.name == "gvisor" else list(layers.values())
    digest = hashlib.sha256()
    for top in shared:
        assert top.exists()
        for path in sorted([top, *top.rglob("*")]):
            found = path.lstat()
            facts = (str(path), found.st_mode, found.st_uid, found.st_gid, found.st_size, found.st_mtime_ns)
            digest.update(repr(facts).encode())
            if top.is_file():
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def test_bombs_and_hogs_are_limited_and_disturb_nobody(cartpole: WarmWorld, engine: str) -> None:
    with cartpole.fork(3) as quiet:
        expected = quiet.run_episode(BALANCE, filename="balance.py", max_steps=100)
    with cartpole.fork(3) as other, cartpole.fork(4) as machine, ThreadPoolExecutor(1) as pool:
        episode = pool.submit(other.run_episode, BALANCE, filename="balance.py", max_steps=100)

        # What gVisor's kernel lets a bomb run into first is not certain.
        for source, reason in ((BOMB, "process limit" if engine == "qemu" else "limit"), (HOG, "memory limit")):
            record = machine.run_episode(source.encode(), filename="bad.py", max_steps=5, timeout_seconds=30.0)
            assert isinstance(record.error, ControllerError)
            assert reason in record.error.cause
            answers(machine)

        result = machine.exec("b() { b | b & b; }; b", timeout_seconds=8)
        assert "processes" in result.limits_hit
        machine.exec("b() { b | b & b; }; (sleep 0.2; b) & exit 0", check=True)  # one that its command leaves behind
        wait_for(lambda: not survivors(machine), "the end of both bombs")
        result = machine.exec(["python3", "-c", "hoard = []\nwhile True: hoard.append(bytearray(b'x') * 4_000_000)"])
        assert (result.exit_code, result.limits_hit) == (-9, ("memory",))
        answers(machine)
        assert machine.run_episode(BALANCE, filename="balance.py", max_steps=10).error is None

        assert episode.result(120).columns == expected.columns
        answers(other)


def test_files_in_memory_are_counted(cartpole: WarmWorld, engine: str) -> None:
    """A file in memory is nobody's, so that no command's limit counts it."""
    with cartpole.fork(1) as machine:
        # Not all at once: what the guest itself is too slow for, the host sees; see below.
        piece = "head -c 4M /dev/zero >>/dev/shm/large || exit; sleep 0.02"
        result = machine.exec(f"for i in $(seq {2 * MEMORY_MIB // 4}); do {piece}; done", timeout_seconds=120)
        if engine == "qemu":  # such a file system is half as large as the memory
            assert result.exit_code == 1
            assert "No space left" in result.stderr
        else:  # what writes is killed, as where a kernel runs out of memory
            assert result.exit_code != 0
            assert "memory" in result.limits_hit
        assert machine.filesystem.stat("/dev/shm/large").size < 2 * MEMORY_MIB << 20
        machine.filesystem.remove("/dev/shm/large")
        answers(machine)


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(f"head -c {3 * MEMORY_MIB}M /dev/zero >/dev/shm/large", id="memory"),
        pytest.param(
            "mkdir /dev/shm/many; cd /dev/shm/many; exec python3 -c 'import os\n"
            "for n in range(10 ** 7): os.mknod(str(n).zfill(250))'",
            id="kernel",
        ),
    ],
)
def test_a_guest_whose_root_disables_its_limits_is_still_contained(
    cartpole: WarmWorld, engine: str, attack: str
) -> None:
    """Its agent is stopped first. What is left is the machine's size, or whoever looks at it from outside."""
    with cartpole.fork(2) as other, cartpole.fork(1) as machine, Held(machine.pid) as held:
        machine.filesystem.write("/workspace/attack", f"{DISABLE}\n{attack}\n")
        started = time.monotonic()
        if engine == "qemu":  # it has its own memory, and no more
            machine.exec("setsid sh attack >/dev/null 2>&1 &", check=True)
            while held.grew_within(4.0) and time.monotonic() - started < 20.0:
                time.sleep(0.1)
        else:
            with pytest.raises(CommandInterruptedError) as caught:
                machine.exec("sh attack", timeout_seconds=120)
            assert "the guest used" in caught.value.details
            assert "MiB of the host's memory" in caught.value.details
            assert time.monotonic() - started < 90.0
        assert 0 < held.most_mib < 1024
        answers(other)
        assert other.run_episode(BALANCE, filename="balance.py", max_steps=20).error is None


class Held:
    """Looks at what a guest's processes hold of the host's memory, each page that several share counted in parts."""

    def __init__(self, pid: int) -> None:
        self.most_mib = 0
        self._pid = pid
        self._grown = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Held:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def grew_within(self, seconds: float) -> bool:
        """Tell whether it has held more than ever, by 4 MiB at least, in that time."""
        return time.monotonic() - self._grown < seconds

    def _look(self) -> None:
        while not self._end.wait(0.5):  # a look takes a while itself
            now = self._mib()
            if now >= self.most_mib + 4:
                self._grown = time.monotonic()
            self.most_mib = max(self.most_mib, now)

    def _mib(self) -> int:
        lines: list[str] = []
        with contextlib.suppress(OSError, psutil.Error):  # it ends
            head = psutil.Process(self._pid)
            for each in (head, *head.children(recursive=True)):
                lines += Path(f"/proc/{each.pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) >> 10
