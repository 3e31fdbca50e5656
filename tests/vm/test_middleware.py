"""ROS 2 and DDS in guests: nodes of one rollout find each other, and those of two never do.

The same nodes, from the same image, do hear each other on the host's kernel, wherever network or memory lets them: that
is what the silence between rollouts is worth.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hosting import Warmed
from microsim_guest import middleware
from microsim_vm.machine import Machine
from microsim_vm.options import Options
from microsim_vm.templates import find_template, rootfs
from microsim_vm.world import WarmWorld, warm

# One worker runs all of them: each holds many guests, and two that wait for the other's memory would wait for ever.
pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("middleware")]

FOLDER = Path(__file__).parent / "middleware"
KINDS = ["dds", "ros2"]
DRIVERS = {"dds": FOLDER / "dds_driver.py", "ros2": FOLDER.parents[2] / "example_tests/ros2/follower.py"}
ROLLOUTS = 16
LISTEN_S = 2.0
SILENCE_S = 3  # how long two nodes of the host may not hear each other
PERIOD_S = 0.25  # of what nodes say
UNICAST_PORTS = {7410 + 2 * index for index in range(120)}  # for discovery, of domain 0
Heard = dict[str, dict[str, int]]
"""By a node's name, how often it has heard each name."""


@pytest.fixture(scope="module")
def fastest(templates: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., WarmWorld]]:
    """Return a function that warms a template on the engine that a user would get here, with so much memory.

    Those of this folder are `dds-talk` and `ros2-talk` (see talk.py), and `dds-two` and `ros2-two`, which have a second
    machine of the same kind.
    """
    folder = tmp_path_factory.mktemp("middleware")
    for kind in KINDS:
        talk = folder / f"{kind}-talk"
        talk.mkdir()
        (talk / "template.yaml").write_text(f'name: {kind}-talk\nextends: {kind}\nworld: {{factory: "world:make"}}\n')
        shutil.copyfile(FOLDER / "talk.py", talk / "world.py")
        shutil.copyfile(FOLDER / f"{kind}_nodes.py", talk / "nodes.py")
        (folder / f"{kind}-two").mkdir()
        text = f"name: {kind}-two\nextends: {kind}\nmachines: {{other: {{template: {kind}}}}}\n"
        (folder / f"{kind}-two/template.yaml").write_text(text)
    worlds: dict[tuple[str, int | None], WarmWorld] = {}

    def get(name: str, memory_mib: int | None = None) -> WarmWorld:
        if (name, memory_mib) not in worlds:
            template = find_template(name, [folder, *templates])
            if memory_mib is not None:
                larger = msgspec.structs.replace(template.machine, memory_mib=memory_mib)
                template = msgspec.structs.replace(template, machine=larger)
            worlds[name, memory_mib] = warm(template, Options(), print)
        return worlds[name, memory_mib]

    yield get
    for world in worlds.values():
        world.close()


def wait_for(machine: Machine, pairs: int) -> None:
    """Wait until there are so many pairs of a node and a name that it has heard."""
    wait_until(machine, lambda said: said.count(" hears ") >= pairs)


def wait_until(machine: Machine, ready: Callable[[str], bool], timeout_s: float = 240.0) -> str:
    """Wait until nodes have said something, and return all of it."""
    deadline = time.monotonic() + timeout_s
    while not ready(said := machine.filesystem.read("/workspace/heard").decode()):
        assert time.monotonic() < deadline, f"{machine.id} waits for more than:\n{said}"
        time.sleep(0.2)
    return said


def parsed(said: str) -> Heard:
    """Return what nodes say that they have heard, when they end."""
    heard: Heard = {}
    for line in said.splitlines():
        if line.startswith("{"):
            heard.update(json.loads(line))
    return heard


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_of_a_rollout_find_each_other_and_the_same_seed_repeats(warmed: Warmed, kind: str) -> None:
    """The world's own, which simulates a robot, and a node that drives it."""
    with warmed(kind).fork(1) as machine:
        machine.filesystem.write("/workspace/driver.py", DRIVERS[kind].read_bytes())
        machine.exec("python3 driver.py >log 2>&1 &", check=True)
        first, again = drive(machine, 5), drive(machine, 5)
        machine.reset(6)
        other = machine.step(1.0)[0]
    assert first == again
    assert first[0] != other


def drive(machine: Machine, seed: int) -> list[Any]:
    """Let the robot be driven until it arrives; return what it was like after each second."""
    machine.reset(seed)
    seconds = []
    for _ in range(20):
        observation, reward, arrived, _, _ = machine.step(1.0)
        seconds.append(observation)
        if arrived:
            assert -0.1 < reward < 0.0
            return seconds
    raise AssertionError(f"it did not arrive: {seconds}, {machine.exec('cat log').stdout}")


@pytest.mark.parametrize("kind", KINDS)
def test_rollouts_side_by_side_hear_themselves_alone(fastest: Callable[..., WarmWorld], kind: str) -> None:
    world = fastest(f"{kind}-talk")
    with contextlib.ExitStack() as stack:
        machines = [stack.enter_context(world.fork(seed)) for seed in range(ROLLOUTS)]
        for machine in machines:
            machine.reset()
        for machine in machines:
            wait_for(machine, 4)
        time.sleep(LISTEN_S)  # all of them talk, from before to after
        said = []
        for machine in machines:
            machine.step(0.0)
            said.append(machine.filesystem.read("/workspace/heard").decode())
    for seed, text in enumerate(said):
        heard, own = parsed(text), {f"{seed}/a", f"{seed}/b"}
        assert set(heard) == own, text
        assert all(set(counts) == own for counts in heard.values()), text
        assert min(min(counts.values()) for counts in heard.values()) >= LISTEN_S / PERIOD_S / 2, text


@pytest.mark.parametrize("kind", KINDS)
def test_two_machines_of_a_rollout_find_each_other_and_no_other_rollouts(
    fastest: Callable[..., WarmWorld], kind: str
) -> None:
    world = fastest(f"{kind}-two")
    with contextlib.ExitStack() as stack:
        rollouts = [stack.enter_context(world.fork(seed)) for seed in range(2)]
        machines = {
            f"{seed}/{name}": machine
            for seed, rollout in enumerate(rollouts)
            for name, machine in rollout.machines.items()
        }
        for name, machine in machines.items():
            machine.filesystem.write("/workspace/nodes.py", (FOLDER / f"{kind}_nodes.py").read_bytes())
            machine.exec(f"python3 nodes.py {name} >heard 2>&1 & echo $! >pid", check=True)
        for machine in machines.values():
            wait_for(machine, 2)
        time.sleep(LISTEN_S)
        for name, machine in machines.items():
            machine.exec("kill $(cat pid)", check=True)
            counts = parsed(wait_until(machine, lambda said: bool(parsed(said))))[name]
            seed = name.partition("/")[0]
            assert set(counts) == {f"{seed}/sim", f"{seed}/other"}
            assert min(counts.values()) >= LISTEN_S / PERIOD_S / 2


LOOPBACK, ISLAND = (middleware.environment(scope, "eth0", {}) for scope in (middleware.LOOPBACK, middleware.ISLAND))


@pytest.mark.parametrize(
    ("kind", "env", "in_one"),
    [
        pytest.param("dds", LOOPBACK, 1, id="dds"),
        pytest.param("ros2", LOOPBACK, 3, id="ros2"),
        pytest.param("ros2", {"ROS_AUTOMATIC_DISCOVERY_RANGE": "", "ROS_LOCALHOST_ONLY": "1"}, 3, id="ros2-old"),
    ],
)
def test_twelve_participants_find_each_other_on_the_loopback(
    fastest: Callable[..., WarmWorld], kind: str, env: Mapping[str, str], in_one: int
) -> None:
    """Cyclone DDS looks for ten where multicast is off, unless it is told of more.

    All that it has in one process share an index; Fast DDS gives each its own.
    """
    names = [f"1/{letter}" for letter in "abcdefghijkl"]
    words = " ".join(",".join(names[first : first + in_one]) for first in range(0, len(names), in_one))
    with fastest(kind, 1024).fork(1) as machine:
        machine.filesystem.write("/workspace/nodes.py", (FOLDER / f"{kind}_nodes.py").read_bytes())
        command = f"python3 nodes.py {words} >heard 2>&1 & echo $! >pid"
        machine.exec(command, env={**env, "PERIOD_S": "1.0"}, check=True)
        wait_for(machine, len(names) ** 2)
        ports = {int(line.split()[1][-4:], 16) for line in machine.exec("tail -n +2 /proc/net/udp").stdout.splitlines()}
        machine.exec("kill $(cat pid)", check=True)
        heard = parsed(wait_until(machine, lambda said: len(parsed(said)) == len(names)))
    assert {name: set(counts) for name, counts in heard.items()} == {name: set(names) for name in names}
    assert len(ports & UNICAST_PORTS) >= len(names), "some of them share an index"


@pytest.fixture(scope="module")
def on_host(fastest: Callable[..., WarmWorld]) -> Callable[..., Heard]:
    """Return a function that runs two nodes of an image in two namespaces of the host; see namespaces.sh."""
    if os.geteuid() != 0 or rootfs.why_not():
        pytest.skip("an image's root needs root to be unpacked, and so do network namespaces")

    def run(kind: str, network: str, memory: str, env: Mapping[str, str]) -> Heard:
        world = fastest(kind)
        root = str(rootfs.ensure(world.forker.boot.layers))
        words = [root, str(FOLDER / f"{kind}_nodes.py"), network, memory, str(SILENCE_S)]
        variables = [f"{name}={value}" for name, value in {**world.template.env, **env}.items()]
        result = subprocess.run(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child",
             "sh", str(FOLDER / "namespaces.sh"), *words, *variables],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        heard = parsed(result.stdout)
        assert set(heard) == {"left", "right"}, result.stdout + result.stderr
        return heard

    return run


SHARED_MEMORY = {**ISLAND, "FASTDDS_BUILTIN_TRANSPORTS": "SHM"}


@pytest.mark.parametrize(
    ("kind", "network", "memory", "env"),
    [
        pytest.param("dds", "joined", "private", ISLAND, id="dds-bridge"),
        pytest.param("ros2", "joined", "private", ISLAND, id="ros2-bridge"),
        pytest.param("ros2", "apart", "shared", SHARED_MEMORY, id="ros2-memory"),
    ],
)
def test_on_one_kernel_the_same_nodes_hear_each_other(
    on_host: Callable[..., Heard], kind: str, network: str, memory: str, env: Mapping[str, str]
) -> None:
    """Over a bridge between their namespaces, or without any network through one /dev/shm."""
    heard = on_host(kind, network, memory, env)
    for counts in heard.values():
        assert set(counts) == {"left", "right"}


@pytest.mark.parametrize(
    ("kind", "network", "env"),
    [
        pytest.param("dds", "apart", ISLAND | {"CYCLONEDDS_URI": ""}, id="dds-apart"),
        pytest.param("dds", "joined", LOOPBACK, id="dds-bridge-loopback"),
        pytest.param("ros2", "apart", SHARED_MEMORY, id="ros2-memory-apart"),
        pytest.param("ros2", "joined", LOOPBACK, id="ros2-bridge-loopback"),
    ],
)
def test_on_one_kernel_they_do_not_where_nothing_joins_them_or_they_are_told_so(
    on_host: Callable[..., Heard], kind: str, network: str, env: Mapping[str, str]
) -> None:
    heard = on_host(kind, network, "private", env)
    for name, counts in heard.items():
        assert set(counts) == {name}
        assert counts[name] >= SILENCE_S / PERIOD_S / 2, "it was not there for long enough to hear anybody"
