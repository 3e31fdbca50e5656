"""Deterministic machines: every bit follows from the snapshot and the seed, on a busy host and in another session."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from hosting import REPOSITORY
from microsim_vm import deterministic
from microsim_vm.errors import DeterminismError
from microsim_vm.options import Options
from microsim_vm.templates import find_template
from microsim_vm.world import WarmWorld, warm

RACES = REPOSITORY / "benchmarks" / "races"
CONTROLLER = b"def act(observation):\n    return 1\n"
AT_ONCE = 3

AGAIN = """
    import sys
    from pathlib import Path
    from microsim_vm.options import Options
    from microsim_vm.templates import load_template
    from microsim_vm.world import warm

    world = warm(load_template(Path(sys.argv[1])), Options(deterministic=True), lambda line: None)
    assert world.reused
    with world.fork(1) as machine:
        result = machine.exec(["python3", "-"], stdin=Path(sys.argv[2]).read_bytes(), check=True)
        print(result.stdout.strip(), machine.run_digest)
"""


class Ran(NamedTuple):
    """What one fork left."""

    output: str
    digest: str


@pytest.fixture(scope="module")
def world(templates: list[Path]) -> WarmWorld:
    return warm(find_template("cartpole", templates), Options(deterministic=True), print)


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    path = tmp_path_factory.mktemp("race") / "race"
    subprocess.run([compiler, "-O1", "-static", "-s", "-pthread", "-o", path, RACES / "race.cpp"], check=True)
    return path.read_bytes()


@pytest.fixture
def busy() -> Iterator[None]:
    """A busy loop on each core."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def script(world: WarmWorld, name: str, seed: int, schedule: int | None = None) -> Ran:
    with world.fork(seed, schedule=schedule) as machine:
        result = machine.exec(["python3", "-"], stdin=(RACES / name).read_bytes(), check=True)
        return Ran(result.stdout.strip(), machine.run_digest)


def test_forks_of_a_seed_are_bit_identical_and_another_seed_is_another_interleaving(
    world: WarmWorld, busy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a loaded host, and while QEMU is asked things all the time: when it wakes up for them may not matter."""
    monkeypatch.setattr(deterministic, "LOOK_S", 0.0005)
    for name in ("threads.py", "peers.py", "idle.py"):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            one = list(pool.map(lambda _: script(world, name, 1), range(AT_ONCE)))  # noqa: B023
        assert len(set(one)) == 1, name
        other = script(world, name, 2)
        assert other.output.split()[1] != one[0].output.split()[1], name
        assert other.digest != one[0].digest


def test_a_data_race_in_machine_code_has_the_same_outcome_each_time_and_another_one_per_schedule(
    world: WarmWorld, binary: bytes
) -> None:
    def race(schedule: int) -> Ran:
        with world.fork(1, schedule=schedule) as machine:
            command = "cat > /tmp/race && chmod 755 /tmp/race && exec /tmp/race"
            result = machine.exec(command, stdin=binary, check=True)
            return Ran(result.stdout.strip(), machine.run_digest)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(race, [0, 1, 2, 0, 1, 2]))
    assert found[:3] == found[3:]
    assert len({ran.output for ran in found}) == 3
    assert any(not ran.output.startswith("0 ") for ran in found), "no update was lost"


def test_an_episode_and_what_was_asked_before_it_repeat(world: WarmWorld) -> None:
    """The machine lives once per request, and has to give its earlier answers again."""
    seen = []
    for _ in range(2):
        with world.fork(5) as machine:
            first = machine.exec("cat /proc/sys/kernel/random/uuid; date +%s.%N; echo kept > file", check=True)
            after_first = machine.run_digest
            record = machine.run_episode(CONTROLLER, filename="controller.py", max_steps=20)
            assert machine.filesystem.read("/workspace/file") == b"kept\n"
            assert record.error is None
            assert (record.schedule, record.run_digest != after_first) == (machine.schedule, True)
            assert machine.probes
            seen.append((first.stdout, after_first, record.columns, record.wall_ms, record.run_digest))
    assert seen[0] == seen[1]


def test_a_digest_repeats_in_another_session_from_the_stored_snapshot(world: WarmWorld) -> None:
    here = script(world, "threads.py", 1)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    there = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(AGAIN), world.template.path, RACES / "threads.py"],
        capture_output=True, text=True, check=True, timeout=300, env=environment,
    )  # fmt: skip
    assert there.stdout.strip() == f"{here.output} {here.digest}"


def test_what_the_host_would_reach_into_is_refused(world: WarmWorld) -> None:
    with world.fork(1) as machine:
        for refused in (machine.reset, lambda: machine.step(0), machine.terminal, machine.fork):
            with pytest.raises(DeterminismError) as caught:
                refused()
            assert caught.value.cause
        assert machine.run_digest == "", "nothing of this has run"
    with pytest.raises(DeterminismError, match="wall clock"):
        world.fork(1, wall_clock="now")
