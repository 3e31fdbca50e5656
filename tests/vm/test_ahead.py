"""Forks started ahead of their use: as good as any other, given up where memory is short, and never left behind."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hosting import Warmed, wait_for
from microsim_vm import admission, runtime
from microsim_vm.errors import SeedError
from microsim_vm.machine import Machine
from microsim_vm.world import WarmWorld

pytestmark = pytest.mark.timeout(300)

DRAW = "head -c 8 /dev/urandom | od -An -tx1 | tr -d ' '; python3 -c 'import uuid; print(uuid.uuid4())'; date +%s.%N"


@pytest.fixture
def world(warmed: Warmed) -> Iterator[WarmWorld]:
    world = warmed("cartpole")
    yield world
    world.close()


def guests() -> list[str]:
    """Return what this process's guests are for."""
    with runtime.locked() as path:
        return [record.label for _, record in runtime.records(path) if record.owner.pid == os.getpid()]


def engine_of_held() -> psutil.Process:
    """Return the engine's process of the one guest of this process."""
    with runtime.locked() as path:
        (vmm,) = [record.vmm for _, record in runtime.records(path) if record.owner.pid == os.getpid()]
    assert vmm is not None
    return psutil.Process(vmm.pid)


def ready(world: WarmWorld) -> None:
    """Start a fork ahead, and wait until it is held."""
    world.prepare()
    wait_for(lambda: not any(thread.name == "microsim-ahead" for thread in threading.enumerate()), "a fork", 60)
    assert guests() == ["cartpole, for the next rollout"]


def drawn(machine: Machine) -> list[str]:
    return machine.exec(DRAW).stdout.split()


def test_a_prepared_fork_is_a_fork_like_any_other(world: WarmWorld) -> None:
    ready(world)
    with world.fork(7, wall_clock="now") as prepared, world.fork(7) as usual:
        assert "fork.resume" in prepared.timings
        assert "fork.resume" not in usual.timings
        assert prepared.probes == usual.probes
        assert prepared.exec("echo $EPISODE_SEED").stdout == usual.exec("echo $EPISODE_SEED").stdout == "7\n"
        before = time.time()
        one = drawn(prepared)
        assert before - 0.5 < float(one[-1]) < time.time() + 0.5  # however long the command takes
        assert not set(one) & set(drawn(usual))
        assert prepared.exec("hostname").stdout.strip() == prepared.id != usual.id
        assert prepared.reset()[0] == pytest.approx(usual.reset()[0], abs=0)
    assert guests() == []


def test_one_at_a_time_is_prepared(world: WarmWorld) -> None:
    ready(world)
    world.prepare()
    assert guests() == ["cartpole, for the next rollout"]
    with world.fork(1):
        assert guests() == ["cartpole, for the next rollout"]  # it is used now
        world.prepare()
        with world.fork(2) as second:
            assert "fork.wait" in second.timings
    assert guests() == []


def test_closing_the_world_ends_it_also_where_it_is_about_to_start(world: WarmWorld) -> None:
    ready(world)
    held = engine_of_held()
    world.close()
    assert not held.is_running()
    world.prepare()
    world.close()
    assert guests() == []
    with world.fork(3) as machine:
        assert machine.exec("echo works").stdout == "works\n"


def test_one_that_died_meanwhile_is_replaced(world: WarmWorld) -> None:
    ready(world)
    held = engine_of_held()
    held.kill()
    wait_for(lambda: not held.is_running() or held.status() == psutil.STATUS_ZOMBIE, "its end")
    with world.fork(4) as machine:
        assert machine.pid != held.pid
        assert machine.exec("echo works").stdout == "works\n"
    assert guests() == []


def test_a_seed_that_is_none_uses_it_up_and_leaves_nothing(world: WarmWorld) -> None:
    ready(world)
    with pytest.raises(SeedError):
        world.fork(-1)
    assert guests() == []


def test_it_gives_way_to_a_guest_that_would_have_to_wait(
    world: WarmWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # what others on this machine hold would count too
    need = world.forker.boot.memory_mib + world.forker.engine.overhead_mib
    monkeypatch.setattr(admission, "pools", lambda: [admission.Pool(2 * need, None)])
    with contextlib.ExitStack() as stack:
        ready(world)
        stack.enter_context(world.forker.started(world.snapshot.directory, "one"))
        stack.enter_context(world.forker.started(world.snapshot.directory, "two", wait_s=5))
        assert sorted(guests()) == ["one", "two"]
        world.prepare()  # there is no room for more than what is needed
        assert sorted(guests()) == ["one", "two"]
    assert guests() == []
