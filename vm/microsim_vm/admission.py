"""Admission: a fork starts only when its memory can be promised, so that no rollout kills another one's host."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from microsim_vm import owner, runtime
from microsim_vm.errors import MemoryBudgetError

CGROUPS = Path("/sys/fs/cgroup")
SHARE = 0.85  # of the machine's (or the control group's) memory; the rest is for everything else
WAIT_S = 600.0

_turn = threading.Lock()
# What this process holds without a present need, and gives up where a guest has to wait.
idle: set[Callable[[], None]] = set()


class Pool(NamedTuple):
    """Memory that a set of guests shares: the machine's, or that of a control group.

    Attributes:
        budget_mib: What all guests in it may use together.
        group: The control group's folder; None for the machine.
    """

    budget_mib: int
    group: Path | None

    def holds(self, process: owner.Process) -> bool:
        """Tell whether the guests of a process live in this pool."""
        return self.group is None or self.group in _groups(process.pid)


def give_up_idle() -> None:
    """Give up what this process holds without a present need."""
    for give_up in list(idle):
        give_up()


def pools() -> list[Pool]:
    """Return the pools that a guest started by this process would live in, the machine first."""
    found = [Pool(_share(psutil.virtual_memory().total), None)]
    for group in _groups(os.getpid()):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # not a group's file, or "max"
                found.append(Pool(_share(int((group / name).read_text())), group))
    return found


def _share(limit_bytes: int) -> int:
    return int((limit_bytes >> 20) * SHARE)


def _lines_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:  # it ended
        return []


def _groups(pid: int) -> list[Path]:
    """Return the folders of a process's memory control group and of all groups around it."""
    found = []
    for line in _lines_of(pid):
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            root = CGROUPS
        elif "memory" in controllers.split(","):
            root = CGROUPS / "memory"
        else:
            continue
        group = root / name.lstrip("/")
        found += [group, *(above for above in group.parents if above.is_relative_to(root))]
    return found


def budget_mib() -> int:
    """Return what this process's guests may use at most, MiB, were there no others."""
    return min(pool.budget_mib for pool in pools())


def free_mib() -> int:
    """Return what is promised to nobody, MiB."""
    with runtime.locked() as path:
        live = [guest for _, guest in runtime.records(path) if guest.owner.alive()]
        return min(pool.budget_mib - _promised(pool, live) for pool in pools())


@contextlib.contextmanager
def admitted(
    memory_mib: int, label: str, *, overhead_mib: int, image: str = "", wait_s: float = WAIT_S
) -> Iterator[tuple[Path, runtime.GuestRecord]]:
    """Wait until a guest of this size fits beside those that live, then hold its record.

    The promise is the worst case, all of the guest's memory and what its engine needs for itself: a fork that shares
    most of it may dirty it all.

    Yields:
        The record and its file, for :func:`microsim_vm.runtime.started`.

    Raises:
        MemoryBudgetError: It can never fit, or nothing was freed within ``wait_s``.
    """
    need = memory_mib + overhead_mib
    shared = pools()
    smallest = min(shared, key=lambda pool: pool.budget_mib)
    if need > smallest.budget_mib:
        raise MemoryBudgetError(
            f"out of memory budget: a guest of {memory_mib} MiB needs {need} MiB, "
            f"the budget is {smallest.budget_mib} MiB",
            hint="lower machine.memory_mib in the template, or give the machine or its control group more memory",
        )
    record = runtime.GuestRecord(owner.Process.current(), need, label, image=image)
    file = _queue_up(shared, record, wait_s)
    try:
        yield file, record
    finally:
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def noted(label: str, *, image: str) -> Iterator[tuple[Path, runtime.GuestRecord]]:
    """Hold a record of a guest whose memory has been promised to somebody already, as a part of more."""
    record = runtime.GuestRecord(owner.Process.current(), 0, label, image=image)
    with runtime.locked() as path:
        file = runtime.new_record(path, record)
    try:
        yield file, record
    finally:
        file.unlink(missing_ok=True)


def _queue_up(shared: list[Pool], record: runtime.GuestRecord, wait_s: float) -> Path:
    """Wait for room and return the new record's file."""
    deadline = time.monotonic() + wait_s
    # Of this process's threads only the first in the queue looks: 500 that do would do nothing else.
    first = _turn.acquire(timeout=wait_s)
    try:
        while True:
            with runtime.locked() as path:
                live = [other for _, other in runtime.records(path) if other.owner.alive()]
                full = next((p for p in shared if _promised(p, live) + record.memory_mib > p.budget_mib), None)
                if full is None:
                    return runtime.new_record(path, record)
            if wait_s > 0:
                give_up_idle()
            if time.monotonic() > deadline:
                raise _timed_out(full, live, record.memory_mib, wait_s)
            time.sleep(0.05)
    finally:
        if first:
            _turn.release()


def _promised(pool: Pool, live: list[runtime.GuestRecord]) -> int:
    return sum(guest.memory_mib for guest in live if pool.holds(guest.owner))


def _timed_out(pool: Pool, live: list[runtime.GuestRecord], need: int, wait_s: float) -> MemoryBudgetError:
    guests = sorted(f"{guest.label} (process {guest.owner.pid})" for guest in live if pool.holds(guest.owner))
    more = [f"... and {len(guests) - 20} more"] if len(guests) > 20 else []
    return MemoryBudgetError(
        f"out of memory budget: {len(guests)} live guests hold {_promised(pool, live)} of {pool.budget_mib} MiB, "
        f"and {need} MiB did not become free within {wait_s:g} s",
        hint="run fewer workers, close forks that are no longer needed, or lower machine.memory_mib",
        details="\n".join([*guests[:20], *more]),
    )
