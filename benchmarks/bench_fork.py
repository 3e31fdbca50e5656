"""How long until a fork answers, phase by phase, against booting a guest and loading the world each time."""

from __future__ import annotations

import statistics
import time

import common
from microsim_vm import warmup
from microsim_vm.cache import Cache
from microsim_vm.engines import qemu
from microsim_vm.templates.bake import bake


def main() -> None:
    """Print the table."""
    options = common.arguments(__doc__ or "", forks=100, boots=3)
    world = common.world(options.world)
    image = bake(world.template, Cache(), locked=False, progress=common.progress)
    accelerator = world.snapshot.manifest.engine["accelerator"]
    engine = qemu.Qemu("kvm" if accelerator == "kvm" else "tcg")

    boots, loads, totals = [], [], []
    for index in range(options.boots):
        common.progress(f"cold boot {index + 1} of {options.boots}")
        started = time.monotonic()
        with (
            Cache().staging("benchmark") as folder,
            warmup.loaded(world.template, image, engine, folder, lambda _: None) as (_, _, found),
        ):
            totals.append((time.monotonic() - started) * 1000.0)
            boots.append(found.boot_ms)
            loads.append(found.load_ms)

    with world.fork(0):
        pass  # the first fork of a process reads QEMU and the snapshot from disk
    phases: dict[str, list[float]] = {}
    for seed in range(options.forks):
        with world.fork(seed) as machine:
            for name, value in machine.timings.items():
                phases.setdefault(name, []).append(value)

    rows = [["cold: boot to agent", *common.summary(boots)], ["cold: load the world", *common.summary(loads)],
            ["cold: all", *common.summary(totals)]]  # fmt: skip
    names = {"fork": "fork: all, to the first answer", "fork.process start": "fork: QEMU's process start",
             "fork.state": "fork: device state", "fork.first answer": "fork: first answer, reseeded"}  # fmt: skip
    rows += [[label, *common.summary(phases[name])] for name, label in names.items()]
    common.table(["phase (ms)", "p50", "p99", "n"], rows)
    ratio = statistics.median(totals) / statistics.median(phases["fork"])
    print(f"a fork is {ratio:.0f} times faster than cold boot and load (p50 against p50)")


if __name__ == "__main__":
    main()
