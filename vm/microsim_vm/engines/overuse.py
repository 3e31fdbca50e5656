"""End guests that use more of the host than they were promised, or that have lost a process of theirs.

One thread per process looks at all of its guests. What gVisor gives to a guest is a file in memory that its kernel's
process holds, so that the blocks of that file are the guest's memory, exactly. Nobody limits it otherwise, nor what
that kernel and the process that serves files take for themselves, nor the host's processes that the guest's run in;
and runsc does not notice the end of the process that serves files. A guest that cannot be looked at is ended too.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import psutil

from microsim_vm.owner import Process

LOOK_S = 0.05
CLOSER_LOOK = 20  # every so many looks, for what costs more than some system calls
COUNT = 40  # every so many looks, for what costs as much as there are processes on the host
PATIENCE = 2  # closer looks
STARTING = 40  # looks during which a guest is started, and opens what there is to be looked at
BLIND = 300  # looks in a row, 15 s or more, during which a guest may have something that cannot be looked at
SPARE_MIB = 256  # what a guest's kernel and its file server may have beside the guest's memory
SPARE_PROCESSES = 64  # the kernel's own, and those that it keeps for later
PROCESSES_PER_MIB = 2  # twice what a command in the guest may have: each process that becomes another one is two
KERNEL, GOFER = "runsc-sandbox", "runsc-gofer"  # how runsc calls what it starts
MEMORY_FILE = "runsc-memory"
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class _Watched:
    """One guest: its first process, its limit, whom to tell, and what was found of it."""

    head: Process
    limit_mib: int
    end: Callable[[str], bool]
    looks: int = 0
    kernel: Process | None = None
    gofer: Process | None = None
    looks_without_gofer: int = 0
    files: list[str] = field(default_factory=list)
    unseen: str = "its processes have not been looked for"
    looks_blind: int = 0


_watched: dict[Process, _Watched] = {}
_changed = threading.Condition()
_thread: threading.Thread | None = None
_thread_of = 0


def watch(pid: int, limit_mib: int, end: Callable[[str], bool]) -> None:
    """Look at a guest until it ends.

    Args:
        pid: The process that has started the guest's kernel, and its file server.
        limit_mib: What the guest may use.
        end: Called with the reason; it has to end the guest, and not to wait for that. False says that it has not
            done so now: the guest stays watched, and it is called again.
    """
    global _thread, _thread_of
    try:
        head = Process.of(pid)
    except ProcessLookupError:  # it has ended already
        return
    with _changed:
        if _thread_of != os.getpid():  # a forked child has our objects, none of our threads, and guests of its own
            _watched.clear()
            _thread, _thread_of = None, os.getpid()
        _watched[head] = _Watched(head, limit_mib, end)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="microsim-memory", daemon=True)
            _thread.start()
        _changed.notify()


def _run() -> None:
    rounds = 0
    while True:
        with _changed:
            _changed.wait_for(lambda: _watched)
            guests = list(_watched.values())
        host = _Host() if rounds % COUNT == 0 else None
        for guest in guests:
            if _look(guest, host):
                _watched.pop(guest.head, None)
        rounds += 1
        threading.Event().wait(LOOK_S)


class _Host:
    """The host's processes at one moment, read once for all guests."""

    @cached_property
    def _names(self) -> list[str]:
        return [name for name in os.listdir("/proc") if name.isdigit()]

    @cached_property
    def _children(self) -> Mapping[int, list[int]]:
        found = defaultdict(list)
        for name in self._names:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                found[int(fields[1])].append(int(name))
        return found

    def processes_below(self, pid: int, most: int) -> int:
        """Return how many processes a process has started, and those in turn; 0 where there cannot be too many."""
        if len(self._names) <= most:  # most often there are no more on the whole host
            return 0
        below = [pid]
        for each in below:
            below += self._children.get(each, ())
        return len(below) - 1


def _look(guest: _Watched, host: _Host | None) -> bool:
    """Look at a guest, and end it where that has to be; tell whether there is nothing more to be looked at.

    Args:
        guest: The guest.
        host: The host's processes, where the guest's are to be counted.
    """
    closer = guest.looks < STARTING or guest.looks % CLOSER_LOOK == 0
    guest.looks += 1
    try:
        if closer and not guest.head.alive():
            return True
        reason = (closer and _why_broken(guest)) or _why_too_large(guest) or (host and _why_too_many(guest, host)) or ""
    except Exception as error:  # whatever it is, this guest and the others must not go unwatched for it
        guest.unseen, reason = f"{type(error).__name__}: {error}", ""
    guest.looks_blind = guest.looks_blind + 1 if guest.unseen else 0
    if guest.looks_blind > BLIND:
        reason = reason or f"the host could not watch what the guest used: {guest.unseen}"
    try:
        return bool(reason) and guest.end(reason)
    except Exception:  # it is tried again
        return False


def _why_broken(guest: _Watched) -> str:
    if guest.kernel is None or guest.gofer is None:
        _find_processes(guest)
    if guest.kernel is not None:
        guest.files = list(_memory_files(guest.kernel.pid))
    found = {"kernel": guest.kernel, "file server": guest.gofer, "memory": guest.files}
    guest.unseen = ", ".join(f"its {what} was not found" for what, there in found.items() if not there)
    if guest.gofer is None or guest.gofer.alive() or guest.kernel is None or not guest.kernel.alive():
        return ""
    guest.looks_without_gofer += 1  # one that ends as it should loses both, a moment apart
    return "the process that serves its files has ended" if guest.looks_without_gofer > PATIENCE else ""


def _why_too_large(guest: _Watched) -> str:
    used = sum(_own_bytes(process.pid) for process in (guest.kernel, guest.gofer) if process is not None)
    for file in guest.files:  # one that was restored has the empty file of the kernel that restored it, too
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # its kernel ends
            used += os.stat(file).st_blocks * 512
    if used >> 20 <= guest.limit_mib + SPARE_MIB:
        return ""
    return (
        f"the guest used {used >> 20} MiB of the host's memory, {guest.limit_mib} MiB are its own "
        f"and {SPARE_MIB} MiB gVisor's"
    )


def _why_too_many(guest: _Watched, host: _Host) -> str:
    most = PROCESSES_PER_MIB * guest.limit_mib + SPARE_PROCESSES
    if (there := host.processes_below(guest.head.pid, most)) <= most:
        return ""
    return f"the guest had {there} processes on the host, and {most} are the most"


def _own_bytes(pid: int) -> int:
    """Return what a process has in memory for itself: the guest's memory is a file's, and no part of it."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return 0
    return (int(resident) - int(shared)) * PAGE


def _find_processes(guest: _Watched) -> None:
    with contextlib.suppress(psutil.Error, ProcessLookupError):  # something has ended
        for child in psutil.Process(guest.head.pid).children():
            name = (child.cmdline() or [""])[0]
            if name == KERNEL:
                guest.kernel = Process.of(child.pid)
            elif name == GOFER:
                guest.gofer = Process.of(child.pid)


def _memory_files(pid: int) -> Iterator[str]:
    """Yield the files that a guest's memory is in, as paths of /proc."""
    seen = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has been closed meanwhile
                if MEMORY_FILE in os.readlink(entry) and (inode := entry.stat().st_ino) not in seen:
                    seen.add(inode)
                    yield str(entry)
