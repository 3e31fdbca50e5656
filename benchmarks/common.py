"""What the benchmark scripts share: set-up, a cold boot to compare with, medians, and one table format."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from microsim_vm import forks, warmup
from microsim_vm.engines import select
from microsim_vm.engines.overuse import MEMORY_FILE
from microsim_vm.machine import Machine
from microsim_vm.options import Options
from microsim_vm.templates import Template, find_template, search_path
from microsim_vm.world import WarmWorld, warm

REPOSITORY = Path(__file__).resolve().parent.parent
CONTROLLERS = REPOSITORY / "example_tests/controllers"


def arguments(description: str, *, world: str = "warehouse", **defaults: object) -> argparse.Namespace:
    """Parse ``--world``, ``--engine`` and one option per default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--world", default=world, help="template to measure")
    parser.add_argument("--engine", choices=select.ENGINES, default="auto", help="what runs the guests")
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return parser.parse_args()


def progress(text: str) -> None:
    """Show progress on standard error, so that standard output is the result alone."""
    print(f"  {text}", file=sys.stderr, flush=True)


def template(name: str) -> Template:
    """Return a template of this repository."""
    return find_template(name, search_path([], REPOSITORY))


def world(name: str, engine: str) -> WarmWorld:
    """Return a warmed world."""
    warmed = warm(template(name), Options(engine=engine), progress)
    print(f"world {name}, {warmed.engine_line}")
    return warmed


@contextlib.contextmanager
def cold(world: WarmWorld, seed: int = 0) -> Iterator[Machine]:
    """Boot a guest and load its world: what each fork would pay if there were no snapshots.

    Yields:
        The machine, its generators reseeded like a fork's; how long it took is in its ``timings`` as "cold",
        "cold.boot" and "cold.load", milliseconds.
    """
    forker = world.forker
    started = time.monotonic()
    with (
        forker.cache.staging("benchmark") as folder,
        warmup.booted(forker.boot, forker.engine, folder, "benchmark", lambda _: None) as (vm, client, berth, boot_ms),
    ):
        load_ms = warmup.load_world(world.template, vm, client, lambda _: None)["load_ms"]
        machine = forker.machine(vm, client, seed, berth=berth)
        machine.adopt(os.urandom(forks.ENTROPY_BYTES), reseed=True)
        machine.timings = {"cold": (time.monotonic() - started) * 1000.0, "cold.boot": boot_ms, "cold.load": load_ms}
        yield machine


def times(count: int, action: Callable[[], object]) -> list[float]:
    """Return how long an action takes, each of ``count`` times, milliseconds."""
    found = []
    for _ in range(count):
        started = time.monotonic()
        action()
        found.append((time.monotonic() - started) * 1000.0)
    return found


def machine() -> str:
    """Return where this was measured, and when."""
    release = platform.freedesktop_os_release()["PRETTY_NAME"]
    model = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    memory_gib = psutil.virtual_memory().total / (1 << 30)
    return (
        f"measured {datetime.date.today()} on {os.cpu_count()} cores ({model.partition(': ')[2]}), "
        f"{memory_gib:.0f} GiB, {release}, Python {platform.python_version()}"
    )


class Memory(NamedTuple):
    """What a guest's processes hold of the host's memory, MiB.

    Attributes:
        private: What ends with them: their private pages, and those that only they share with each other.
        proportional: The same, and their part of each page that others use too (PSS).
        shared: Pages that others use too, all of them.
    """

    private: float
    proportional: float
    shared: float


def memory_mib(pid: int) -> Memory:
    """Return the memory of a process and of all that it has started."""
    process = psutil.Process(pid)
    private = proportional = shared = 0
    for part in [process, *process.children(recursive=True)]:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one of a guest's processes has ended
            own = False
            for line in Path(f"/proc/{part.pid}/smaps").read_text().splitlines():
                key, _, value = line.partition(":")
                if "-" in key.split(" ")[0]:  # the line that a mapping begins with
                    own = MEMORY_FILE in line  # gVisor's processes share their guest's memory with nobody else
                elif key == "Pss":
                    proportional += _kib(value)
                    private += own * _kib(value)
                elif key.startswith("Private_") and not own:
                    private += _kib(value)
                elif key.startswith("Shared_") and not own:
                    shared += _kib(value)
    return Memory(private / 1024, proportional / 1024, shared / 1024)


def _kib(value: str) -> int:
    return int(value.split()[0])


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def summary(values: Sequence[float]) -> list[str]:
    """Return p50, p99 and the number of values, formatted."""
    return [f"{statistics.median(values):.1f}", f"{percentile(values, 0.99):.1f}", str(len(values))]


def compared(measured: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """Return a row per measurement: label, p50, p99, n, and the ratio of its p50 to the first one's."""
    first = statistics.median(next(iter(measured.values())))
    return [[label, *summary(values), f"{statistics.median(values) / first:.2f}"] for label, values in measured.items()]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
    print(flush=True)
