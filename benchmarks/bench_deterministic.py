"""The deterministic machine: forks of a seed compared bit by bit, schedules per minute, and speed against others."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import common
from alternatives import Plain
from microsim_vm.errors import MicrosimError
from microsim_vm.options import Options
from microsim_vm.world import WarmWorld, warm

RACES = Path(__file__).resolve().parent / "races"
RUN = "cat > /tmp/race && chmod 755 /tmp/race && exec /tmp/race"
PROGRAMS = ("threads.py", "race.cpp", "peers.py", "idle.py")
# What a rollout's processor does most: interpret Python.
SPIN = "sum(i * i for i in range({}))"
FEW, MANY = 1000, 1_001_000
STEPS = 500
SEED = 1


class Ran(NamedTuple):
    """What one fork left.

    Attributes:
        output: What the program printed.
        digest: Of the whole machine at its end.
    """

    output: str
    digest: str


class Races:
    """Programs with races, each run in a fork of its own.

    Args:
        world: A deterministic machine's.
        folder: Scratch.
    """

    def __init__(self, world: WarmWorld, folder: Path) -> None:
        self._world = world
        compiled = folder / "race"
        subprocess.run(["g++", "-O1", "-static", "-s", "-pthread", "-o", compiled, RACES / "race.cpp"], check=True)
        self._binary = compiled.read_bytes()

    def run(self, program: str, seed: int, schedule: int | None = None) -> Ran:
        """Run one of them."""
        with self._world.fork(seed, schedule=schedule) as machine:
            if program == "race.cpp":
                result = machine.exec(RUN, stdin=self._binary, check=True)
            else:
                result = machine.exec(["python3", "-"], stdin=(RACES / program).read_bytes(), check=True)
            return Ran(result.stdout.strip(), machine.run_digest)


def main() -> None:
    """Print the tables, and with ``--json`` write the figures."""
    options = common.arguments(
        __doc__ or "", world="cartpole", forks=50, seeds=5, schedules=50, n=9, workers=os.cpu_count() or 1, busy=0,
        json="",
    )  # fmt: skip
    world = warm(common.template(options.world), Options(deterministic=True), common.progress)
    print(f"world {options.world}, {world.engine_line}; {common.machine()}")
    print(f"load {os.getloadavg()[0]:.1f} at the start, and {options.busy} busy loops beside the first two tables\n")
    figures: dict[str, object] = {"machine": common.machine()}
    with tempfile.TemporaryDirectory() as folder:
        races = Races(world, Path(folder))
        with loops(options.busy):
            figures["identity"] = rows = identity(races, options.forks, options.seeds, options.workers)
            common.table(["program", "seed", "forks", "equal outputs", "equal digests", "seconds per fork"], rows)
            figures["interleavings"] = rows = interleavings(races, options.schedules, options.workers)
            common.table(["program", "schedules", "interleavings", "with lost updates", "different digests"], rows)
        figures["search"] = rows = search(world, races, options.schedules, options.workers)
        common.table(["schedules per minute", *(f"{at_once} at a time" for at_once in ways(options.workers))], rows)
    figures["speed"] = header, rows = speed(world, options.world, options.n)
    common.table(header, rows)
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")


@contextlib.contextmanager
def loops(count: int) -> Iterator[None]:
    """Keep so many processors busy."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def identity(races: Races, forks: int, seeds: int, workers: int) -> list[list[str]]:
    """Return how many forks of a seed were the same, by program and seed."""
    rows = []
    with ThreadPoolExecutor(workers) as pool:
        for program in PROGRAMS:
            for seed in range(1, seeds + 1):
                started = time.monotonic()
                found = list(pool.map(lambda _: races.run(program, seed), range(forks)))  # noqa: B023
                took = time.monotonic() - started
                outputs = collections.Counter(each.output for each in found)
                digests = collections.Counter(each.digest for each in found)
                rows.append([program, str(seed), str(len(found)), str(outputs.most_common(1)[0][1]),
                             str(digests.most_common(1)[0][1]), f"{took / len(found):.2f}"])  # fmt: skip
                common.progress(" ".join(rows[-1]))
                if len(digests) > 1:
                    common.progress(f"{outputs} {digests}")
    return rows


def interleavings(races: Races, schedules: int, workers: int) -> list[list[str]]:
    """Return how many schedules of a seed were different, by program."""
    rows = []
    with ThreadPoolExecutor(workers) as pool:
        for program in PROGRAMS:
            found = list(pool.map(lambda schedule: races.run(program, SEED, schedule), range(schedules)))  # noqa: B023
            words = [each.output.split() for each in found]
            lost = sum(word[0] != "0" for word in words)
            orders, digests = {word[1] for word in words}, {each.digest for each in found}
            rows.append([program, *map(str, (len(found), len(orders), lost, len(digests)))])
            common.progress(" ".join(rows[-1]))
    return rows


def ways(workers: int) -> list[int]:
    """Return how many forks are run at a time."""
    return sorted({1, workers})


def search(world: WarmWorld, races: Races, schedules: int, workers: int) -> list[list[str]]:
    """Return how many schedules a minute are run, by what is run and by how many at a time."""
    controller = (common.CONTROLLERS / "balance.py").read_bytes()

    def episode(schedule: int) -> object:
        with world.fork(SEED, schedule=schedule) as machine:
            return machine.run_episode(controller, filename="balance.py", max_steps=STEPS)

    jobs: dict[str, Callable[[int], object]] = {
        "four threads in Python (threads.py)": lambda schedule: races.run("threads.py", SEED, schedule),
        f"an episode of {STEPS} steps": episode,
    }
    rows = []
    for label, job in jobs.items():
        row = [label]
        for at_once in ways(workers):
            started = time.monotonic()
            with ThreadPoolExecutor(at_once) as pool:
                collections.deque(pool.map(job, range(schedules)), maxlen=0)
            row.append(f"{schedules * 60 / (time.monotonic() - started):.0f}")
        rows.append(row)
        common.progress(" ".join(row))
    return rows


class Way:
    """A way to run something: in forks of a world, or in plain processes of this machine.

    Args:
        world: What is forked; None for plain processes.
        plain: Plain processes.
    """

    def __init__(self, world: WarmWorld | None, plain: Plain) -> None:
        self._world = world
        self._plain = plain

    def command(self, words: Sequence[str]) -> float:
        """Return how long a command takes, from the start of the fork to its answer, in seconds."""
        started = time.monotonic()
        if self._world is None:
            subprocess.run(words, check=True)
        else:
            with self._world.fork(SEED) as machine:
                machine.exec(words, check=True)
        return time.monotonic() - started

    def episode(self) -> float:
        """Return how long an episode takes, from the start of the fork to its result, in seconds."""
        started = time.monotonic()
        if self._world is None:
            self._plain.episode(SEED)
        else:
            controller = (common.CONTROLLERS / "balance.py").read_bytes()
            with self._world.fork(SEED) as machine:
                machine.run_episode(controller, filename="balance.py", max_steps=STEPS)
        return time.monotonic() - started


def speed(world: WarmWorld, name: str, repeats: int) -> tuple[list[str], list[list[str]]]:
    """Return the table of how long things take, each way in turn so that the machine's load is the same for all."""
    template = common.template(name)
    plain = Plain(template, common.CONTROLLERS / "balance.py", STEPS)
    found = {"native": Way(None, plain)}
    for label, options in (("gVisor", Options(engine="gvisor")), ("TCG", Options(engine="qemu", accel="tcg"))):
        try:
            found[label] = Way(warm(template, options, common.progress), plain)
        except MicrosimError as error:
            print(f"not compared with {label}: {error.what}")
    found["deterministic"] = Way(world, plain)

    def loop(way: Way) -> float:
        few, many = (way.command(["python3", "-c", SPIN.format(rounds)]) for rounds in (FEW, MANY))
        return many - few

    measured: dict[str, Callable[[Way], float]] = {
        f"a Python loop of {MANY - FEW} rounds": loop,
        f"a rollout: fork, episode of {STEPS} steps": Way.episode,
        "fork to first answer": lambda way: way.command(["true"]),
    }
    rows = []
    for label, measure in measured.items():
        times: dict[str, list[float]] = {each: [] for each in found}
        for _ in range(repeats):
            for each, way in found.items():
                times[each].append(measure(way))
        medians = {each: statistics.median(values) for each, values in times.items()}
        ratio = medians["deterministic"] / medians["TCG"] if "TCG" in medians else float("nan")
        rows.append([label, *(f"{value:.3f}" for value in medians.values()), f"{ratio:.2f}"])
        common.progress(" ".join(rows[-1]))
    return ["seconds (median)", *found, "deterministic to TCG"], rows


if __name__ == "__main__":
    main()
