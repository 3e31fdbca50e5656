"""End guests that use more of the host's memory than they were promised, where the engine sets them no limit.

One thread per process looks at all of its guests. What gVisor gives to a guest is a file in memory that its kernel's
process holds, so that the blocks of that file are the guest's memory, exactly.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

LOOK_S = 0.05
SPARE_MIB = 64  # what the guest's own kernel keeps in the same file
MEMORY_FILE = "runsc-memory"


@dataclass
class _Watched:
    """One guest: the process that starts its kernel's, its limit, whom to tell, and the file once it is there."""

    pid: int
    limit_mib: int
    too_large: Callable[[int], None]
    file: str = ""


_watched: dict[int, _Watched] = {}
_changed = threading.Condition()
_thread: threading.Thread | None = None
_thread_of = 0


def watch(pid: int, limit_mib: int, too_large: Callable[[int], None]) -> None:
    """Look at a guest's memory until it ends.

    Args:
        pid: The process whose descendant holds the memory.
        limit_mib: What the guest may use.
        too_large: Called, once, with what it uses, MiB; it has to end the guest.
    """
    global _thread, _thread_of
    with _changed:
        _watched[pid] = _Watched(pid, limit_mib + SPARE_MIB, too_large)
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
            try:
                used_mib = _used_mib(guest)
            except (OSError, psutil.Error):  # it has ended
                _watched.pop(guest.pid, None)
                continue
            if used_mib > guest.limit_mib:
                _watched.pop(guest.pid, None)
                guest.too_large(used_mib)
        threading.Event().wait(LOOK_S)


def _used_mib(guest: _Watched) -> int:
    if not guest.file:
        guest.file = next(_memory_files(guest.pid), "")
        return 0
    return os.stat(guest.file).st_blocks * 512 >> 20


def _memory_files(pid: int) -> Iterator[str]:
    """Yield the memory file of a guest's kernel, as a path of /proc, once it is open."""
    for child in psutil.Process(pid).children(recursive=True):
        folder = Path(f"/proc/{child.pid}/fd")
        for entry in folder.iterdir():
            if MEMORY_FILE in os.readlink(entry):
                yield str(entry)
