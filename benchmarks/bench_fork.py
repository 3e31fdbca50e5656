"""How long until a fork answers, phase by phase, against booting a guest and loading the world each time."""

from __future__ import annotations

import statistics

import common


def main() -> None:
    """Print the table."""
    options = common.arguments(__doc__ or "", forks=100, boots=3)
    world = common.world(options.world, options.engine)
    phases: dict[str, list[float]] = {}

    def note(timings: dict[str, float]) -> None:
        for name, value in timings.items():
            phases.setdefault(name, []).append(value)

    for index in range(options.boots):
        common.progress(f"cold boot {index + 1} of {options.boots}")
        with common.cold(world) as machine:
            note(machine.timings)
    with world.fork(0):
        pass  # the first fork of a process reads the engine and the snapshot from disk
    for seed in range(options.forks):
        with world.fork(seed) as machine:
            note(machine.timings)

    names = {
        "cold.boot": "cold: boot to agent", "cold.load": "cold: load the world",
        "cold": "cold: all", "fork": "fork: all, to the first answer",
        "fork.process start": "fork: the engine's process start", "fork.state": "fork: device state",
        "fork.first answer": "fork: first answer, reseeded",
    }  # fmt: skip
    rows = [[label, *common.summary(phases[name])] for name, label in names.items() if name in phases]
    common.table(["phase (ms)", "p50", "p99", "n"], rows)
    ratio = statistics.median(phases["cold"]) / statistics.median(phases["fork"])
    print(f"a fork is {ratio:.0f} times faster than cold boot and load (p50 against p50)")


if __name__ == "__main__":
    main()
