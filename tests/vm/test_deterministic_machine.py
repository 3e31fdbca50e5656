"""Deterministic machines: every bit follows from the snapshot and the seed, on a busy host and in another session."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from hosting import AS_NOBODY, NOBODY, REPOSITORY, give_to_nobody
from microsim_vm import deterministic
from microsim_vm.errors import CommandInterruptedError, ControllerTimeoutError, DeterminismError
from microsim_vm.options import Options
from microsim_vm.templates import find_template
from microsim_vm.world import WarmWorld, warm

RACES = REPOSITORY / "benchmarks" / "races"
CONTROLLER = b"def act(observation):\n    return 1\n"
AT_ONCE = 3

# Kills the agent, as somebody who may do everything in the guest can.
KILL_AGENT = "kill -9 $PPID; sleep 60"
HANGING = b"def act(observation):\n    while True:\n        pass\n"
# Three threads that lose each other's additions; what they come to decides the action.
THREADED = b"""
import threading
total = 0

def add():
    global total
    for _ in range(4000):
        seen = total
        int(str(seen) * 2)
        total = seen + 1

def act(observation):
    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(total)
    return total % 2
"""

AGAIN = """
    import sys
    from pathlib import Path
    from microsim_vm.options import Options
    from microsim_vm.templates import load_template
    from microsim_vm.world import warm

    options = Options(deterministic=True, cache_dir=Path(sys.argv[3]))
    world = warm(load_template(Path(sys.argv[1])), options, lambda line: None)
    assert world.reused
    with world.fork(1) as machine:
        result = machine.exec(["python3", "-"], stdin=Path(sys.argv[2]).read_bytes(), check=True)
        print(result.stdout.strip(), machine.run_digest)
"""

BY_ANOTHER = """
    import os, sys
    from pathlib import Path
    from microsim_vm import deterministic
    from microsim_vm.cache import Cache
    from microsim_vm.engines.base import Boot
    from microsim_vm.engines.icount import Icount
    from microsim_vm.forks import Forker
    from microsim_vm.templates import load_template

    file, script, cache, snapshot, kernel, initramfs, *layers = map(Path, sys.argv[1:])
    template = load_template(file)
    named = {str(number): path for number, path in enumerate(layers)}
    boot = Boot(kernel, initramfs, named, 1, template.machine.memory_mib)
    forker = Forker(template.name, template.controller, Icount(), boot, Cache(cache))
    clock = template.wall_clock_start
    with deterministic.fork(forker, snapshot, 1, schedule=None, reseed=True, wall_clock=clock) as machine:
        result = machine.exec(["python3", "-"], stdin=script.read_bytes(), check=True)
        print(os.getuid(), result.stdout.strip(), machine.run_digest)
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


def test_what_is_asked_later_changes_nothing_of_what_came_before(world: WarmWorld) -> None:
    """However large it is: else the machine diverges."""
    with world.fork(1) as machine:
        machine.exec("date +%s.%N", check=True)
        for size in (100, 1 << 16, 1 << 20):
            machine.filesystem.write("/workspace/file", bytes(size))
        assert machine.filesystem.stat("/workspace/file").size == 1 << 20


def test_threads_of_a_controller_follow_the_schedule(world: WarmWorld) -> None:
    def race(schedule: int) -> tuple[bytes, str]:
        with world.fork(1, schedule=schedule) as machine:
            record = machine.run_episode(THREADED, filename="threaded.py", max_steps=3)
            assert record.error is None
            return record.controller_stdout, record.run_digest

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(race, [0, 1, 2, 0, 1, 2]))
    assert found[:3] == found[3:]
    assert len({printed for printed, _ in found}) > 1


def test_a_controller_that_hangs_ends_at_its_limit_by_the_machines_clock(world: WarmWorld) -> None:
    seen = set()
    for _ in range(2):
        with world.fork(1) as machine:
            record = machine.run_episode(HANGING, filename="hanging.py", timeout_seconds=1.0)
            assert isinstance(record.error, ControllerTimeoutError)
            seen.add((record.wall_ms, record.run_digest))
    assert len(seen) == 1


def test_a_machine_that_was_lost_says_why_and_stays_lost(world: WarmWorld) -> None:
    for ending, reason in (("echo c > /proc/sysrq-trigger", "panicked"), (KILL_AGENT, "agent")):
        with world.fork(1) as machine:
            for command in (ending, "true"):
                with pytest.raises(CommandInterruptedError) as caught:
                    machine.exec(command)
                assert reason in caught.value.cause
    with world.fork(1) as machine:
        threading.Timer(1.0, lambda: os.kill(machine.pid, signal.SIGKILL)).start()
        for command in ("sleep 600", "true"):
            with pytest.raises(CommandInterruptedError, match="lost"):
                machine.exec(command)


def test_a_machine_can_be_closed_while_it_runs(world: WarmWorld) -> None:
    with world.fork(1) as machine:
        threading.Timer(1.0, machine.close).start()
        with pytest.raises(CommandInterruptedError, match="closed"):
            machine.exec("sleep 600")


def python(script: str, *words: object, before: Sequence[str] = (), env: Mapping[str, str], cwd: Path) -> str:
    """Run a script in a process of its own, and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env}
    done = subprocess.run(
        [*before, sys.executable, "-c", textwrap.dedent(script), *map(str, words)],
        capture_output=True, text=True, timeout=300, env=environment, cwd=cwd,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_digest_repeats_in_another_session_from_the_stored_snapshot(world: WarmWorld, tmp_path: Path) -> None:
    """Also where the cache has another path, and the process another home, folder and language."""
    here = script(world, "threads.py", 1)
    elsewhere = tmp_path / "another path, to the cache"
    elsewhere.symlink_to(world.forker.cache.root)
    env = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "LANG": "C", "TZ": "Pacific/Auckland", "PYTHONHASHSEED": "7"}
    there = python(AGAIN, world.template.path, RACES / "threads.py", elsewhere, env=env, cwd=tmp_path)
    assert there == f"{here.output} {here.digest}"


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user runs all of these tests as one already")
def test_a_digest_repeats_for_another_user(world: WarmWorld) -> None:
    here = script(world, "threads.py", 1)
    with tempfile.TemporaryDirectory(prefix="microsim-nobody-") as folder:
        os.chown(folder, NOBODY, NOBODY)
        give_to_nobody(world, Path(folder))
        given = (Path(folder, name) for name in ("snapshot", "kernel", "initramfs", *world.forker.boot.layers))
        there = python(
            BY_ANOTHER, world.template.path, RACES / "threads.py", folder, *given,
            before=AS_NOBODY, env={"HOME": folder, "XDG_RUNTIME_DIR": folder}, cwd=Path(folder),
        )  # fmt: skip
    assert there == f"{NOBODY} {here.output} {here.digest}"


def test_what_the_host_would_reach_into_is_refused(world: WarmWorld) -> None:
    with world.fork(1) as machine:
        for refused in (machine.reset, lambda: machine.step(0), machine.terminal, machine.fork):
            with pytest.raises(DeterminismError) as caught:
                refused()
            assert caught.value.cause
        assert machine.run_digest == "", "nothing of this has run"
    with pytest.raises(DeterminismError, match="wall clock"):
        world.fork(1, wall_clock="now")
