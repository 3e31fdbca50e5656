"""Admission: a fork starts only when its memory can be promised, so that no rollout kills another one's host."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from microsim_vm import owner, runtime
from microsim_vm.errors import MemoryBudgetError

ENGINE_MIB = 96  # what the engine's own process uses beside the guest's memory
SHARE = 0.85  # of the machine's (or the control group's) memory; the rest is for everything else
WAIT_S = 600.0


def limit_mib() -> int:
    """Return how much memory this process may count on: the machine's or its control group's, MiB."""
    limits = [psutil.virtual_memory().total]
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            limits += _limits_above(Path("/sys/fs/cgroup"), group, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits_above(Path("/sys/fs/cgroup/memory"), group, "memory.limit_in_bytes")
    return min(limits) >> 20


def _limits_above(root: Path, group: str, name: str) -> list[int]:
    """Return the limits of a group and of all groups around it."""
    found = []
    path = root / group.lstrip("/")
    while True:
        with contextlib.suppress(OSError, ValueError):
            found.append(int((path / name).read_text()))
        if path == root or root not in path.parents:
            return found
        path = path.parent


def budget_mib() -> int:
    """Return what all guests of this user may use together, MiB."""
    return int(limit_mib() * SHARE)


@contextlib.contextmanager
def admitted(memory_mib: int, label: str, *, wait_s: float = WAIT_S) -> Iterator[tuple[Path, runtime.GuestRecord]]:
    """Wait until a guest of this size fits beside those that live, then hold its record.

    The promise is the worst case, all of the guest's memory: a fork shares most of it, but may dirty it all.

    Yields:
        The record and its file, for :func:`microsim_vm.runtime.started`.

    Raises:
        MemoryBudgetError: It can never fit, or nothing was freed within ``wait_s``.
    """
    need = memory_mib + ENGINE_MIB
    budget = budget_mib()
    if need > budget:
        raise MemoryBudgetError(
            f"out of memory budget: a guest of {memory_mib} MiB needs {need} MiB, the budget is {budget} MiB",
            hint="lower machine.memory_mib in the template, or give the machine or its control group more memory",
        )
    record = runtime.GuestRecord(owner.Process.current(), need, label)
    deadline = time.monotonic() + wait_s
    while True:
        with runtime.locked() as path:
            live = [other for _, other in runtime.records(path) if other.owner.alive()]
            promised = sum(other.memory_mib for other in live)
            if promised + need <= budget:
                file = runtime.new_record(path, record)
                break
        if time.monotonic() > deadline:
            raise MemoryBudgetError(
                f"out of memory budget: {len(live)} live guests hold {promised} of {budget} MiB, and {need} MiB "
                f"did not become free within {wait_s:g} s",
                hint="run fewer workers, close forks that are no longer needed, or lower machine.memory_mib",
            )
        time.sleep(0.05)
    try:
        yield file, record
    finally:
        file.unlink(missing_ok=True)
