"""Controllers that nobody trusts, in a real guest: what they see, what they cannot do, and how each of them ends."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hosting import ON_ANY_ENGINE, Warmed
from microsim_vm.controllers import limited
from microsim_vm.episode import EpisodeRecord
from microsim_vm.errors import (
    ControllerError,
    ControllerLateError,
    ControllerLimitError,
    ControllerTimeoutError,
    InvalidEpisodeError,
)
from microsim_vm.machine import Machine

pytestmark = pytest.mark.timeout(180)

GOOD = "def act(observation):\n    return 1\n"
ACT = "\ndef act(observation):\n    return 1\n"


@pytest.fixture(scope="module")
def machine(warmed: Warmed) -> Iterator[Machine]:
    """One guest for all of them: after each, the next episode is as if nothing had been."""
    with warmed("faulty").fork(0) as fork:
        yield fork


def run(machine: Machine, source: str, *, seconds: float = 20.0, seed: int = 0, **limits: Any) -> EpisodeRecord:
    """Run one episode of ten steps."""
    most = limited(machine.limits, limits)
    return machine.run_episode(source.encode(), filename="foe.py", seed=seed, timeout_seconds=seconds, limits=most)


def assert_unharmed(machine: Machine) -> None:
    """The next episode is a good one, finds nothing of the last one, and the agent answers."""
    look = "import os\nprint(os.listdir('.'), os.listdir('/tmp'), os.listdir('/dev/shm'))\n"
    look += "print(sorted(n for n in os.listdir('/proc') if n.isdigit()))\n"
    record = run(machine, look + ACT)
    assert (record.error, record.steps, record.attempts) == (None, 10, ())
    assert record.controller_stdout == b"[] [] []\n['1', '2']\n"
    users = "for p in /proc/[0-9]*; do stat -c %u $p; done 2>/dev/null | grep -c 10001"
    assert machine.exec(users).stdout == "0\n", "a controller's process is left"


SIGHT = """
import ctypes, os, socket, sys
def attempt(name, action):
    try:
        print(name, action())
    except OSError as error:
        print(name, type(error).__name__)
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    return libc.syscall(*words) == -1 and os.strerror(ctypes.get_errno())
attempt("top", lambda: sorted(set(os.listdir("/")) - {"lib32", "libx32"}))
attempt("opt", lambda: os.listdir("/opt"))
attempt("dev", lambda: sorted(os.listdir("/dev")))
attempt("processes", lambda: sorted(n for n in os.listdir("/proc") if n.isdigit()))
attempt("found", lambda: [p for top in ("/opt", "/etc", "/usr/local", "/workspace", "/controller")
                          for p, _, files in os.walk(top) if "world.py" in files or "config.json" in files])
attempt("first", lambda: open("/proc/1/mem"))
attempt("first's files", lambda: os.open("/proc/1/fd/1", os.O_WRONLY))
attempt("first's root", lambda: os.listdir("/proc/1/root"))
attempt("kill", lambda: os.kill(1, 9))
attempt("sysrq", lambda: open("/proc/sysrq-trigger", "w"))
attempt("hostname", lambda: (open("/proc/sys/kernel/hostname").read().strip(), socket.gethostname()))
for path in ("/usr/lib/python3.11/os.py", "/opt/venv/pyvenv.cfg", "/etc/passwd", "/controller/x", "/bin/sh", "/x"):
    attempt("write " + path, lambda: open(path, "a"))
attempt("remove", lambda: os.rename("/usr/bin", "/tmp/bin"))
attempt("device", lambda: os.mknod("mem", 0o20666, os.makedev(1, 1)))
attempt("root", lambda: os.setuid(0))
attempt("chroot", lambda: os.chroot("."))
for name, *words in (("ptrace", 101, 16, 1), ("unshare", 272, 0x10000000), ("clone", 56, 0x10000011, 0, 0, 0, 0),
                     ("clone3", 435, 0, 0), ("mount", 165, 0, 0, 0, 0, 0), ("bpf", 321, 0, 0, 0), ("setns", 308, 0, 0),
                     ("io_uring", 425, 1, 0), ("userfaultfd", 323, 0), ("keyctl", 250, 0, 0), ("kexec", 246, 0, 0, 0),
                     ("peek", 310, 1, 0, 0, 0, 0, 0), ("seccomp", 317, 1, 0, 0), ("prctl", 157, 22, 2, 0)):
    attempt(name, lambda: call(*words))
for family in (1, 2, 10, 16, 17, 38, 40):
    attempt("family %d" % family, lambda: socket.socket(family, 5 if family == 38 else 2).close())
attempt("interfaces", lambda: [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line])
def reach(place):
    with socket.socket() as sock:
        sock.settimeout(2)
        sock.connect(place)
attempt("outside", lambda: reach(("10.0.0.1", 80)))
def loop():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        reach(server.getsockname())
attempt("loopback", loop)
attempt("capabilities", lambda: {l.split()[1] for l in open("/proc/self/status") if l.startswith("Cap")})
"""


def test_what_it_sees_and_what_it_is_refused(machine: Machine, engine: str) -> None:
    record = run(machine, SIGHT + ACT)
    assert record.error is None
    lines = dict(line.rsplit(" ", 1) if line.startswith(("write", "first's", "family")) else line.split(" ", 1)
                 for line in record.controller_stdout.decode().splitlines())  # fmt: skip
    refused = dict.fromkeys(
        (
            "ptrace",
            "unshare",
            "clone",
            "mount",
            "bpf",
            "setns",
            "io_uring",
            "userfaultfd",
            "keyctl",
            "kexec",
            "peek",
            "seccomp",
            "prctl",
        ),
        "Operation not permitted",
    )
    closed = ("/etc/passwd", "/controller/x", "/x", "/usr/lib/python3.11/os.py", "/opt/venv/pyvenv.cfg", "/bin/sh")
    assert lines == {
        "top": "['bin', 'controller', 'dev', 'empty', 'etc', 'lib', 'lib64', 'opt', 'proc', 'sbin', 'tmp', 'usr', "
               "'workspace']",
        "opt": "['venv']",
        "dev": "['fd', 'full', 'null', 'random', 'shm', 'stderr', 'stdin', 'stdout', 'urandom', 'zero']",
        "processes": "['1', '2']", "found": "[]", "first": "PermissionError", "first's files": "PermissionError",
        "first's root": "PermissionError", "kill": "PermissionError",
        "sysrq": "OSError" if engine == "qemu" else "PermissionError", "hostname": "('controller', 'controller')",
        **{f"write {path}": "PermissionError" for path in closed},
        "remove": "OSError",
        "device": "PermissionError", "root": "PermissionError", "chroot": "PermissionError",
        **refused, "clone3": "Function not implemented",
        "family 1": "None", "family 2": "None", "family 10": "None",
        **{f"family {family}": "OSError" for family in (16, 17, 38, 40)},
        "interfaces": "['lo']", "outside": "OSError", "loopback": "None", "capabilities": "{'0000000000000000'}",
    }  # fmt: skip
    if engine == "qemu":
        names = {"io_uring": "io_uring_setup", "kexec": "kexec_load", "peek": "process_vm_readv"}
        called = {names.get(name, name) for name in (*refused, "chroot", "mknodat")}
        assert set(record.attempts) == {f"the system call {name} was refused, once" for name in called}
    else:
        assert record.attempts == (), "gVisor's kernel tells nobody of what it refuses"
    assert_unharmed(machine)


def test_what_it_leaves_running_ends_with_it(machine: Machine) -> None:
    survivors = """
import os, signal, sys, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for detach in (False, True, True):
    if os.fork() == 0:
        if detach:
            os.setsid()
            if os.fork():
                os._exit(0)
        while True:
            open("/tmp/alive", "a").write("x")
            time.sleep(0.01)
os.symlink("/etc/shadow", "score.json")
open("score.json.tmp", "w").write('{"docked": 1}')
sys.modules["json"] = sys.modules["struct"] = None
"""
    started = time.monotonic()
    record = run(machine, survivors + ACT)
    assert time.monotonic() - started < 30.0
    assert (record.error, record.steps) == (None, 10)
    # Those that only detach others may not have ended yet.
    assert any(re.fullmatch("it left processes behind, which were killed: [345]", line) for line in record.attempts)
    assert record.metrics == {"steps": 10.0, "ok": 1.0}
    assert_unharmed(machine)
    # One whose own process ends takes them along at once, and is no longer there to answer.
    record = run(machine, survivors + "os._exit(3)\n")
    assert (type(record.error), record.error and record.error.cause) == (ControllerError, "it exited with 3")
    assert_unharmed(machine)


FILL = "    with open('x', 'wb', 0) as file:\n        while True:\n            file.write(bytes(65536))\n"
CROWD = "    for n in range(100000):\n        open(str(n), 'w').close()\n    import time\n    time.sleep(5)\n"
SPIN = "    while True: pass\n"
MANY_SPIN = "    import os\n    for _ in range(3): os.fork()\n    while True: pass\n"
# The moment before the end is for gVisor, where being full has to be seen.
THREADS = (
    "    import threading, time\n    try:\n"
    "        while True: threading.Thread(target=time.sleep, args=(60,)).start()\n"
    "    except RuntimeError:\n        time.sleep(0.5)\n        raise\n"
)
SOCKETS = """
    import socket
    held = []
    while True:
        held += socket.socketpair()
        for end in held[-2:]:
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
            try:
                while True: end.send(bytes(65536))
            except BlockingIOError: pass
"""
NAMELESS = """
    import os
    for _ in range(64):
        end = os.memfd_create("x")
        for _ in range(4): os.write(end, bytes(1 << 20))
"""
FILES = "    held = []\n    while True: held.append(open('/dev/null'))\n"


@pytest.mark.parametrize(
    ("act", "limits", "named"),
    [
        (FILL, {"workspace_mib": 4}, "workspace was full (controller.workspace_mib)"),
        (FILL, {"workspace_mib": 4096}, "memory limit (controller.memory_mib)"),
        (CROWD, {"workspace_files": 500}, "as many files as it may (controller.workspace_files)"),
        (SPIN, {"cpu_s": 0.5}, "processor time (controller.cpu_s)"),
        (MANY_SPIN, {"cpu_s": 1.0}, "processor time (controller.cpu_s)"),
        (THREADS, {}, "process limit (controller.processes)"),
        (NAMELESS, {"memory_mib": 32}, "memory limit (controller.memory_mib)"),
        (SOCKETS, {"memory_mib": 32, "open_files": 4096}, "memory limit (controller.memory_mib)"),
    ],
)
def test_a_limit_that_ends_it_is_named(machine: Machine, act: str, limits: dict[str, object], named: str) -> None:
    started = time.monotonic()
    record = run(machine, "def act(observation):\n" + act, **limits)
    assert time.monotonic() - started < 30.0
    assert type(record.error) is ControllerLimitError, repr(record)
    assert named in record.error.cause
    assert any(named in line for line in record.attempts)
    assert_unharmed(machine)


def test_limits_that_were_not_met_are_not_named(machine: Machine) -> None:
    record = run(machine, GOOD, processes=1)
    assert (record.error, record.attempts) == (None, ())
    full = """
import threading, time
for _ in range(31):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
def act(observation):
    time.sleep(0.2)
    return 1 / 0
"""
    record = run(machine, full, processes=32)
    assert type(record.error) is ControllerError, record.error
    assert "ZeroDivisionError" in record.error.what
    assert record.attempts == ()
    assert_unharmed(machine)


def test_open_files_and_each_files_size_are_limited(machine: Machine) -> None:
    record = run(machine, "def act(observation):\n" + FILES, open_files=32)
    assert type(record.error) is ControllerError
    assert "Too many open files" in record.error.what
    assert_unharmed(machine)


@ON_ANY_ENGINE
def test_endless_output_is_told_and_not_kept(machine: Machine) -> None:
    flood = "import os\ndef act(observation):\n    while True: os.write(1, b'x' * 65536)\n"
    record = run(machine, flood, seconds=2.0)
    assert type(record.error) is ControllerTimeoutError
    assert len(record.controller_stdout) < 5000
    (told,) = record.attempts
    assert int(told.split()[2]) > 1 << 20
    assert "bytes to stdout, more than are kept" in told
    assert_unharmed(machine)


@ON_ANY_ENGINE
@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("10 ** 400", "cannot be used"), ("[10 ** 400]", "cannot be used"), ("{i: 1 for i in range(1000)}", "at most"),
        ("{'k' * 1000: 1}", "at most"), ("bytearray(20_000_000)", "no answer"),
    ],
)  # fmt: skip
def test_actions_that_no_world_takes(machine: Machine, action: str, message: str) -> None:
    record = run(machine, f"def act(observation):\n    return {action}\n", memory_mib=128)
    assert type(record.error) is ControllerError
    assert message in record.error.what
    assert record.steps == 0


LINK = """
import os, struct, threading, time
fd = next(int(n) for n in os.listdir('/proc/self/fd') if int(n) > 2 and
          os.path.exists(f'/proc/self/fd/{n}') and 'socket' in os.readlink(f'/proc/self/fd/{n}'))
def send(text, size=0):
    os.write(fd, struct.pack('>II', len(text), size) + text)
"""


@ON_ANY_ENGINE
def test_answers_nobody_asked_for_and_endless_ones(machine: Machine) -> None:
    twice = LINK + "def act(observation):\n    send(b'{\"action\": 1}')\n    return 1\n"
    record = run(machine, twice)
    assert (type(record.error), record.steps) == (ControllerError, 0)
    assert record.error is not None
    assert "answered before it was asked" in record.error.what
    terabyte = LINK + "def act(observation):\n    os.write(fd, b'\\xff' * 8)\n    time.sleep(60)\n"
    record = run(machine, terabyte)
    assert type(record.error) is ControllerError
    assert "no answer" in record.error.what
    assert_unharmed(machine)


SLOW = """
import time
count = 0
def act(observation):
    global count
    count += 1
    if count in (3, 4):
        time.sleep(0.5)
    return float(count)
"""


@ON_ANY_ENGINE
def test_a_late_action_fails_or_is_stood_in_for(machine: Machine) -> None:
    record = run(machine, SLOW, step_deadline_s=0.25)
    assert (type(record.error), record.steps) == (ControllerLateError, 2)
    assert record.error is not None
    assert "missed the deadline of step 2" in record.error.what
    record = run(machine, SLOW, step_deadline_s=0.25, late="hold")
    assert (record.error, record.steps) == (None, 10)
    actions = record.columns["action"].tolist()
    # The answer that came too late is for an observation of the past, and is dropped.
    assert actions[:4] == [1.0, 2.0, 2.0, 2.0] or actions[:3] == [1.0, 2.0, 2.0]
    assert 2 <= record.late_steps <= 6
    assert 3.0 not in actions
    record = run(machine, SLOW, step_deadline_s=0.25, late="zero")
    assert (record.error, record.columns["action"].tolist()[2]) == (None, 0.0)
    hang = run(machine, "import time\ndef act(o):\n    time.sleep(60)\n", step_deadline_s=0.2, late="hold")
    assert type(hang.error) is ControllerLateError
    assert "no earlier action" in hang.error.what
    assert_unharmed(machine)


@ON_ANY_ENGINE
def test_simulated_time_truncates(machine: Machine) -> None:
    record = run(machine, GOOD, simulated_time_s=2.0)
    assert (record.steps, record.truncated, record.limit, record.simulated_s) == (4, True, "time", 2.0)
    record = run(machine, GOOD)
    assert (record.steps, record.truncated, record.limit, record.simulated_s) == (10, False, "", 5.0)


@ON_ANY_ENGINE
@pytest.mark.parametrize(
    ("seed", "message"),
    [(10, "rewards add up to inf"), (11, "'miss' as nan"), (12, "the name 'mmm"), (13, "'huge' as inf")],
)
def test_a_score_that_is_none_is_an_invalid_episode(machine: Machine, seed: int, message: str) -> None:
    record = run(machine, GOOD, seed=seed)
    assert type(record.error) is InvalidEpisodeError
    assert message in record.error.what
    assert record.steps == 10


@ON_ANY_ENGINE
def test_what_a_template_opens_and_how_it_scores(warmed: Warmed) -> None:
    source = """
import os, sys
sys.path.insert(0, "/opt/lib")
import gains
print(sorted(os.listdir("/opt")), sorted(l.split(":")[0].strip() for l in open("/proc/net/dev") if ":" in l))
try:
    open("/opt/lib/gains.py", "a")
except OSError as error:
    print(type(error).__name__)
def act(observation):
    return gains.GAIN
"""
    with warmed("open").fork(0) as machine:
        for _ in range(2):  # the first waits in the snapshot, the second is made in this guest
            record = run(machine, source)
            assert (record.error, record.metrics) == (None, {"travelled": 10.0, "steps": 20.0, "ok": 1.0})
            assert record.columns["action"].tolist() == [0.25] * 10
            assert record.controller_stdout == b"['lib', 'venv'] ['eth0', 'lo']\nPermissionError\n"
