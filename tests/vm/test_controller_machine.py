"""Controllers in a machine of their own: the same episodes as beside the world, and a kernel of their own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hosting import ON_ANY_ENGINE, REPOSITORY
from islands import isle, warm_world
from microsim_vm import controllers
from microsim_vm.controllers import limited
from microsim_vm.episode import EpisodeRecord
from microsim_vm.errors import ControllerError, ControllerMachineError, EngineError
from microsim_vm.film import Shots
from microsim_vm.machine import Machine
from microsim_vm.templates import load_template
from microsim_vm.templates.spec import OtherMachine, Template
from microsim_vm.world import WarmWorld

pytestmark = pytest.mark.timeout(180)

EXAMPLES = REPOSITORY / "example_tests/controllers"
SEED = 987654321
ACT = "\ndef act(observation):\n    return 1\n"
# The same Python as the world's machine, and no world.
HOLLOW = (
    "name: hollow\nbase: {suite: bookworm, packages: [python3]}\nmachine: {vcpus: 1, memory_mib: 384}\n"
    "warmup_timeout_s: 60\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("controller-machine")


@pytest.fixture(scope="module")
def beside(folder: Path, engine: str) -> WarmWorld:
    """A world whose controllers run beside it."""
    return warm_world(isle(folder), engine)


def apart(world: Template, place: Template) -> Template:
    """Return a template whose controllers run in a machine of another one; its image is the same."""
    machine = msgspec.structs.replace(world.controller, machine="controller")
    others = {"controller": OtherMachine(template=place.name)}
    return msgspec.structs.replace(world, machines=others, others={"controller": place}, controller=machine)


@pytest.fixture(scope="module")
def world(folder: Path, engine: str) -> WarmWorld:
    """The same world, whose controllers run in a machine without a world."""
    (folder / "hollow").mkdir()
    path = folder / "hollow/template.yaml"
    path.write_text(HOLLOW)
    return warm_world(apart(isle(folder), load_template(path)), engine)


@pytest.fixture(scope="module")
def sim(world: WarmWorld) -> Iterator[Machine]:
    with world.fork(SEED) as machine:
        yield machine


@pytest.fixture(scope="module")
def plain(beside: WarmWorld) -> Iterator[Machine]:
    with beside.fork(SEED) as machine:
        yield machine


def run(machine: Machine, source: str, *, kind: controllers.Kind = "python", **limits: Any) -> EpisodeRecord:
    """Run one episode of ten steps."""
    return machine.run_episode(
        source.encode(), filename="pilot.py" if kind == "python" else "pilot", kind=kind, max_steps=10,
        limits=limited(machine.limits, {"wall_time_s": 20, **limits}),
    )  # fmt: skip


def facts(record: EpisodeRecord) -> dict[str, Any]:
    """All that an episode leaves behind but its duration."""
    found = {name: getattr(record, name) for name in record.__dataclass_fields__ if name != "wall_ms"}
    error = found.pop("error")
    return {**found, "error": error and (type(error), error.what, error.cause, error.details)}


RANDOM = """
import os, random
print(random.random(), sorted(os.environ.items()), os.getcwd())
def act(observation):
    return random.getrandbits(1)
"""


def test_the_same_seed_gives_the_same_episode_bit_by_bit(folder: Path, beside: WarmWorld, engine: str) -> None:
    template = isle(folder)
    with warm_world(apart(template, template), engine).fork(SEED) as sim, beside.fork(SEED) as plain:
        for episode in range(2):  # the first finds a controller waiting, in either form
            alone, two = run(plain, RANDOM), run(sim, RANDOM)
            assert (alone.error, alone.steps, len(set(alone.columns["action"].tolist()))) == (None, 10, 2), episode
            assert facts(two) == facts(alone)
        assert "EPISODE_SEED" not in two.controller_stdout.decode()
        assert sim.machines["controller"].seed != sim.seed


@pytest.mark.parametrize(
    ("source", "limits"),
    [
        ("def act(observation):\n    raise ValueError('no way')\n", {}),
        ("import os\ndef act(observation):\n    os._exit(7)\n", {}),
        ("def act(observation):\n    return None\n", {}),
        ("import time\ntime.sleep(60)\n" + ACT, {"wall_time_s": 1}),
        ("import time\ndef act(observation):\n    time.sleep(60)\n", {"step_deadline_s": 0.5}),
        ("x = b'x' * (200 << 20)\n" + ACT, {"memory_mib": 48}),
        ("import sys\nprint('o' * 9000)\nprint('e' * 9000, file=sys.stderr)\n" + ACT, {"output_bytes": 4096}),
        ("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\n" + ACT, {}),
        ("open('big', 'wb').write(bytes(2 << 20))\n" + ACT, {"workspace_mib": 1}),
    ],
)
@ON_ANY_ENGINE
def test_a_controller_ends_as_it_does_beside_the_world(
    sim: Machine, plain: Machine, source: str, limits: dict[str, Any]
) -> None:
    alone, two = run(plain, source, **limits), run(sim, source, **limits)
    assert alone.error or alone.attempts, "nothing went wrong"
    assert facts(two) == facts(alone)


SAY = "#!/usr/bin/python3\nimport os, sys\ninput()\ndef say(data):\n    os.write(1, data)\n"


@pytest.mark.parametrize("body", ["say(b'garbage\\n')", "while True: say(b'x' * 65536)", "say(b'{\"action\": 1')"])
@ON_ANY_ENGINE
def test_a_program_that_breaks_its_protocol(sim: Machine, plain: Machine, body: str) -> None:
    alone, two = (run(machine, SAY + body + "\n", kind="program") for machine in (plain, sim))
    assert type(alone.error) is ControllerError
    assert facts(two) == facts(alone)


@ON_ANY_ENGINE
def test_a_shell_program_balances_the_pole_and_much_is_said_both_ways(sim: Machine, plain: Machine) -> None:
    script = controllers.read(EXAMPLES / "balance.sh", "program").data.decode()
    two = run(sim, script, kind="program")
    assert (two.error, two.steps) == (None, 10)
    assert facts(two) == facts(run(plain, script, kind="program"))
    # More than what may be under way at a time, in steps and at once.
    long = "#!/usr/bin/python3\nwhile input():\n    print('{\"action\": 1}' + ' ' * 250000, flush=True)\n"
    two = run(sim, long, kind="program")
    assert two.error is None
    assert two.steps > 5  # until the pole has fallen
    # Its copies on their way come to 150 MiB: with less than twice that, a busy guest is now and then over its limits.
    large = "def act(observation):\n    return bytearray(17_000_000)\n"
    alone, two = run(plain, large, memory_mib=280), run(sim, large, memory_mib=280)
    assert "17000000 bytes of attachments" in str(alone.error)
    assert facts(two) == facts(alone)


@ON_ANY_ENGINE
def test_root_of_the_controllers_machine_finds_nothing_of_the_world(sim: Machine) -> None:
    place = sim.machines["controller"]
    assert run(sim, ACT).error is None
    code = "grep -rlI 'class CartPole' /opt/microsim /etc /workspace /tmp /run /root 2>/dev/null"
    seeds = f"sleep 1 & cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -x 'EPISODE_SEED={SEED}' | sort -u"
    found, nothing = (machine.exec(f"{code}; {seeds}").stdout for machine in (sim, place))
    assert found.split() == ["/opt/microsim/world/world.py", f"EPISODE_SEED={SEED}"]
    assert nothing == ""


@ON_ANY_ENGINE
def test_a_map_has_a_machine_for_each_controller(world: WarmWorld, plain: Machine) -> None:
    path = EXAMPLES / "balance.py"
    two = world.map(path, [1, 2], workers=1, max_steps=20)
    alone = [plain.run_episode(path.read_bytes(), filename=path.name, seed=seed, max_steps=20) for seed in (1, 2)]
    assert [facts(record) for record in two] == [facts(record) for record in alone]
    assert two[0].columns != two[1].columns


@ON_ANY_ENGINE
def test_its_machine_dies_and_the_world_lives(world: WarmWorld) -> None:
    source = "import time\ndef act(observation):\n    time.sleep(0.3)\n    return 1\n"
    with world.fork(1) as sim:
        place = sim.machines["controller"]
        killer = threading.Timer(1.0, os.kill, (place.pid, 9))
        killer.start()
        record = run(sim, source)
        assert type(record.error) is ControllerMachineError, repr(record)
        assert record.error.what.startswith("the machine 'controller', which the controller ran in, was lost: ")
        assert record.error.cause
        assert "the next episode needs a new rollout" in record.error.hint
        assert 0 < record.steps < 10
        assert sim.reset()[0]
        began = time.monotonic()
        again = run(sim, ACT)
        assert (type(again.error), again.steps) == (ControllerMachineError, 0)
        assert time.monotonic() - began < 20


@ON_ANY_ENGINE
def test_the_starter_of_controllers_dies_there(world: WarmWorld) -> None:
    with world.fork(1) as sim:
        kill = "for p in /proc/[0-9]*; do grep -q controllerhos[t] $p/cmdline && kill -9 ${p#/proc/}; done; true"
        sim.machines["controller"].exec(kill, check=True)
        record = run(sim, ACT)
        assert type(record.error) is ControllerMachineError
        assert "the process that starts controllers died" in record.error.what
        assert sim.exec("echo lives").stdout == "lives\n"


@ON_ANY_ENGINE
def test_a_guest_alone_has_no_such_machine(world: WarmWorld) -> None:
    with (
        world.forker.fork(world.snapshot.directory, 1) as alone,
        pytest.raises(EngineError, match="the machine 'controller', and this guest is alone"),
    ):
        run(alone, ACT)


@ON_ANY_ENGINE
def test_the_worlds_camera_does_not_need_the_controllers_machine(sim: Machine) -> None:
    record = sim.run_episode(ACT.encode(), filename="one.py", max_steps=6, shots=Shots.over(6, 3))
    assert (record.error, record.steps) == (None, 6)
    assert record.film is not None
    assert "no render()" in record.film.why or record.film.steps == (0, 3, 6)
