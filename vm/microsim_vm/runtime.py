"""The runtime directory: one record per live guest, so that nothing is left behind and memory adds up.

Nothing of a guest has to be found by name: its engine's files are its own, its sockets are inherited. Its record exists
for three readers: the reaper, which removes what dead owners left, admission, which adds up what is promised, and the
garbage collection, which leaves the images alone that guests run from.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import filelock
import msgspec

from microsim_vm import owner as owners
from microsim_vm.cache import Cache
from microsim_vm.errors import EngineError
from microsim_vm.islands.policy import Policy

OWNERLESS_S = 600.0
GVISOR = "gvisor-"  # how the folders begin in which runsc keeps its state, one per guest


class GuestRecord(msgspec.Struct, frozen=True):
    """A live guest.

    Attributes:
        owner: The process that started it.
        memory_mib: What it may use at most.
        label: What it is for, one line.
        vmm: Its engine's process, once started.
        image: A file or folder of the image that it runs from; "" where that is not told.
        island: Its place in a network; None where it has none.
    """

    owner: owners.Process
    memory_mib: int
    label: str
    vmm: owners.Process | None = None
    image: str = ""
    island: IslandRecord | None = None


def folder() -> Path:
    """Return this user's runtime directory, short, private, created."""
    # Not $TMPDIR: sessions with different ones still share the host's memory, and each other's leftovers.
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(base, "microsim") if base else Path(f"/tmp/microsim-{os.geteuid()}")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.lstat().st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to somebody else")
    except OSError as error:
        raise EngineError(
            f"the runtime folder {path} cannot be used: {error.strerror}",
            hint="set XDG_RUNTIME_DIR to a folder of your own",
        ) from error
    return path


class IslandRecord(msgspec.Struct, frozen=True):
    """A guest's place in its island.

    Attributes:
        subnet: The island's addresses, "198.18.0.4/30".
        policy: What may be reached from it.
        interface: Its link's end on the gateway's side.
        machine: What this guest is called there.
        address: Its address.
        published: Ports of the host's loopback, by the guest's.
        namespace: The island's network namespace, a descriptor of its owner's; -1 where nobody may look into it.
        user: Likewise, of the user namespace that it belongs to; None for the host's.
    """

    subnet: str
    policy: Policy
    interface: str
    machine: str
    address: str
    published: dict[int, int] = {}
    namespace: int = -1
    user: int | None = None


@contextlib.contextmanager
def locked() -> Iterator[Path]:
    """Hold the directory's lock for a short look or change."""
    path = folder()
    with filelock.FileLock(path / "lock", timeout=60):
        yield path


def records(path: Path) -> list[tuple[Path, GuestRecord]]:
    """Return all records; call under the lock."""
    found = []
    for file in path.glob("*.guest"):
        try:
            found.append((file, msgspec.json.decode(file.read_bytes(), type=GuestRecord)))
        except (msgspec.DecodeError, OSError):
            file.unlink(missing_ok=True)  # half-written by a process that died in that very moment
    return found


def new_record(path: Path, record: GuestRecord) -> Path:
    """Write a new guest's record and return its file."""
    file = path / f"{uuid.uuid4().hex[:16]}.guest"
    _write(file, record)
    return file


def started(file: Path, record: GuestRecord, pid: int, island: IslandRecord | None = None) -> None:
    """Add the engine's process, and its place in a network, to a record."""
    with contextlib.suppress(ProcessLookupError):
        _write(file, msgspec.structs.replace(record, vmm=owners.Process.of(pid), island=island))


def _write(file: Path, record: GuestRecord) -> None:
    partial = file.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(record))
    os.replace(partial, file)


def reap(cache: Cache) -> list[str]:
    """Remove what processes that are gone left behind; everything else stays untouched.

    What has no readable owner lost it in the moment between its creation and its record; it goes once it is
    older than that moment can last.

    Returns:
        One line per thing removed.
    """
    removed = []
    with locked() as path:
        for file, record in records(path):
            if record.owner.alive():
                continue
            if record.vmm is not None and record.vmm.alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(record.vmm.pid, signal.SIGKILL)
                removed.append(f"guest process {record.vmm.pid} ({record.label})")
            file.unlink(missing_ok=True)
        for partial in path.glob("*.partial"):
            if _old(partial):
                partial.unlink(missing_ok=True)
        removed += _reap_folders(path, f"{GVISOR}*")
    return removed + _reap_folders(cache.folder("staging"), "*")


def _reap_folders(parent: Path, names: str) -> list[str]:
    removed = []
    for folder in parent.glob(names):
        holder = owners.read(folder)
        if _old(folder) if holder is None else not holder.alive():
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(f"half-written {folder.name}")
    return removed


def _old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > OWNERLESS_S
    except FileNotFoundError:  # its owner finished with it
        return False
