"""Each engine that works here, and plain processes, on one world: start, speed, memory, what it can do."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import common
from alternatives import Plain, PlainEpisode
from microsim_vm.engines.base import ABILITIES
from microsim_vm.errors import MicrosimError
from microsim_vm.options import Options
from microsim_vm.world import WarmWorld, warm

from pytest_microsim.gates.fingerprints import fingerprint_of_columns

WAYS = (
    Options(engine="qemu", accel="kvm"),
    Options(engine="gvisor"),
    Options(engine="qemu", accel="tcg"),
)
SAME_SEED = 7


@dataclass
class Column:
    """What was found of one engine, or of plain processes.

    Attributes:
        name: The column's head.
        figures: Medians by row; a row that is not there does not apply.
        facts: Words by row.
    """

    name: str
    figures: dict[str, float] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)


def main() -> None:
    """Print the tables."""
    options = common.arguments(
        __doc__ or "", n=50, boots=2, live=4, seeds=64, workers=os.cpu_count() or 1, controller="dock.py",
        max_steps=500,
    )  # fmt: skip
    controller = common.CONTROLLERS / options.controller
    columns: list[Column] = []
    plain = Plain(common.template(options.world), controller, options.max_steps)
    why_not = plain.why_not()
    if why_not:
        print(f"not compared with plain processes: {why_not}")
    else:
        common.progress("measuring plain processes")
        columns.append(_plain(plain, options))
    for way in WAYS:
        if options.engine not in ("auto", way.engine):
            continue
        try:
            world = warm(common.template(options.world), way, common.progress)
        except MicrosimError as error:
            print(f"not measured: {way.engine} {way.accel.replace('auto', '')}: {error.what}: {error.cause}")
            continue
        common.progress(f"measuring {world.engine_line}")
        columns.append(_engine(world, plain, controller, options))
    if not columns:
        raise SystemExit("nothing could be measured")

    print(f"world {options.world}, {options.controller}, {options.n} starts and episodes, medians; {common.machine()}")
    print(f"In brackets: the ratio to {columns[0].name}.\n")
    heads = [column.name for column in columns]
    common.table(["", *heads], [[row, *_cells(columns, row)] for row in _rows(columns, lambda each: each.figures)])
    common.table(
        ["", *heads],
        [[row, *(column.facts.get(row, "-") for column in columns)] for row in _rows(columns, lambda each: each.facts)],
    )
    print(
        "Engines show their guests different processors, so episodes of two engines are not compared with each other."
    )


def _engine(world: WarmWorld, plain: Plain, controller: Path, options: argparse.Namespace) -> Column:
    engine = world.forker.engine
    column = Column(engine.describe())
    source = controller.read_bytes()

    cold: list[float] = []
    for _ in range(options.boots):
        with common.cold(world) as machine:
            cold.append(machine.timings["cold"])
    with world.fork(0):
        pass  # the first fork of a process reads the engine and the snapshot from disk
    starts: list[float] = []
    rates: list[float] = []
    later: list[float] = []
    for seed in range(options.n):
        started = time.monotonic()
        with world.fork(seed) as machine:
            starts.append((time.monotonic() - started) * 1000.0)
            for found in (rates, later):
                record = machine.run_episode(source, filename=controller.name, max_steps=options.max_steps)
                found.append(record.steps / record.wall_ms * 1000.0)
    ahead: list[float] = []
    for seed in range(options.n):
        world.prepare()
        time.sleep(statistics.median(starts) * 3.0 / 1000.0)  # what a test does in the meantime
        started = time.monotonic()
        with world.fork(seed):
            ahead.append((time.monotonic() - started) * 1000.0)

    with world.fork(0) as machine:
        inside = [plain.inside(machine, seed) for seed in range(options.boots)]
    with contextlib.ExitStack() as stack:
        machines = [stack.enter_context(world.fork(seed)) for seed in range(options.live)]
        for machine in machines:
            machine.run_episode(source, filename=controller.name, max_steps=options.max_steps)
        memory = [common.memory_mib(machine.pid) for machine in machines]

    started = time.monotonic()
    records = world.map(controller, range(options.seeds), workers=options.workers, max_steps=options.max_steps)
    seconds = time.monotonic() - started
    again = world.map(controller, [SAME_SEED] * 2, workers=2, max_steps=options.max_steps)

    _start_rows(column, cold, starts)
    column.figures["started ahead of its use, p50 (ms)"] = statistics.median(ahead)
    _work_rows(column, rates, later, inside, memory, options)
    column.figures[_seeds_row(options)] = seconds
    column.figures["the same, with the first boot and load (s)"] = seconds + statistics.median(cold) / 1000.0
    _seed_facts(
        column, [fingerprint_of_columns(each.columns) for each in again],
        [fingerprint_of_columns(each.columns) for each in records],
    )  # fmt: skip
    column.facts["boundary"] = engine.isolation
    column.facts["cannot"] = "; ".join(ABILITIES[ability] for ability in engine.lacks) or "-"
    return column


def _plain(plain: Plain, options: argparse.Namespace) -> Column:
    column = Column("plain processes")
    plain.episode(0)  # reads the packages from disk
    episodes = [plain.episode(seed) for seed in range(options.n)]
    with contextlib.ExitStack() as stack:
        live = [stack.enter_context(plain.live(seed)) for seed in range(options.live)]
        memory = [common.memory_mib(pid) for pid, _ in live]

    started = time.monotonic()
    with ThreadPoolExecutor(options.workers) as pool:
        all_seeds = list(pool.map(plain.episode, range(options.seeds)))
    seconds = time.monotonic() - started

    starts = [episode.start_ms for episode in episodes]
    _start_rows(column, starts, starts)
    rates = [episode.steps / episode.seconds for episode in episodes]
    _work_rows(column, rates, [], episodes, memory, options)
    column.figures[_seeds_row(options)] = seconds
    column.figures["the same, with the first boot and load (s)"] = seconds
    _seed_facts(column, _prints([plain.episode(SAME_SEED) for _ in range(2)]), _prints(all_seeds))
    column.facts["boundary"] = "none"
    column.facts["cannot"] = "limit, isolate or save anything"
    return column


def _start_rows(column: Column, cold: Sequence[float], starts: Sequence[float]) -> None:
    column.figures["boot and load (ms)"] = statistics.median(cold)
    column.figures["start of a seed, to its first answer, p50 (ms)"] = statistics.median(starts)
    column.figures["the same, p99 (ms)"] = common.percentile(starts, 0.99)


def _work_rows(
    column: Column, rates: Sequence[float], later: Sequence[float], alone: Sequence[PlainEpisode],
    memory: Sequence[common.Memory], options: argparse.Namespace,
) -> None:  # fmt: skip
    column.figures["steps per second of an episode"] = statistics.median(rates)
    if later:
        column.figures["of a second episode in the same fork"] = statistics.median(later)
    column.figures["of the plain program, run there"] = statistics.median(each.steps / each.seconds for each in alone)
    together = f"{options.live} alive, after an episode (MiB)"
    column.figures[f"PSS of each, {together}"] = statistics.median(each.proportional for each in memory)
    column.figures[f"private memory of each, {together}"] = statistics.median(each.private for each in memory)


def _seeds_row(options: argparse.Namespace) -> str:
    return f"{options.seeds} seeds, {options.workers} at a time (s)"


def _seed_facts(column: Column, again: Sequence[str], fingerprints: Sequence[str]) -> None:
    column.facts["the same seed twice gives the same episode"] = "yes" if len(set(again)) == 1 else "no"
    column.facts["distinct episodes of all seeds"] = f"{len(set(fingerprints))} of {len(fingerprints)}"


def _prints(episodes: Sequence[PlainEpisode]) -> list[str]:
    return [episode.fingerprint for episode in episodes]


def _rows(columns: Sequence[Column], part: Callable[[Column], dict[str, float] | dict[str, str]]) -> list[str]:
    """Return the rows that any column has, in the order of the one that has most."""
    return list(max((part(column) for column in columns), key=len))


def _cells(columns: Sequence[Column], row: str) -> list[str]:
    first = columns[0].figures.get(row)
    cells = []
    for column in columns:
        value = column.figures.get(row)
        if value is None:
            cells.append("-")
        else:
            ratio = f" ({value / first:.2f})" if first else ""
            cells.append(f"{value:.{0 if value >= 100 else 1}f}{ratio}")
    return cells


if __name__ == "__main__":
    main()
