"""Episodes in a real guest: what is recorded, and every way in which a controller or a world can break one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hosting import ON_ANY_ENGINE, REPOSITORY, Warmed
from microsim_vm.episode import EpisodeRecord
from microsim_vm.errors import (
    AgentError,
    ChannelClosedError,
    CommandInterruptedError,
    ControllerError,
    ControllerTimeoutError,
    WorldError,
)
from microsim_vm.machine import Machine
from microsim_vm.options import Options
from microsim_vm.world import WarmWorld, warm
from msgspec import structs

pytestmark = pytest.mark.timeout(180)

BALANCE = (REPOSITORY / "example_tests/controllers/balance.py").read_bytes()
GOOD = b"def act(observation):\n    return 1\n"


def run(machine: Machine, source: str | bytes, **options: Any) -> EpisodeRecord:
    """Run one episode, of few steps and little time."""
    code = source.encode() if isinstance(source, str) else source
    settings = {"max_steps": 20, "timeout_seconds": 30.0, **options}
    return machine.run_episode(code, filename="pilot.py", **settings)


def error_of(machine: Machine, source: str | bytes, **options: Any) -> ControllerError:
    """Run a broken controller, and then a good one in the same guest: an episode spoils no other."""
    record = run(machine, source, **options)
    assert isinstance(record.error, ControllerError), f"no error, but {record}"
    assert not record.terminated
    assert "microsim_guest" not in record.error.details, "a traceback shows our frames"
    after = run(machine, GOOD, max_steps=2)
    assert (after.error, after.steps) == (None, 2)
    return record.error


@pytest.fixture(scope="module")
def world(warmed: Warmed) -> WarmWorld:
    return warmed("faulty")


@pytest.fixture(scope="module")
def machine(world: WarmWorld) -> Iterator[Machine]:
    """One guest, in order, for all bad controllers: after each of them it has to go on."""
    with world.fork(0) as fork:
        yield fork


def test_what_an_episode_records(machine: Machine) -> None:
    record = run(machine, "def act(observation):\n    return 1 if observation['on'] else 0.25\n")
    assert record.error is None
    assert (record.seed, record.steps, record.terminated, record.truncated) == (0, 10, True, False)
    assert record.total_reward == 9.5
    assert record.metrics == {"steps": 10.0, "ok": 1.0}, "without metrics(): the last info's numeric scalars"
    shapes = {name: (column.dtype, column.shape) for name, column in record.columns.items()}
    assert shapes == {
        "observation.position": ("<f8", (11, 2)), "observation.on": ("|b1", (11,)), "state": ("<f8", (11,)),
        "action": ("<f8", (10,)), "reward": ("<f8", (10,)),
    }  # fmt: skip
    assert record.columns["action"].tolist() == [1.0, 0.25] * 5
    assert record.columns["state"].tolist() == [float(step) for step in range(11)]
    assert record.columns["observation.on"][1] is False
    assert record.columns["observation.position"][-1] == [10.0, math.pi]
    assert np.asarray(record.columns["observation.position"])[:, 0].tolist() == record.columns["state"].tolist()
    assert 0 < record.wall_ms < 30_000
    cut = run(machine, GOOD, max_steps=4)
    assert (cut.steps, cut.terminated, cut.truncated) == (4, False, True)
    assert cut.columns["action"].dtype == "<i8"


def test_a_good_and_a_bad_controller_in_a_shipped_world(cartpole: WarmWorld) -> None:
    with cartpole.fork(3) as machine:
        good = machine.run_episode(BALANCE, filename="balance.py", max_steps=100)
        bad = machine.run_episode(GOOD, filename="bad.py", max_steps=100)
        again = machine.run_episode(BALANCE, filename="balance.py", max_steps=100)
    assert good.error is None
    assert (good.steps, good.metrics["balanced_steps"], good.metrics["fallen"]) == (100, 100.0, 0.0)
    assert bad.terminated
    assert bad.steps < 20
    assert good.columns == again.columns, "a second episode of the same seed is another one"


@ON_ANY_ENGINE
def test_a_controller_may_be_a_class_with_state_of_its_own(machine: Machine) -> None:
    source = """
import dataclasses, sys
@dataclasses.dataclass
class Controller:
    count: int = 0
    def act(self, observation):
        self.count += 1
        print("step", self.count)
        print("é", file=sys.stderr)
        return self.count
"""
    for _ in range(2):  # each episode constructs it anew
        record = run(machine, source, max_steps=3)
        assert record.error is None
        assert record.columns["action"].tolist() == [1, 2, 3]
        assert record.controller_stdout == b"step 1\nstep 2\nstep 3\n"
        assert record.controller_stderr.decode() == "é\n" * 3


@ON_ANY_ENGINE
def test_errors_name_the_users_file_and_line(machine: Machine) -> None:
    error = error_of(machine, "def act(observation):\n    return 1 +\n")
    assert "SyntaxError" in error.what
    assert 'File "pilot.py", line 2' in error.details
    error = error_of(machine, "import no_such_module\n")
    assert "No module named 'no_such_module'" in error.what
    error = error_of(machine, "class Controller:\n    def __init__(self):\n        raise KeyError('lidar')\n"
                              "    def act(self, observation): ...\n")  # fmt: skip
    assert "KeyError: 'lidar'" in error.details
    assert 'File "pilot.py", line 3, in __init__' in error.details
    error = error_of(machine, "def steer(x):\n    return 1 / x\n\ndef act(observation):\n    return steer(0)\n")
    assert "the controller raised ZeroDivisionError: division by zero" in error.what
    assert 'File "pilot.py", line 5, in act\n    return steer(0)' in error.details
    assert "    return 1 / x" in error.details
    assert "no function `act(observation)`" in error_of(machine, "x = 1\n").what
    assert "raised SystemExit" in error_of(machine, "raise SystemExit(0)\n").what
    assert "SyntaxError" in error_of(machine, b"x = '\xff'").what


@ON_ANY_ENGINE
def test_steps_before_a_failure_are_kept(machine: Machine) -> None:
    record = run(machine, "def act(observation):\n    print('at', observation['position'][0])\n"
                          "    return 1 / (3 - observation['position'][0])\n")  # fmt: skip
    assert isinstance(record.error, ControllerError)
    assert record.steps == 3
    assert record.controller_stdout == b"at 0.0\nat 1.0\nat 2.0\nat 3.0\n"
    assert record.columns["observation.position"].shape == (4, 2)
    assert record.columns["action"].shape == record.columns["reward"].shape == (3,)
    assert record.metrics["steps"] == 3.0


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("None", "returned None"), ("float('nan')", "not finite"), ("[1.0, float('inf')]", "not finite"),
        ("'fast'", "no action"), ("'1.0'", "no action"), ("b'1'", "no action"), ("object()", "no action"),
        ("{'a': None}", "no action"), ("(1, [2, 'x'])", "no action"),
        ("[0] * (observation['on'] + 1)", "changed from"),
    ],
)  # fmt: skip
@ON_ANY_ENGINE
def test_what_is_no_action_is_the_controllers_error(machine: Machine, action: str, message: str) -> None:
    assert message in error_of(machine, f"def act(observation):\n    return {action}\n").what


@ON_ANY_ENGINE
def test_actions_must_fit_the_action_space(pendulum: WarmWorld) -> None:
    with pendulum.fork(0) as machine:
        for action, message in (
            ("0.5", "shape [], the world takes [1]"), ("[0.5, 0.5]", "shape [2], the world takes [1]"),
            ("['x']", "no action"), ("[None]", "no action"), ("[[0], [0, 1]]", "no action"),
            ("[float('nan')]", "not finite"), ("[1e300]", "not finite"), ("{'torque': 1}", "no action"),
        ):  # fmt: skip
            record = run(machine, f"def act(observation):\n    return {action}\n")
            assert isinstance(record.error, ControllerError)
            assert message in record.error.what, action
            with pytest.raises(ControllerError, match="the controller returned"):
                machine.step(eval(action))
        good = run(machine, "import numpy\ndef act(observation):\n    return numpy.clip(observation[:1], -1, 1)\n")
        assert good.error is None
        assert {name: (column.dtype, column.shape) for name, column in good.columns.items()} == {
            "observation": ("<f4", (21, 3)), "action": ("<f4", (20, 1)), "reward": ("<f8", (20,)),
        }  # fmt: skip
        machine.reset()
        observation, reward, terminated, truncated, info = machine.step([0.5])
        assert (observation.shape, observation.dtype, type(reward)) == ((3,), np.float32, float)
        assert (terminated, truncated, info) == (False, False, {})


def test_a_hanging_controller_times_out(machine: Machine) -> None:
    ignore = "import signal\nfor number in (1, 2, 15):\n    signal.signal(number, signal.SIG_IGN)\n"
    for source, activity, limit_s in (
        (ignore + "def act(observation):\n    while True: pass\n", "acting", 4.0),
        ("while True: pass\n", "loading", 2.0),
        # Bytes that trickle in must not push the deadline ahead.
        ("import os, time\nfd = max(int(n) for n in os.listdir('/proc/self/fd') if "
         "os.path.exists(f'/proc/self/fd/{n}') and 'socket' in os.readlink(f'/proc/self/fd/{n}'))\n"
         "def act(observation):\n    while True:\n"
         "        os.write(fd, b'\\0\\0')\n        time.sleep(1.9)\n", "acting", 4.0),
    ):  # fmt: skip
        started = time.monotonic()
        error = error_of(machine, source, timeout_seconds=limit_s)
        assert time.monotonic() - started < 60.0
        assert type(error) is ControllerTimeoutError
        assert f"still {activity} when the episode's {limit_s:g} s were over" in error.what


def test_a_controller_that_dies(machine: Machine) -> None:
    error = error_of(machine, "import os\ndef act(observation):\n    os._exit(3)\n")
    assert "process ended while acting" in error.what
    assert error.cause == "it exited with 3"
    error = error_of(machine, "import os\nos.kill(os.getpid(), 11)\n")
    assert "process ended while loading" in error.what
    assert error.cause == "it was killed by signal 11"


@ON_ANY_ENGINE
def test_a_controller_that_forges_answers(machine: Machine) -> None:
    """The link's descriptor is in its hands: nothing it writes may be taken for the framework's own failure."""
    find = "import os, struct, json\nfd = next(int(n) for n in os.listdir('/proc/self/fd') if int(n) > 2 and " \
           "os.path.exists(f'/proc/self/fd/{n}') and 'socket' in os.readlink(f'/proc/self/fd/{n}'))\n" \
           "def send(text, size=0):\n    os.write(fd, struct.pack('>II', len(text), size) + text)\n"  # fmt: skip
    for forged in (
        "os.write(fd, b'\\xff' * 64)",
        "send(b'{\"action\": 1}', 200 << 20)",
        "send(b'[]')",
        'send(b\'{"blobs": 5, "action": 1}\')',
        'send(b\'{"action": {"__float__": [1]}}\')',
        'send(b\'{"action": {"__array__": ["<f8", [-1, {}], 0]}}\')',
        "send(b'[' * 100000)",
        "send(b'{\"action\": ' + b'[' * 600 + b']' * 600 + b'}')",
        'send(b\'{"error": {"kind": "world", "message": "mine"}}\')',
    ):
        error_of(machine, find + f"def act(observation):\n    {forged}\n    os._exit(0)\n", timeout_seconds=10.0)


def test_a_fork_bomb_is_capped(machine: Machine, engine: str) -> None:
    source = "import os\ndef act(observation):\n    while True:\n        os.fork()\n"
    started = time.monotonic()
    record = run(machine, source, timeout_seconds=20.0)
    assert time.monotonic() - started < 120.0
    assert isinstance(record.error, ControllerError)
    # gVisor's kernel does not tell of forks that failed: it is seen to be full, or, as its memory is copied in large
    # pieces, to be too large.
    assert ("process limit" if engine == "qemu" else "limit") in record.error.cause
    assert machine.exec("ls -d /proc/[0-9]*/fd | wc -l", check=True).exit_code == 0, "the agent still answers"
    users = machine.exec("for p in /proc/[0-9]*; do stat -c %u $p; done | grep -c 10001").stdout
    assert users == "0\n", "processes of the controller are left"
    assert run(machine, GOOD, max_steps=2).error is None


def test_a_memory_hog_is_killed_and_named(machine: Machine, world: WarmWorld, engine: str) -> None:
    source = (
        "def act(observation):\n    hoard = []\n    while True:\n        hoard.append(bytearray(b'x') * 4_000_000)\n"
    )
    error = error_of(machine, source)
    assert "memory limit (controller.memory_mib)" in error.cause
    # Where the guest itself is smaller than the limit, the controller is still the one to go. The limits are no
    # part of an image: this is the same snapshot.
    limits = structs.replace(world.template.controller, memory_mib=4 * world.template.machine.memory_mib)
    roomy = warm(structs.replace(world.template, controller=limits), Options(engine=engine), print)
    assert roomy.reused
    with roomy.fork(0) as other:
        error = error_of(other, source, timeout_seconds=60.0)
        assert "memory limit" in error.cause


def test_a_flood_of_output_is_bounded(machine: Machine) -> None:
    source = """
import sys
print("first line")
def act(observation):
    if observation["position"][0] == 0.0:
        for _ in range(50):
            sys.stdout.write("x" * 1_000_000)
        print("\\nlast line")
        sys.stdout.buffer.write(b"\\xff\\xfe\\x00\\x1b")
    return 1
"""
    record = run(machine, source, timeout_seconds=60.0)
    assert record.error is None
    assert record.steps == 10
    assert len(record.controller_stdout) < 4096 + 100
    assert record.controller_stdout.startswith(b"first line\nxxx")
    assert record.controller_stdout.endswith(b"xxx\nlast line\n\xff\xfe\x00\x1b")
    assert b"bytes left out" in record.controller_stdout


def test_a_controller_is_nobody_and_sees_no_ground_truth(machine: Machine) -> None:
    machine.exec("cp /usr/bin/id /usr/local/bin/rootly; chmod 4755 /usr/local/bin/rootly", check=True)
    source = """
import gc, os, subprocess, sys
def attempt(name, action):
    try:
        print(name, action())
    except OSError as error:
        print(name, type(error).__name__)
attempt("uid", os.getresuid)
attempt("gid", lambda: (os.getresgid(), os.getgroups()))
attempt("world", lambda: os.listdir("/opt/microsim/world"))
attempt("code", lambda: open("/opt/microsim/world/world.py").read())
attempt("config", lambda: open("/opt/microsim/config.json").read())
attempt("memory", lambda: [open(f"/proc/{pid}/mem") for pid in os.listdir("/proc") if pid.isdigit() and int(pid) < os.getpid()][0])
attempt("root", lambda: os.setuid(0))
attempt("agent", lambda: [os.open("/dev/" + name, os.O_RDWR) for name in os.listdir("/dev") if name.startswith("vport")])
attempt("group", lambda: open("/sys/fs/cgroup/cgroup.procs", "w").write("0"))
attempt("own", lambda: open("notes.txt", "w").write("mine"))
attempt("descriptors", lambda: sum(os.path.exists(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")))
attempt("seed", lambda: os.environ.get("EPISODE_SEED"))
attempt("privileges", lambda: subprocess.run(["rootly", "-u"], capture_output=True, text=True).stdout.strip())
others = [pid for pid in os.listdir("/proc") if pid.isdigit() and open(f"/proc/{pid}/status").read().split("Uid:")[1].split()[0] == "0"]
def reach(pid):
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        if os.readlink(path) != "/dev/null":
            yield os.open(path, os.O_RDWR)
def refused(pid):
    try:
        return list(reach(pid)) == []
    except OSError:
        return True
attempt("others", lambda: others == ["1"] and all(refused(pid) for pid in others))
def holds(value):
    return isinstance(value, (str, bytes)) and len(value) == 18 and str(value)[:7] == "the doc"
found = [1 for o in gc.get_objects() for v in gc.get_referents(o) if holds(v)]
frame = sys._getframe()
while frame:
    found += [1 for value in frame.f_locals.values() if holds(value) or "the dock" + " is" in repr(value)]
    frame = frame.f_back
print("secrets", len(found))
def act(observation):
    return 1
"""  # noqa: E501
    record = run(machine, source)
    assert record.error is None
    lines = dict(line.split(" ", 1) for line in record.controller_stdout.decode().splitlines())
    assert lines == {
        "uid": "(10001, 10001, 10001)", "gid": "((10001, 10001, 10001), [])",
        "world": "FileNotFoundError", "code": "FileNotFoundError", "config": "FileNotFoundError",
        "memory": "PermissionError", "root": "PermissionError", "agent": "[]", "group": "FileNotFoundError",
        "own": "4", "descriptors": "4", "seed": "None", "privileges": "10001", "others": "True", "secrets": "0",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "message", "details"),
    [
        (1, "LookupError: no dock in this world", "world.py"),
        (2, "observation.position changed from", ""),
        (3, "changed its keys", ""),
        (4, "TypeError", "recorder.py"),
        (5, "ValueError: the wheel came off", "in _explode"),
        (6, "Confusing", "in step"),
        (7, "SystemExit: 3", "world.py"),
    ],
)  # fmt: skip
@ON_ANY_ENGINE
def test_a_world_that_raises_is_a_world_error(machine: Machine, seed: int, message: str, details: str) -> None:
    with pytest.raises(WorldError) as caught:
        run(machine, GOOD, seed=seed)
    assert message in caught.value.what
    assert details in caught.value.details
    after = run(machine, GOOD)
    assert (after.error, after.steps) == (None, 10)


@ON_ANY_ENGINE
def test_a_world_that_raises_by_hand(machine: Machine) -> None:
    machine.reset(5)
    machine.step(1)
    machine.step(1)
    with pytest.raises(WorldError, match="the wheel came off") as caught:
        machine.step(1)
    assert 'world/world.py", line' in caught.value.details
    with pytest.raises(WorldError, match="no action_space"):
        machine.sample_action()
    assert machine.reset()[1] == {"steps": 0, "note": "text"}


@pytest.mark.parametrize(("seed", "how"), [(8, "exited with 4"), (9, "was killed by signal 9")])
def test_a_world_that_dies_is_told_at_once(world: WarmWorld, seed: int, how: str) -> None:
    with world.fork(0) as machine:
        started = time.monotonic()
        with pytest.raises(WorldError, match=f"the world's process {how}"):
            run(machine, GOOD, seed=seed)
        with pytest.raises(WorldError, match=f"the world's process {how}"):
            machine.reset()
        assert time.monotonic() - started < 60.0
        assert machine.exec("echo alive").stdout == "alive\n"


def test_hosts_killed_from_outside_are_told(world: WarmWorld) -> None:
    def kill(machine: Machine, module: str) -> None:
        script = f"for p in /proc/[0-9]*; do grep -q {module} $p/cmdline && kill -9 ${{p#/proc/}}; done; true"
        machine.exec(script.replace(module, module[:-1] + "[" + module[-1] + "]"), check=True)

    with world.fork(0) as machine:
        kill(machine, "controllerhost")
        with pytest.raises(AgentError, match="the process that starts controllers died"):
            run(machine, GOOD)
        assert machine.reset()[1]["steps"] == 0, "the world itself still answers"
        kill(machine, "worldhost")
        with pytest.raises(WorldError, match="killed by signal 9"):
            run(machine, GOOD)
        started = time.monotonic()
        with pytest.raises(CommandInterruptedError, match="the link to the guest was lost") as caught:
            kill(machine, "agent")
        assert "the agent is gone" in caught.value.details, "the console's tail is missing"
        with pytest.raises(ChannelClosedError):
            machine.reset()
        assert time.monotonic() - started < 60.0


@ON_ANY_ENGINE
def test_controller_path_is_not_looked_up_in_the_guest(machine: Machine, tmp_path: Path) -> None:
    """The name is for tracebacks only."""
    record = machine.run_episode(b"raise ValueError(__file__)\n", filename="../odd näme.py", max_steps=1)
    assert isinstance(record.error, ControllerError)
    assert "../odd näme.py" in record.error.what
