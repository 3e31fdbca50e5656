"""The template without a world: one is loaded later, and forks of that machine run episodes by themselves."""

from __future__ import annotations

import array
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosting import ON_ANY_ENGINE, REPOSITORY, Warmed
from microsim_guest import simctl
from microsim_vm.machine import Machine
from microsim_vm.outputs import ExecResult
from microsim_vm.templates import find_template

from pytest_microsim.gates.fingerprints import fingerprint_of_columns

pytestmark = pytest.mark.timeout(300)

BALANCE = (REPOSITORY / "example_tests/controllers/balance.py").read_bytes()
ROLLOUT = "bash /opt/sim/rollout.sh"
RAISES = b"def act(observation):\n    raise RuntimeError('no idea')\n"
HANGS = b"import time\ndef act(observation):\n    time.sleep(600)\n"
ODD_WORLD = """
class Odd:
    def reset(self, seed=None, options=None):
        self.seed = seed
        return self.observe(), {}

    def observe(self):
        return {"height": float("nan"), "image": [[0.25] * 100] * 100}

    def step(self, action):
        if self.seed == 1:
            raise OverflowError("through the floor")
        return self.observe(), 1.0, False, False, {}

    def metrics(self):
        return {"height": float("nan")}

def make():
    return Odd()
"""
TRIES_THE_SOCKET = b"""
import os, socket

def attempt(name, work):
    try:
        work()
        print(name, "worked")
    except OSError as error:
        print(name, type(error).__name__)

def act(observation):
    attempt("connect", lambda: socket.socket(socket.AF_UNIX).connect("/run/microsim/agent.sock"))
    attempt("list", lambda: os.listdir("/run/microsim"))
    attempt("world", lambda: open("/opt/sim/worlds/cartpole/world.py"))
    attempt("episodes", lambda: os.listdir("/data/episodes"))
    for name in ("EPISODE_SEED", "OMP_NUM_THREADS", "ROS_AUTOMATIC_DISCOVERY_RANGE", "PYTHONHASHSEED"):
        print(name, os.environ[name])
    return 0
"""


@pytest.fixture(scope="module")
def parent(warmed: Warmed) -> Iterator[Machine]:
    """A machine into which a world was loaded after its warm-up; the tests change forks of it only."""
    with warmed("base").fork(1) as machine:
        result = machine.exec("bash /opt/sim/warmup.sh --world cartpole", timeout_seconds=120)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.startswith("world cartpole loaded in ")
        machine.filesystem.write("/workspace/controller.py", BALANCE)
        yield machine


@pytest.fixture
def child(parent: Machine) -> Iterator[Machine]:
    with parent.fork()[0] as machine:
        yield machine


def refusal(result: ExecResult) -> str:
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr


def lines_of(machine: Machine, seed: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in machine.filesystem.read(f"/data/episodes/{seed}.jsonl").splitlines()]


@ON_ANY_ENGINE
def test_an_unusable_request_is_refused_with_the_reason(warmed: Warmed) -> None:
    with warmed("base").fork(2) as machine:
        for arguments, reason in (
            ("--world nosuch", "no world 'nosuch'"), ("--world ../worlds/cartpole", "no world '../"),
            ("--world", "needs a name"), ("", "no world is named"), ("--speed 3", "unknown option '--speed'"),
        ):  # fmt: skip
            complaint = refusal(machine.exec(f"bash /opt/sim/warmup.sh {arguments}"))
            assert reason in complaint
            assert "worlds: cartpole pendulum warehouse" in complaint
        assert "there is no controller /workspace/controller.py" in refusal(machine.exec(ROLLOUT))
        machine.filesystem.write("/workspace/controller.py", BALANCE)
        assert "no world is warm" in refusal(machine.exec(ROLLOUT))


@ON_ANY_ENGINE
def test_a_seed_that_is_missing_or_none_is_refused(parent: Machine) -> None:
    assert "EPISODE_SEED is not set" in refusal(parent.exec(f"env -u EPISODE_SEED {ROLLOUT}"))
    for wrong in ("-1", "1.5", "007", "seven", "../../etc/x", "1 2", "9" * 201):
        assert "EPISODE_SEED must be" in refusal(parent.exec(ROLLOUT, env={"EPISODE_SEED": wrong}))
    for name in ("MAX_STEPS", "WALL_TIME_S"):
        for wrong in ("0", "-5", "many", "9999999"):
            assert f"{name} must be" in refusal(parent.exec(ROLLOUT, env={name: wrong}))
    assert parent.exec("ls -A /data").stdout == ""


@ON_ANY_ENGINE
def test_a_machine_holds_one_world(parent: Machine) -> None:
    again = parent.exec("bash /opt/sim/warmup.sh --world cartpole", check=True)
    assert again.stdout == "world cartpole is loaded already\n"
    assert "holds world cartpole already" in refusal(parent.exec("bash /opt/sim/warmup.sh --world pendulum"))


def test_the_same_seed_writes_the_same_bytes_in_every_fork(parent: Machine) -> None:
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(machine) for machine in parent.fork(2))
        assert first.seed != second.seed
        second.exec(f"EPISODE_SEED=99 {ROLLOUT}", check=True)  # what ran before must not matter
        for machine in (first, second):
            result = machine.exec(f"EPISODE_SEED=1000 MAX_STEPS=80 {ROLLOUT}", check=True)
            assert (result.stdout, result.stderr) == ("", "")
        first.exec(f"EPISODE_SEED=1001 MAX_STEPS=80 {ROLLOUT}", check=True)
        episode = first.filesystem.read("/data/episodes/1000.jsonl")
        assert second.filesystem.read("/data/episodes/1000.jsonl") == episode
        *steps, summary = lines_of(first, 1000)
        assert [line["step"] for line in steps] == list(range(80))
        assert {"observation", "action", "reward", "state"} < steps[0].keys()
        assert summary["total_reward"] == sum(line["reward"] for line in steps) == 80.0
        assert (summary["seed"], summary["ok"], summary["steps"], summary["error"]) == (1000, True, 80, None)
        assert (summary["terminated"], summary["truncated"]) == (False, True)
        assert summary["metrics"]["balanced_steps"] == 80.0
        *others, other = lines_of(first, 1001)
        assert other["fingerprint"] != summary["fingerprint"]
        assert all(left["observation"] != right["observation"] for left, right in zip(steps, others, strict=True))
        # The plugin's way to run an episode comes to the very same one.
        record = second.run_episode(BALANCE, filename="controller.py", seed=1000, max_steps=80)
        assert fingerprint_of_columns(record.columns) == summary["fingerprint"]


@ON_ANY_ENGINE
def test_a_fork_has_a_seed_without_being_told(child: Machine) -> None:
    child.exec(ROLLOUT, env={"MAX_STEPS": "5"}, check=True)
    assert lines_of(child, child.seed)[-1]["seed"] == child.seed
    assert child.exec("ls -A /data/episodes").stdout == f"{child.seed}.jsonl\n"


@ON_ANY_ENGINE
def test_a_failed_controller_is_told_on_stderr_and_in_the_summary(child: Machine) -> None:
    child.filesystem.write("/workspace/controller.py", RAISES)
    result = child.exec(f"EPISODE_SEED=4 {ROLLOUT}")
    assert result.exit_code == 1
    assert "RuntimeError: no idea" in result.stderr
    assert '"/workspace/controller.py", line 2' in result.stderr
    (summary,) = lines_of(child, 4)
    assert (summary["ok"], summary["steps"]) == (False, 0)
    assert "no idea" in summary["error"]

    child.filesystem.write("/workspace/other.py", HANGS)
    result = child.exec(f"EPISODE_SEED=5 WALL_TIME_S=1 CONTROLLER=/workspace/other.py {ROLLOUT}")
    assert result.exit_code == 1
    assert "episode's 1 s were over" in lines_of(child, 5)[-1]["error"]


def test_the_socket_and_the_world_are_for_root_alone(child: Machine) -> None:
    assert child.exec("stat -c '%F %a %U' /run/microsim/agent.sock").stdout == "socket 600 root\n"
    child.filesystem.write("/workspace/controller.py", TRIES_THE_SOCKET)
    result = child.exec(f"EPISODE_SEED=6 MAX_STEPS=1 OMP_NUM_THREADS=8 {ROLLOUT}", check=True)
    lines = result.stdout.splitlines()
    assert lines[:3] == [f"{name} FileNotFoundError" for name in ("connect", "list", "world")]
    assert lines[4:7] == ["EPISODE_SEED 6", "OMP_NUM_THREADS 1", "ROS_AUTOMATIC_DISCOVERY_RANGE LOCALHOST"]
    as_the_agent = child.exec("echo $PYTHONHASHSEED", env={}).stdout.strip()
    own = child.exec(f"EPISODE_SEED={child.seed} MAX_STEPS=1 {ROLLOUT}", check=True).stdout
    assert own.splitlines()[-1] == f"PYTHONHASHSEED {as_the_agent}"
    assert lines[-1] != own.splitlines()[-1]
    # The episode of seed 6 lies there by now.
    assert "episodes FileNotFoundError" in own


@ON_ANY_ENGINE
def test_only_the_world_can_be_asked_through_the_socket(parent: Machine) -> None:
    ask = (
        "from microsim_guest import localsocket\n"
        "client = localsocket.Client()\n"
        "for op in ('quiesce', 'world.status', 'world.nosuch'):\n"
        "    try:\n"
        "        print(op, sorted(client.ask(op, {})[0]))\n"
        "    except localsocket.RequestFailed as error:\n"
        "        print(op, error.kind)\n"
    )
    result = parent.exec(["python3", "-c", ask], env={"PYTHONPATH": "/opt/microsim/guest"}, check=True)
    assert result.stdout.splitlines() == ["quiesce request", "world.status ['loaded', 'world']", "world.nosuch world"]


@ON_ANY_ENGINE
def test_a_world_that_fails_leaves_room_for_another(warmed: Warmed) -> None:
    with warmed("base").fork(3) as machine:
        machine.filesystem.write("/opt/sim/worlds/broken/world.json", '{"factory": "world:make"}')
        machine.filesystem.write("/opt/sim/worlds/broken/world.py", "def make():\n    raise ValueError('no map')\n")
        result = machine.exec("bash /opt/sim/warmup.sh --world broken")
        assert result.exit_code == 1
        assert "ValueError: no map" in result.stderr
        assert machine.exec("bash /opt/sim/warmup.sh --world pendulum", timeout_seconds=120).exit_code == 0
        machine.filesystem.write("/workspace/controller.py", "def act(observation):\n    return [0.5]\n")
        machine.exec(f"EPISODE_SEED=8 MAX_STEPS=3 {ROLLOUT}", check=True)
        assert len(lines_of(machine, 8)) == 4


@ON_ANY_ENGINE
def test_a_world_that_raises_fails_the_episode_alone(warmed: Warmed) -> None:
    with warmed("base").fork(4) as machine:
        machine.filesystem.write("/opt/sim/worlds/odd/world.json", '{"factory": "world:make"}')
        machine.filesystem.write("/opt/sim/worlds/odd/world.py", ODD_WORLD)
        machine.exec("bash /opt/sim/warmup.sh --world odd", check=True)
        machine.filesystem.write("/workspace/controller.py", "def act(observation):\n    return 0.5\n")
        result = machine.exec(f"EPISODE_SEED=1 {ROLLOUT}")
        assert result.exit_code == 1
        assert result.stderr.endswith("rollout.sh: seed 1: OverflowError: through the floor\n")
        assert [line["error"] for line in lines_of(machine, 1)] == ["OverflowError: through the floor"]

        machine.exec(f"EPISODE_SEED=2 MAX_STEPS=2 {ROLLOUT}", check=True)
        first, _, summary = lines_of(machine, 2)
        assert first["observation.height"] == summary["metrics"]["height"] == "nan"  # JSON has no NaN
        assert first["observation.image"].keys() == {"shape", "sha256"}


def test_the_lines_of_an_episode_are_bounded() -> None:
    numbers = array.array("d", [1 / 3 + step for step in range(512)]).tobytes() * 4000
    lines = list(simctl.step_lines([({"name": "observation", "dtype": "<f8", "shape": [4000, 512]}, numbers)], 4000))
    assert 0.99 < sum(map(len, lines)) / simctl.MAX_STEPS_BYTES <= 1.0
    assert json.loads(lines[-1])["step"] == len(lines) - 1 < 3999


def test_the_worlds_in_it_are_those_of_the_shipped_templates(templates: list[Path]) -> None:
    for folder in (REPOSITORY / "templates/base/sim/worlds").iterdir():
        template = find_template(folder.name, templates)
        assert template.world is not None
        described = json.loads((folder / "world.json").read_text())
        assert described.get("factory") == template.world.factory
        assert described.get("gymnasium") == template.world.gymnasium
        assert described.get("kwargs", {}) == template.world.kwargs
        base = find_template("base", templates)
        assert set(template.python.requirements) <= set(base.python.requirements)
        assert template.env.items() <= base.env.items()
        placed = {entry.source.name for entry in base.files if entry.source.resolve().parent == template.path.parent}
        assert placed == {path.name for path in template.path.parent.glob("*.py")}


def test_the_plugin_refuses_it_as_a_world(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(rollout):\n    pass\n")
    result = pytester.runpytest_subprocess("--microsim-world", "base")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--microsim-world: *'base' has no world of its own*"])
    result = pytester.runpytest_subprocess("-o", "microsim_world=base")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*'base' has no world of its own*", "*asked for by: *"])
    result = pytester.runpytest_subprocess("--microsim-world", "bsae")
    result.stderr.fnmatch_lines(["*base: *(no world of its own)"])
    result.stderr.no_fnmatch_line("*cartpole: *no world*")
