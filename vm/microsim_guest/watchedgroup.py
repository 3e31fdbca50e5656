"""A control group where the kernel only counts processes: its memory is looked at, and it is killed by hand."""

import contextlib
import os
import signal
import threading
import time
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from microsim_guest import kernel
from microsim_guest.controlgroup import KILL_S, OOM_KILL, PIDS_MAX, ROOT, ControlGroup

LOOK_S = 0.02  # between two looks at all groups
MANY = 16  # processes
CLOSER_LOOK_S = 0.001  # between two looks at the number of processes, where there are many
EMPTY_LOOKS = 20
SETTLE_S = 0.005  # how long a kernel may take to give back what was freed
AWAKE_S = 2.0  # how long a new group is looked at before anything is in it
KERNEL_LOOKS = 5  # every so many looks, for the kernel's own memory: counting it stops the kernel for a millisecond
GARBAGE_BYTES = 128 << 20  # what the kernel may have for itself and not need: large messages leave it 70 MiB, or so


class Use(NamedTuple):
    """What the whole guest uses, in bytes.

    Attributes:
        total: Of processes and files.
        shared: Of that, files in memory, open or mapped or neither.
        kernel: What the kernel has for itself, such as what lies in sockets and pipes, and its garbage.
    """

    total: int
    shared: int
    kernel: int


class WatchedGroup(ControlGroup):
    """A cgroup v1 of gVisor's, which counts processes and lists them, and does no more.

    Its memory is looked at fifty times a second. As a kernel that is out of memory would, it then kills the largest
    processes, until the rest fits. What two of them share counts for both, so the guest as a whole must have grown by
    as much too. Files in memory belong to no process: what the guest has more of them than before counts as well. So
    does, ten times a second, what the kernel has more for itself, where that is more than garbage can be. Neither
    counts for a group with others inside, which come one after the other. Where the guest as a whole has used up its
    memory, the largest of all groups with limits are killed.

    A fork that fails leaves no trace. So the kernel lets a group have a few processes more than its limit, until it is
    seen with one too many; from then on it keeps the limit.
    """

    def __init__(self, name: str, **limits: int) -> None:
        self._memory_max = 0
        self._before = Use(0, 0, 0)
        self._serves_many = False
        self._pids_max = 0
        self._pids_lock = threading.Lock()
        self._hits = {OOM_KILL: 0, PIDS_MAX: 0}
        super().__init__(name, **limits)

    def limit(self, **limits: int) -> None:
        """Set limits: ``pids_max`` (processes and threads), ``memory_max`` (bytes)."""
        self._memory_max = limits.pop("memory_max", self._memory_max)
        if self._memory_max:
            self._before = _use()
        if "pids_max" in limits:
            self._pids_max = limits["pids_max"]
            limits["pids_max"] += 1 + self._pids_max // 16
        super().limit(**limits)
        if limits or self._memory_max:  # else there is nothing to look for yet
            _watch.add(self)

    def delegate(self) -> None:
        """Let groups inside this one have limits of their own, as every group has; it outlives them."""
        self._serves_many = True

    def kill(self) -> None:
        """Kill every member with SIGKILL; none can start another one any more."""
        self.note_fullness()  # while it still has the limit that it ran with
        with self._pids_lock:
            self._pids_max = 0
            self._write("pids.max", "0")
        deadline = time.monotonic() + KILL_S
        empty = 0
        while time.monotonic() < deadline:
            members = [pid for _, pid in self._members()]
            # A process that is being forked is counted, and not listed yet; one that is ended may be counted for long.
            empty = 0 if members else empty + 1
            if empty > EMPTY_LOOKS or (empty > 1 and not self._counted()):
                return
            for pid in members:
                _kill(pid)
            time.sleep(0.002)

    def _counted(self) -> int:
        try:
            return int(self._read("pids.current"))
        except OSError:  # it has been removed
            return 0

    def events(self) -> Dict[str, int]:
        """Return how often it was killed over its memory, and whether it was seen with a process too many."""
        self.note_fullness()
        return dict(self._hits)

    def cpu_seconds(self) -> float:
        """Return the processor time of all that runs in it now: what has ended is not kept."""
        return sum(_cpu_seconds(pid) for _, pid in self._members())

    def populated(self) -> bool:
        """Tell whether anything in it still runs."""
        return bool(self._read("cgroup.procs").strip())

    def notices(self) -> List[int]:
        """Return none: there is no such thing here."""
        return []

    def remove(self) -> bool:
        """Remove it, and tell whether that could be done."""
        if not super().remove():
            return False
        _watch.drop(self)
        return True

    def look(self, use: Use) -> bool:
        """Note the limits that it is at, and kill its largest processes where it is too large; tell if it is in use.

        Processes of the groups inside this one count too; a kill is noted in the group that it was in.

        Args:
            use: What the whole guest uses.
        """
        self.note_fullness()
        members = list(self._members())
        before = self._before = self._before._replace(kernel=min(self._before.kernel, use.kernel))
        if not (members and self._memory_max):
            return bool(members)
        if self._bloats_kernel(use) or self._is_over(use):
            use = _settled()
        # What a command has left, or a controller, the next command finds; it may be there to remove it.
        shared = 0 if self._serves_many else max(0, use.shared - before.shared)
        if self._bloats_kernel(use):
            self.killed_for_memory()
            self.kill()
        # Processes are asked for their sizes, which takes long where they are many, only where it may matter.
        elif self._is_over(use):
            if len(members) > MANY:
                self._kill_newest(members, shared)
            else:
                sizes = [(_resident(pid), path, pid) for path, pid in members]
                _watch.kill_largest(sizes, sum(size for size, _, _ in sizes) + shared - self._memory_max)
        return True

    def _bloats_kernel(self, use: Use) -> bool:
        grown = use.kernel - self._before.kernel
        return grown > self._memory_max + GARBAGE_BYTES and not self._serves_many

    def _is_over(self, use: Use) -> bool:
        return use.total - self._before.total > self._memory_max

    def _kill_newest(self, members: List[Tuple[str, int]], total: int) -> None:
        """Kill all but the oldest that fit: a fork bomb grows while its processes are asked for their sizes.

        Args:
            members: (the group's path, process id) of each.
            total: Bytes that they have together, apart from their own.
        """
        for path, pid in sorted(members, key=lambda member: member[1]):
            total += _resident(pid) if total <= self._memory_max else 0
            if total > self._memory_max:
                _watch.kill(path, pid)

    def killed_for_memory(self) -> None:
        """Note that a process of it was killed because memory ran out."""
        self._hits[OOM_KILL] += 1

    def note_fullness(self) -> bool:
        """Note it where there are more processes than there may be, and let none be added to these.

        Returns:
            Whether there are half as many as there may be, so that there may be too many at any moment.
        """
        with contextlib.suppress(OSError), self._pids_lock:  # it has been removed
            if not self._pids_max:
                return False
            there = int(self._read("pids.current"))
            if there > self._pids_max and not self._hits[PIDS_MAX]:
                self._hits[PIDS_MAX] = 1
                self._write("pids.max", str(self._pids_max))
            return 2 * there >= self._pids_max and not self._hits[PIDS_MAX]
        return False

    def _members(self) -> Iterator[Tuple[str, int]]:
        """Yield (the group's path, process id) of all in this group and in those inside it."""
        for path, _, _ in os.walk(self.path):
            for pid in _processes(path):
                yield path, pid


class _Watch:
    """The thread that looks at a process's groups; it sleeps while nothing is in them."""

    def __init__(self) -> None:
        self._groups: Dict[str, WatchedGroup] = {}
        self._changed = threading.Condition()
        self._until = 0.0
        self._thread: Optional[threading.Thread] = None

    def add(self, group: WatchedGroup) -> None:
        """Look at a group from now on; it may be one of those that are looked at already."""
        with self._changed:
            self._groups[group.path] = group
            self._until = time.monotonic() + AWAKE_S
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
            self._changed.notify()

    def drop(self, group: WatchedGroup) -> None:
        """Look at it no more."""
        with self._changed:
            self._groups.pop(group.path, None)

    def kill_largest(self, sizes: List[Tuple[int, str, int]], excess: int) -> None:
        """Kill the largest processes, of those whose groups are among these, because memory ran out.

        Args:
            sizes: (bytes in memory, the group's path, process id) of all that may be the largest.
            excess: Bytes that they have too many; nothing is done where that is not more than 0.
        """
        for size, path, pid in sorted(sizes, reverse=True):
            if excess <= 0:
                return
            excess -= size
            self.kill(path, pid)

    def kill(self, path: str, pid: int) -> None:
        """Kill a process because memory ran out, where its group is one of these."""
        with self._changed:
            group = self._groups.get(path)
        if group is not None:
            group.killed_for_memory()
            _kill(pid)

    def _run(self) -> None:
        use, looks = _use(), 0
        while True:
            with self._changed:
                groups: List[WatchedGroup] = list(self._groups.values())
            looks = (looks + 1) % KERNEL_LOOKS
            use = _use(use.kernel if looks else None)
            in_use = [group.look(use) for group in groups]
            if any(in_use):
                if use.total > kernel.memory_bytes():
                    processes = list(_limited_processes())
                    # Another process has groups too, and looks as well: each kills its own.
                    self.kill_largest(processes, _settled().total - kernel.memory_bytes())
            else:
                with self._changed:
                    if time.monotonic() > self._until:
                        self._changed.wait()
                        looks = -1
            deadline = time.monotonic() + LOOK_S
            # A fork bomb's processes end as soon as a fork fails: it is full for a moment, and over.
            while sum(group.note_fullness() for group in groups) and time.monotonic() < deadline:
                time.sleep(CLOSER_LOOK_S)
            time.sleep(max(0.0, deadline - time.monotonic()))


_watch = _Watch()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _limited_processes() -> Iterator[Tuple[int, str, int]]:
    """Yield (bytes in memory, the group's path, process id) of all in groups that have limits."""
    for path, _, files in os.walk(ROOT):
        if "pids.max" not in files:  # the topmost group
            continue
        with contextlib.suppress(OSError), open(os.path.join(path, "pids.max")) as file:  # it may have been removed
            if file.read().strip() == "max":
                continue
        for pid in _processes(path):
            yield _resident(pid), path, pid


def _processes(path: str) -> List[int]:
    try:
        with open(os.path.join(path, "cgroup.procs")) as file:
            return [int(line) for line in file]
    except OSError:  # it has been removed
        return []


def _resident(pid: int) -> int:
    """Return the bytes that a process has in memory; 0 where it has ended."""
    try:
        with open("/proc/{}/statm".format(pid)) as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used; 0 where it has ended."""
    try:
        with open("/proc/{}/stat".format(pid)) as file:
            user, system = file.read().rpartition(")")[2].split()[11:13]
    except (OSError, ValueError):
        return 0.0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _settled() -> Use:
    """Measure once more, before what was listed is killed: it may have come when what was measured had gone."""
    time.sleep(SETTLE_S)
    return _use()


def _use(kernel_bytes: Optional[int] = None) -> Use:
    """Return what the whole guest uses.

    Args:
        kernel_bytes: The kernel's share, where it is not to be counted anew.
    """
    values = _kib("/proc/meminfo")
    if kernel_bytes is None:
        try:
            kernel_bytes = _kib("/proc/sentry-meminfo")["HeapAlloc"] << 10
        except (OSError, LookupError):  # a gVisor that does not tell
            kernel_bytes = 0
    return Use((values["MemTotal"] - values["MemFree"]) << 10, values["Shmem"] << 10, kernel_bytes)


def _kib(path: str) -> Dict[str, int]:
    """Return the quantities in KiB that a file of the kernel's lists."""
    with open(path) as file:
        return {line.split(":")[0]: int(line.split()[1]) for line in file if line.endswith(" kB\n")}
