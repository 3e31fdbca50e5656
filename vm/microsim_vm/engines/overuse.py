"""End guests that use more of the host's memory than they were promised, or that have lost a process of theirs.

One thread per process looks at all of its guests. What gVisor gives to a guest is a file in memory that its kernel's
process holds, so that the blocks of that file are the guest's memory, exactly. Nobody limits it otherwise, and runsc
does not notice the end of the process that serves files.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from microsim_vm.owner import Process

LOOK_S = 0.05
CLOSER_LOOK = 20  # every so many looks, for what costs more than one system call
PATIENCE = 2  # closer looks
STARTING = 40  # looks during which a guest is started, and opens what there is to be looked at
SPARE_MIB = 64  # what the guest's own kernel keeps in the same file
KERNEL_MIB = 384  # what it may have beside: names of files, buffers, and the garbage of its own
KERNEL, GOFER = "runsc-sandbox", "runsc-gofer"  # how runsc calls what it starts
MEMORY_FILE = "runsc-memory"


@dataclass
class _Watched:
    """One guest: its first process, its limit, whom to tell, and what was found of it."""

    head: Process
    limit_mib: int
    end: Callable[[str], None]
    looks: int = 0
    kernel: Process | None = None
    gofer: Process | None = None
    looks_without_gofer: int = 0
    files: list[str] = field(default_factory=list)


_watched: dict[Process, _Watched] = {}
_changed = threading.Condition()
_thread: threading.Thread | None = None
_thread_of = 0


def watch(pid: int, limit_mib: int, end: Callable[[str], None]) -> None:
    """Look at a guest until it ends.

    Args:
        pid: The process that has started the guest's kernel, and its file server.
        limit_mib: What the guest may use.
        end: Called, at most once, with the reason; it has to end the guest, and not to wait for that.
    """
    global _thread, _thread_of
    try:
        head = Process.of(pid)
    except ProcessLookupError:  # it has ended already
        return
    with _changed:
        _watched[head] = _Watched(head, limit_mib, end)
        if _thread is None or _thread_of != os.getpid():  # a forked child has our objects and none of our threads
            _thread = threading.Thread(target=_run, name="microsim-memory", daemon=True)
            _thread_of = os.getpid()
            _thread.start()
        _changed.notify()


def _run() -> None:
    while True:
        with _changed:
            _changed.wait_for(lambda: _watched)
            guests = list(_watched.values())
        for guest in guests:
            closer = guest.looks < STARTING or guest.looks % CLOSER_LOOK == 0
            guest.looks += 1
            if closer and not guest.head.alive():
                _watched.pop(guest.head, None)
            elif reason := (closer and _why_broken(guest)) or _why_too_large(guest):
                _watched.pop(guest.head, None)
                guest.end(reason)
        threading.Event().wait(LOOK_S)


def _why_broken(guest: _Watched) -> str:
    if guest.kernel is None or guest.gofer is None:
        _find_processes(guest)
    if guest.kernel is not None:
        guest.files = list(_memory_files(guest.kernel.pid))
        if (own := _own_mib(guest.kernel.pid)) > KERNEL_MIB:
            return f"the guest used {own} MiB of the host's memory in its kernel, and {KERNEL_MIB} MiB are the most"
    if guest.gofer is None or guest.gofer.alive() or guest.kernel is None or not guest.kernel.alive():
        return ""
    guest.looks_without_gofer += 1  # one that ends as it should loses both, a moment apart
    return "the process that serves its files has ended" if guest.looks_without_gofer > PATIENCE else ""


def _why_too_large(guest: _Watched) -> str:
    used = 0
    for file in guest.files:  # one that was restored has the empty file of the kernel that restored it, too
        with contextlib.suppress(OSError):  # its kernel ends
            used += os.stat(file).st_blocks * 512 >> 20
    if used <= guest.limit_mib + SPARE_MIB:
        return ""
    return f"the guest used {used} MiB of the host's memory, {guest.limit_mib} MiB are its own"


def _own_mib(pid: int) -> int:
    """Return what a process has for itself, MiB: the guest's memory is a file's, and no part of it."""
    with contextlib.suppress(OSError):  # it has ended
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) >> 10
    return 0


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
    with contextlib.suppress(OSError):  # the process has ended
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # it has been closed meanwhile
                if MEMORY_FILE in os.readlink(entry) and (inode := entry.stat().st_ino) not in seen:
                    seen.add(inode)
                    yield str(entry)
