#!/usr/bin/env python3
"""Write the table of docs/gates.md: which gate catches which defect, with which probability, at how many seeds.

Usage: python scripts/power_table.py [--check]

Each cell is the share of simulated groups that fail, in percent. Everything is seeded: the table is the same each time.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_microsim.gates.judge import judge
from pytest_microsim.gates.verdicts import Group, Outcome, Sample, Verdict

TARGET = Path(__file__).resolve().parents[1] / "docs" / "gates.md"
BEGIN, END = "<!-- power table: begin -->\n", "<!-- power table: end -->\n"
SIZES = (8, 16, 32, 64, 128)
REPLICATES = 100
WORKERS = 4

# What a number of a rollout depends on: equal keys, equal numbers.
Key = tuple[object, ...]


@dataclass(frozen=True)
class Place:
    """Where a rollout runs: its seed, its worker, and how many seeds there are."""

    seed: int
    worker: int
    seeds: int


@dataclass(frozen=True)
class Defect:
    """Something wrong with a world, as the gates may see it.

    Attributes:
        name: What is wrong, for the reader.
        probe: What the declared generator's state depends on, right after the fork.
        episode: What the trajectory depends on.
        scalars: What the recorded numbers depend on.
        copies: With how many seeds there are copies at all.
    """

    name: str
    probe: Callable[[Place], Key]
    episode: Callable[[Place], Key]
    scalars: Callable[[Place], Key]
    copies: int = 2


def _seed(place: Place) -> Key:
    return (place.seed,)


def _nothing(place: Place) -> Key:
    return ()


def _modulo(divisor: int) -> Callable[[Place], Key]:
    return lambda place: (place.seed % divisor,)


def _uses_only(divisor: int) -> Defect:
    """Describe a world that is given the whole seed and uses a part: its generators were reseeded all the same."""
    part = _modulo(divisor)
    return Defect(f"the world uses only seed % {divisor}", _seed, part, part, copies=divisor + 1)


def _worker(place: Place) -> Key:
    return ("worker", place.worker)


def _first_worker(place: Place) -> Key:
    return ("worker", 0) if place.worker == 0 else (place.seed,)


def _pair(place: Place) -> Key:
    return (0,) if place.seed == place.seeds // 3 else (place.seed,)


DEFECTS = (
    Defect("nothing: the seeds are independent", _seed, _seed, _seed),
    Defect("clones: no fork was reseeded", _nothing, _nothing, _nothing),
    Defect("the seed is accepted, and not used", _seed, _nothing, _nothing),
    _uses_only(8),
    _uses_only(16),
    _uses_only(32),
    Defect("forks are given only seed % 16", _modulo(16), _modulo(16), _modulo(16), copies=17),
    Defect(f"each of {WORKERS} workers forks clones", _worker, _worker, _worker),
    Defect(f"one of {WORKERS} workers forks clones", _first_worker, _first_worker, _first_worker),
    Defect("two of the forks are copies", _pair, _pair, _pair),
    Defect("the same start each time, from a declared generator", _nothing, _seed, _seed),
    Defect("the same start each time, from an undeclared one", _seed, _seed, _seed),
)
GATES = {
    "T1": ("T1 probe", ""),
    "T2": ("T2 fingerprint", ""),
    "T3, a measurement": ("T3 scalar", "distance"),
    "T3, yes or no": ("T3 scalar", "success"),
}


def group(defect: Defect, seeds: int, replicate: int) -> Group:
    """Simulate one group: its workers are drawn anew, so that they have nothing to do with the seeds' order."""
    places = [number % WORKERS for number in range(seeds)]
    random.Random(f"{seeds} {replicate}").shuffle(places)

    def drawn(what: str, key: Key) -> random.Random:
        return random.Random(f"{defect.name} {seeds} {replicate} {what} {key}")

    samples = []
    for seed, worker in enumerate(places):
        place = Place(seed, worker, seeds)
        numbers = drawn("scalars", defect.scalars(place))
        samples.append(
            Sample(
                seed,
                fingerprint=f"{drawn('episode', defect.episode(place)).getrandbits(128):032x}",
                episode_seeds=(seed,),
                probes={"wind": f"{drawn('probe', defect.probe(place)).getrandbits(64):016x}"},
                scalars={"distance": numbers.gauss(0.0, 1.0), "success": numbers.random() < 0.5},
                worker=f"gw{worker}",
            )
        )
    return Group("test", seeds, tuple(samples))


def cells(defect: Defect, seeds: int) -> dict[str, str]:
    """Return what each gate makes of a defect at so many seeds."""
    if seeds < defect.copies:
        return dict.fromkeys(GATES, "none")
    verdicts = [judge(group(defect, seeds, replicate)) for replicate in range(REPLICATES)]
    return {name: _cell([_of(found, *gate) for found in verdicts]) for name, gate in GATES.items()}


def table(defects: Sequence[Defect] = DEFECTS, sizes: Sequence[int] = SIZES) -> str:
    """Return the table, or the part of it for some defects and sizes, in Markdown."""
    heads = " | ".join(f"N = {size}" if size == sizes[0] else str(size) for size in sizes)
    lines = [f"| what is wrong | gate | {heads} |", "| --- | --- |" + " --- |" * len(sizes)]
    for defect in defects:
        lines += _rows(defect, sizes)
    return "\n".join(lines) + "\n"


def _rows(defect: Defect, sizes: Sequence[int]) -> Iterator[str]:
    by_size = [cells(defect, size) for size in sizes]
    for number, gate in enumerate(GATES):
        yield f"| {'' if number else defect.name} | {gate} | " + " | ".join(found[gate] for found in by_size) + " |"


def _of(verdicts: Sequence[Verdict], gate: str, metric: str) -> Outcome:
    (verdict,) = (found for found in verdicts if found.gate == gate and (found.metric == metric or not metric))
    return verdict.outcome


def _cell(outcomes: Sequence[Outcome]) -> str:
    if Outcome.WARNED in outcomes:
        return "warns"
    return str(round(100 * outcomes.count(Outcome.FAILED) / len(outcomes)))


def main() -> int:
    """Write the table, or with ``--check`` say whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page has another table")
    check = parser.parse_args().check
    page = TARGET.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    new = before + BEGIN + table() + END + after
    if check:
        return int(new != page)
    TARGET.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
