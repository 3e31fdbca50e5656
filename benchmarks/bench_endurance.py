"""Rollouts in a row, and what this process and the machine have more of afterwards: nothing, or the script fails."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from pathlib import Path

import common
import psutil
from microsim_vm import owner, runtime
from microsim_vm.errors import CommandInterruptedError
from microsim_vm.islands import namespaces
from microsim_vm.world import WarmWorld

FIRST = 5  # rollouts before the first count: what is kept from the first on is kept once
MEMORY_MIB = 4.0  # by which memory may differ: the allocator's


def counted(world: WarmWorld) -> dict[str, int]:
    """Return how much there is of what a rollout uses, for this process, its children and the machine."""
    gc.collect()
    me = psutil.Process()
    family = [me, *me.children(recursive=True)]
    mine = owner.Process.current()
    with runtime.locked() as path:
        records = sum(record.owner == mine for _, record in runtime.records(path))
        folders = [*path.glob(f"{runtime.GVISOR}*"), *world.forker.cache.folder("staging").iterdir()]
    groups = [name for top, names, _ in os.walk("/sys/fs/cgroup") for name in names if f"-{mine.pid}-" in f"-{name}"]
    return {
        "processes": len(family),
        "threads": sum(each.num_threads() for each in family),
        "descriptors": sum(each.num_fds() for each in family),
        "network namespaces": len({os.readlink(f"/proc/{each.pid}/ns/net") for each in family}),
        "network interfaces": sum(
            len(Path(f"/proc/{each.pid}/net/dev").read_text().splitlines()) - 2 for each in family
        ),
        # Ours have the name in their paths; others come and go on a machine that does something else, too.
        "mounts": sum("microsim" in line for line in Path("/proc/self/mounts").read_text().splitlines()),
        "control groups": len(groups),
        "records of guests": records,
        "folders": sum(owner.read(folder) == mine for folder in folders),
        "files of the snapshot, KiB": sum(file.stat().st_blocks // 2 for file in world.snapshot.directory.iterdir()),
    }


def memory_mib() -> float:
    """Return the resident memory of this process and its children, MiB."""
    me = psutil.Process()
    return float(sum(each.memory_info().rss for each in (me, *me.children(recursive=True)))) / (1 << 20)


def rollout(world: WarmWorld, number: int) -> None:
    """Fork, use and close one; every tenth does more, and every twentieth breaks."""
    with world.fork(number) as machine:
        if number % 10 == 1:
            machine.filesystem.write("/workspace/note", os.urandom(100_000))
            assert len(machine.filesystem.read("/workspace/note")) == 100_000
        if number % 20 == 11:
            try:
                machine.exec("kill -9 $PPID; sleep 60")
            except CommandInterruptedError:
                return
            raise SystemExit("a guest without its agent answers")


def main() -> None:
    """Count, run, count again, and compare."""
    options: argparse.Namespace = common.arguments(str(__doc__), world="cartpole", rollouts=200)
    world = common.world(options.world, options.engine)
    if world.forker.boot.network.policy != "none":
        namespaces.maker()
    for number in range(FIRST):
        rollout(world, number)
    with world.fork(0):
        alive = counted(world)
    before, memory_before, started = counted(world), memory_mib(), time.monotonic()
    for number in range(FIRST, FIRST + options.rollouts):
        rollout(world, number)
    seconds, after, grown = time.monotonic() - started, counted(world), memory_mib() - memory_before
    world.close()
    rows: dict[str, tuple[object, ...]] = {name: (before[name], alive[name], after[name]) for name in before}
    rows["resident memory, MiB"] = (round(memory_before, 1), "", round(memory_before + grown, 1))
    print(f"{'':28} {'before':>10} {'one alive':>10} {'after':>10}")
    for name, columns in rows.items():
        print(f"{name:28} " + " ".join(f"{column:>10}" for column in columns))
    print(f"{options.rollouts} rollouts in a row, {1000 * seconds / options.rollouts:.0f} ms each")
    blind = [name for name in ("processes", "descriptors", "records of guests") if alive[name] <= before[name]]
    if blind:
        sys.exit(f"a live guest is not seen by its {', '.join(blind)}")
    more = [name for name in before if after[name] != before[name]]
    if grown > MEMORY_MIB:
        more.append("resident memory, MiB")
    if more:
        sys.exit(f"not as before: {', '.join(more)}")


if __name__ == "__main__":
    main()
