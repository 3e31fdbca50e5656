"""Control groups of the host's, one for each guest: what its engine may use of memory, processors and processes.

Both versions are used, whichever has the controller; each guest's group is made inside our own, or beside it where
version 2 does not let a group with processes be divided. Nothing of it has to be configured: whoever may not make
groups (an ordinary user without delegation, a container with read-only ones) has none, and is told so.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from microsim_vm import owner, runtime
from microsim_vm.errors import EngineError

CONTROLLERS = ("memory", "cpu", "pids")
PREFIX = "microsim-"
RECORDS = ".groups"
PERIOD_US = 100_000
REMOVE_S = 2.0
_numbers = itertools.count(1)


class Limits(NamedTuple):
    """What an engine's processes may use together.

    Attributes:
        memory_mib: Memory that cannot be given back.
        cpus: Processors; 0 for all.
        processes: Processes and threads.
    """

    memory_mib: int
    cpus: int
    processes: int


NO_LIMITS = Limits(0, 0, 0)


class Place(NamedTuple):
    """Where groups of one controller are made.

    Attributes:
        version: Of control groups, 1 or 2.
        parent: The folder.
    """

    version: int
    parent: Path


class _Record(msgspec.Struct, frozen=True):
    """Where a process makes groups."""

    owner: owner.Process
    parents: list[str]


@dataclass
class Group:
    """One guest's group, in each hierarchy that has a controller.

    Attributes:
        folders: Its folders.
        limits: What it may use.
    """

    folders: list[Path] = field(default_factory=list)
    limits: Limits = NO_LIMITS

    def join(self, pid: int) -> None:
        """Put a process into it, with all its threads.

        The kernel waits for all processors in turn for that: tens of milliseconds on a busy machine.

        Raises:
            EngineError: The kernel refuses.
        """
        try:
            for folder in self.folders:
                _write(folder / "cgroup.procs", str(pid))
        except ProcessLookupError:  # it has ended, and whoever waits for it finds out
            pass
        except OSError as error:
            raise EngineError("a guest could not be put into its control group", cause=str(error)) from error

    def why_killed(self) -> str:
        """Return which limit has ended a process of the group, or "" where none has."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    if _field((folder / name).read_text(), "oom_kill"):
                        limit = f"{self.limits.memory_mib} MiB of the host's memory are the most"
                        return f"its engine used all that it may: {limit}"
            with contextlib.suppress(OSError):
                if _field((folder / "pids.events").read_text(), "max"):
                    return f"its engine had all the processes that it may have: {self.limits.processes}"
        return ""

    def remove(self) -> None:
        """Remove it, once its last process is gone; one that does not go is left to the reaper."""
        deadline = time.monotonic() + REMOVE_S
        for folder in self.folders:
            while not _removed(folder) and time.monotonic() < deadline:
                time.sleep(0.002)
        self.folders = []


def make(limits: Limits) -> Group:
    """Make a group; it has no folders where this process may make none.

    Raises:
        EngineError: It may, and the kernel refuses this one.
    """
    group = Group(limits=limits)
    found = places()
    me = owner.Process.current()
    name = f"{_prefix(me)}{next(_numbers)}"
    try:
        for controller, place in found.items():
            if controller == "cpu" and not limits.cpus:
                continue
            folder = place.parent / name
            if folder not in group.folders:
                folder.mkdir(exist_ok=True)
                group.folders.append(folder)
            for file, value in _settings(controller, place.version, limits):
                with contextlib.suppress(FileNotFoundError):  # a kernel without swap accounting
                    _write(folder / file, value)
    except OSError as error:
        group.remove()
        raise EngineError("the control group of a guest could not be made", cause=str(error)) from error
    return group


def places() -> Mapping[str, Place]:
    """Return where this process may make groups, by controller."""
    return _places(os.getpid())


def describe() -> str:
    """Return which controllers there are, one phrase."""
    found = places()
    lacking = [name for name in CONTROLLERS if name not in found]
    versions = sorted({place.version for place in found.values()})
    text = f"control groups of version {' and '.join(map(str, versions))} limit {', '.join(found)}" if found else ""
    missing = f"no control group can be made for {', '.join(lacking)}" if lacking else ""
    return "; ".join(part for part in (text, missing) if part)


@functools.cache
def _places(pid: int) -> Mapping[str, Place]:
    found = {}
    groups, mounts = Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()
    own = candidates(groups, mounts)
    for controller in CONTROLLERS:
        for place in own.get(controller, []) + own.get("", []):
            if _usable(controller, place):
                found[controller] = place
                break
    if found:
        me = owner.Process.current()
        file = runtime.folder() / f"{_prefix(me)}{RECORDS}"
        record = _Record(me, sorted({str(each.parent) for each in found.values()}))
        file.write_bytes(msgspec.json.encode(record))
        atexit.register(_forget, pid, file, record)
    return found


def _forget(pid: int, file: Path, record: _Record) -> None:
    if os.getpid() == pid and not _left_by(record):  # else its guests die with it, and the reaper removes theirs
        file.unlink(missing_ok=True)


def _left_by(record: _Record) -> list[Path]:
    return [group for parent in record.parents for group in Path(parent).glob(f"{_prefix(record.owner)}*")]


def candidates(groups: str, mounts: str) -> dict[str, list[Place]]:
    """Return where groups might be made, by controller of version 1, and under "" those of version 2.

    Args:
        groups: What /proc/self/cgroup says.
        mounts: What /proc/self/mountinfo says.
    """
    own = {}
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    found: dict[str, list[Place]] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        _, _, _, root, point, *_ = before.split(" ")
        if kind == "cgroup2" and "" in own:
            here = _below(own[""], root, point)
            # Ours; beside ours; and the top, which root may always divide.
            found[""] = [Place(2, each) for each in dict.fromkeys((here, here.parent, Path(point)))
                         if each.is_relative_to(point)]  # fmt: skip
        elif kind == "cgroup":
            for controller in set(options.replace(" ", ",").split(",")) & set(own) & set(CONTROLLERS):
                found[controller] = [Place(1, _below(own[controller], root, point))]
    return found


def _below(path: str, root: str, point: str) -> Path:
    """Return where a group is found; a container's own mount may show only a part of them."""
    inside = path[len(root) :] if root != "/" and path.startswith(root) else path
    return Path(point + "/" + inside.strip("/"))


def _usable(controller: str, place: Place) -> bool:
    """Tell whether a group with this controller can be made and used, by making one."""
    probe = place.parent / f"{_prefix(owner.Process.current())}probe"
    try:
        if place.version == 2 and controller not in (place.parent / "cgroup.subtree_control").read_text().split():
            _write(place.parent / "cgroup.subtree_control", f"+{controller}")
        probe.mkdir(exist_ok=True)
        for file, value in _settings(controller, place.version, Limits(64, 1, 64)):
            with contextlib.suppress(FileNotFoundError):
                _write(probe / file, value)
        needed = "memory.limit_in_bytes" if (controller, place.version) == ("memory", 1) else None
        return needed is None or (probe / needed).exists()
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            probe.rmdir()


def _settings(controller: str, version: int, limits: Limits) -> Iterator[tuple[str, str]]:
    """Yield (file, value) of a group's limits, in the order in which they are to be written."""
    size = str(limits.memory_mib << 20)
    if controller == "memory" and version == 1:
        yield "memory.limit_in_bytes", size
        yield "memory.memsw.limit_in_bytes", size  # with swap, where that is counted
    elif controller == "memory":
        yield "memory.max", size
        yield "memory.swap.max", "0"
        yield "memory.oom.group", "1"
    elif controller == "pids":
        yield "pids.max", str(limits.processes)
    elif limits.cpus and version == 1:
        yield "cpu.cfs_period_us", str(PERIOD_US)
        yield "cpu.cfs_quota_us", str(limits.cpus * PERIOD_US)
    elif limits.cpus:
        yield "cpu.max", f"{limits.cpus * PERIOD_US} {PERIOD_US}"


def reap(folder: Path) -> list[str]:
    """Remove the groups of processes that are gone; call under the lock of the runtime folder, which is given.

    Returns:
        One line per group removed.
    """
    removed = []
    for file in folder.glob(f"{PREFIX}*{RECORDS}"):
        try:
            record = msgspec.json.decode(file.read_bytes(), type=_Record)
        except (msgspec.DecodeError, OSError):  # half-written: its process has made no group yet
            continue
        if record.owner.alive():
            continue
        left = _left_by(record)
        gone = [group for group in left if _removed(group)]
        removed += [f"control group {group}" for group in gone]
        if len(gone) == len(left):  # else a process of it is still ending
            file.unlink(missing_ok=True)
    return removed


def _prefix(process: owner.Process) -> str:
    return f"{PREFIX}{process.pid}-{process.started}-"


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError as error:
        return error.errno == errno.ENOENT
    return True


def _write(file: Path, value: str) -> None:
    with open(file, "w") as setting:
        setting.write(value)


def _field(text: str, name: str) -> int:
    """Return a number of a file of lines "name number"; 0 where there is none."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.split()[:1] == [name]), 0)
