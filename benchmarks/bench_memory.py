"""Memory per live fork after an episode, with 1, 8 and 32 forks alive at the same time."""

from __future__ import annotations

import contextlib
import statistics
from concurrent.futures import ThreadPoolExecutor

import common
from microsim_vm.machine import Machine


def main() -> None:
    """Print the table."""
    options = common.arguments(__doc__ or "", controller="dock.py", max_steps=500)
    world = common.world(options.world, options.engine)
    source = (common.CONTROLLERS / options.controller).read_bytes()
    size = world.template.machine.memory_mib

    def run(machine: Machine) -> None:
        machine.run_episode(source, filename=options.controller, max_steps=options.max_steps)

    rows = []
    for count in (1, 8, 32):
        with contextlib.ExitStack() as stack:
            machines = [stack.enter_context(world.fork(seed)) for seed in range(count)]
            idle = statistics.median(common.memory_mib(machine.pid).private for machine in machines)
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(run, machines))
            after = [common.memory_mib(machine.pid) for machine in machines]
        private, proportional, shared = (statistics.median(values) for values in zip(*after, strict=True))
        rows.append([str(count), f"{idle:.0f}", f"{private:.0f}", f"{proportional:.0f}", f"{shared:.0f}",
                     f"{size / private:.1f}"])  # fmt: skip
    common.table(
        ["live forks", "private, idle (MiB)", "private, after an episode", "PSS", "shared",
         f"ratio to the guest's {size} MiB"], rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
