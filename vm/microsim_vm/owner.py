"""Who owns a directory: a process named so that its number cannot be mistaken for a later stranger's."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import msgspec


@functools.cache
def boot_id() -> str:
    """Return this boot's identity."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """Return when a live process started (clock ticks since boot), or None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


class Process(msgspec.Struct, frozen=True):
    """A process, identified beyond the reuse of its number."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """Identify a live process.

        Raises:
            ProcessLookupError: It is not alive.
        """
        started = start_time(pid)
        if started is None:
            raise ProcessLookupError(pid)
        return cls(pid, started, boot_id())

    @classmethod
    def current(cls) -> Process:
        """Identify this process."""
        return cls.of(os.getpid())

    def alive(self) -> bool:
        """Tell whether this very process still runs."""
        return self.boot == boot_id() and start_time(self.pid) == self.started


def write(folder: Path, owner: Process) -> None:
    """Record a folder's owner."""
    (folder / "owner.json").write_bytes(msgspec.json.encode(owner))


def read(folder: Path) -> Process | None:
    """Return a folder's owner, or None where the record is missing or not whole."""
    try:
        return msgspec.json.decode((folder / "owner.json").read_bytes(), type=Process)
    except (OSError, msgspec.DecodeError):
        return None
