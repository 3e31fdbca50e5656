"""Sandboxes on disk: one folder each, whose record says what it is and who owns it."""

from __future__ import annotations

import contextlib
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import filelock
import msgspec

from microsim_vm import digests
from microsim_vm import owner as owners
from microsim_vm.cache import Cache
from microsim_vm.errors import SandboxNotFoundError
from microsim_vm.sandbox.origin import Origin
from microsim_vm.snapshots import FileRecord

Status = Literal["starting", "running", "paused", "waking", "hibernated", "crashed"]
RECORD, LOCK = "record.json", "lock"
# Of a sandbox's folder: the memory that it was forked from, and itself while it is hibernated.
ORIGIN, HIBERNATED = "origin", "hibernated"


class Mount(msgspec.Struct, frozen=True):
    """A volume of a sandbox.

    Attributes:
        volume: The volume's name.
        path: Where it is mounted; "" where the key of ``volumes`` says so.
        read_only: It cannot be written to; any number of sandboxes may have it so at a time.
    """

    volume: str
    path: str = ""
    read_only: bool = False


class Record(msgspec.Struct, frozen=True):
    """What is known of a sandbox by whoever looks.

    Attributes:
        id: Its name.
        origin: Where it came from.
        status: What it does.
        created_at: Seconds since 1970.
        seed: What its generators were reseeded with.
        metadata: The user's own words.
        boot_mode: "fork" from a snapshot, or "cold".
        boot_ms: How long that took, milliseconds.
        from_snapshot: The saved snapshot, or the sandbox, that it was forked from.
        persistent: It outlives its maker, and nobody's idleness ends it.
        detached: It has a keeper, a process of its own.
        ttl_seconds: How long it may be idle before it ends; None for ever.
        hibernate_after: How long it may be idle before it hibernates; None for ever.
        volumes: Its volumes.
        owner: The process that it lives in; None while it is hibernated.
        door: The socket at which that process serves others.
        pid: Its engine's process.
        base: The memory file that it was forked from, where that is known.
        maker: The process that it was made in; one that hibernates is woken there, or in a keeper.
        ran: While it is being woken: its microVM may have written to its volumes already.
        template_path: Its template's file, needed where it boots cold.
    """

    id: str
    origin: Origin
    status: Status
    created_at: float
    seed: int
    metadata: dict[str, str] = {}
    boot_mode: Literal["fork", "cold"] = "fork"
    boot_ms: float = 0.0
    from_snapshot: str | None = None
    persistent: bool = False
    detached: bool = False
    ttl_seconds: float | None = None
    hibernate_after: float | None = None
    volumes: tuple[Mount, ...] = ()
    owner: owners.Process | None = None
    door: str = ""
    pid: int = 0
    base: FileRecord | None = None
    maker: owners.Process | None = None
    ran: bool = False
    template_path: str = ""

    @property
    def spoiled(self) -> bool:
        """Its hibernation is not what it was: the microVM that was woken from it may have written to a volume."""
        return self.ran and any(not mount.read_only for mount in self.volumes)

    def asleep(self) -> Record:
        """Return the record of this sandbox while it hibernates."""
        return msgspec.structs.replace(self, status="hibernated", owner=None, door="", pid=0, ran=False)


class Hibernation(msgspec.Struct, frozen=True):
    """What lies in a hibernated sandbox's folder, written last.

    Attributes:
        boot: The host's boot in which it was written.
        files: Memory, pages and device state.
    """

    boot: str
    files: dict[str, FileRecord]


def new_id() -> str:
    """Return a new sandbox's name."""
    return f"sb-{uuid.uuid4().hex[:12]}"


class Store:
    """The sandboxes of one cache."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache

    def folder(self, sandbox: str) -> Path:
        """Return a sandbox's folder; it need not exist."""
        return self.cache.folder("sandboxes") / sandbox

    def write(self, record: Record) -> None:
        """Write a sandbox's record; of a power cut nothing but what hibernates is left."""
        path = self.folder(record.id) / RECORD
        digests.write_atomically(path, msgspec.json.encode(record), durable=record.status == "hibernated")

    def read(self, sandbox: str) -> Record | None:
        """Return a sandbox's record, or None where there is none."""
        try:
            return msgspec.json.decode((self.folder(sandbox) / RECORD).read_bytes(), type=Record)
        except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
            return None

    def records(self) -> list[Record]:
        """Return all records, oldest first."""
        found = [self.read(folder.name) for folder in self.cache.folder("sandboxes").iterdir()]
        return sorted((record for record in found if record is not None), key=lambda record: record.created_at)

    def find(self, name: str) -> Record:
        """Return the sandbox of this id, or the only one whose id begins so.

        Raises:
            SandboxNotFoundError: There is none, or more than one.
        """
        records = self.records()
        found = [record for record in records if record.id == name] or [
            record for record in records if name and record.id.startswith(name)
        ]
        if len(found) == 1:
            return found[0]
        raise SandboxNotFoundError(
            f"there are {len(found)} sandboxes whose id begins with {name!r}" if found else f"no sandbox {name!r}",
            cause="" if found else "it was killed, its time was over, or the process that it belonged to is gone",
            hint="see microsim ls",
            details="\n".join(f"{record.id}: {record.origin.template}, {record.status}" for record in found or records),
        )

    def exists(self, sandbox: str) -> bool:
        """Tell whether a sandbox runs, starts or hibernates."""
        record = self.read(sandbox)
        return record is not None and (
            record.status == "hibernated" or (record.owner is not None and record.owner.alive())
        )

    @contextlib.contextmanager
    def locked(self, sandbox: str, *, timeout_s: float = 300.0) -> Iterator[None]:
        """Hold a sandbox's lock: who wakes, hibernates or removes it does nothing else at that time."""
        folder = self.folder(sandbox)
        if not folder.exists():
            raise SandboxNotFoundError(f"no sandbox {sandbox!r}", hint="see microsim ls")
        with filelock.FileLock(folder / LOCK, timeout=timeout_s):
            yield

    def remove(self, sandbox: str) -> None:
        """Remove a sandbox's folder, its record first."""
        folder = self.folder(sandbox)
        (folder / RECORD).unlink(missing_ok=True)
        for part in folder.glob("*/"):  # what takes time first: who dies meanwhile is still known as its owner
            shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)

    def reap(self) -> list[str]:
        """Remove what sandboxes of dead owners left; what hibernates has no owner and stays.

        Returns:
            One line per thing removed.
        """
        removed = []
        for folder in self.cache.folder("sandboxes").iterdir():
            record = self.read(folder.name)
            if record is None:
                maker = owners.read(folder)
                if maker.alive() if maker is not None else _young(folder):
                    continue  # its record is about to be written
            elif self.exists(record.id) or self._asleep_again(record):
                continue
            self.remove(folder.name)
            removed.append(f"sandbox {folder.name}")
        return removed

    def _asleep_again(self, record: Record) -> bool:
        """Give a sandbox whose waker died its hibernation back, where that is still what it was."""
        if record.status != "waking" or record.spoiled:
            return False
        with contextlib.suppress(filelock.Timeout, SandboxNotFoundError), self.locked(record.id, timeout_s=0):
            if self.read(record.id) == record:  # else somebody has seen to it
                self.write(record.asleep())
        return True


def _young(folder: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return time.time() - folder.stat().st_mtime < 600
    return False
