"""What the jail costs: a program started in it, against one that merely dies with us; and forks with and without."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import common
import psutil
from microsim_vm import spawn
from microsim_vm.jail import cell, cgroups, layers
from microsim_vm.jail.cell import Cell
from microsim_vm.jail.cgroups import Limits
from microsim_vm.jail.layers import Layers
from microsim_vm.world import WarmWorld

PROGRAM = "/bin/true"
LIMITS = Limits(256, 2, 128)
NOTHING = Layers((), {}, "resource limits")


def unjailed() -> None:
    """Start a program that dies with us, as engines were started without a jail, and wait for its end."""
    spawn.child([PROGRAM]).communicate()


def jailed(own: Layers) -> None:
    """Start it in layers, and wait for its end."""
    with open(os.devnull, "rb") as memory:
        child = cell.start([PROGRAM], Cell(LIMITS, [], memory=memory.fileno(), memory_path=Path(os.devnull)), [], own)
    child.wait(10)
    child.discard()


@contextlib.contextmanager
def without_jail() -> Iterator[None]:
    """Have forks start in no layer and no group."""
    with mock.patch.object(layers, "here", return_value=NOTHING), mock.patch.object(cgroups, "places", return_value={}):
        yield


def forks(world: WarmWorld, count: int) -> dict[str, list[float]]:
    """Return how long QEMU takes from its start until it can be talked to, with and without, in turns."""
    found: dict[str, list[float]] = {"without": [], "jailed": []}
    for number in range(count):
        for name, context in (("without", without_jail()), ("jailed", contextlib.nullcontext())):
            with context, world.fork(number) as machine:
                found[name].append(machine.timings["fork.process start"])
    return found


def programs(count: int, own: Layers) -> dict[str, list[float]]:
    """Return how long a program takes from its start to its end, in turns."""
    ways: dict[str, Callable[[], None]] = {
        "a program that dies with us": unjailed, "the warden's, in no layer": functools.partial(jailed, NOTHING),
        "the warden's, jailed": functools.partial(jailed, own),
    }  # fmt: skip
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(count):
        for name, way in ways.items():
            found[name] += common.times(1, way)
    return found


def main() -> None:
    """Print the tables."""
    options = common.arguments(__doc__ or "", forks=40, programs=100)
    own = layers.here()
    print(f"{own.detail()}; {common.machine()}\n")
    header = ["p50", "p99", "n", "ratio"]
    common.table(
        ["a program, from its start to its end (ms)", *header], common.compared(programs(options.programs, own))
    )
    warden = psutil.Process(cell.warden()._process.pid).memory_full_info()
    print(f"the warden has {warden.uss >> 20} MiB for itself, once for each process that starts guests\n")
    world = common.world(options.world, "qemu")
    with world.fork(0):
        pass  # the first fork of a process reads the engine and the snapshot from disk
    started = forks(world, options.forks)
    common.table(["QEMU, from its start until it answers (ms)", *header], common.compared(started))
    world.close()


if __name__ == "__main__":
    main()
