"""Saved snapshots: what ``Sandbox.snapshot()`` leaves on disk, to be forked by any process until it is deleted."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from microsim_vm import digests, owner, snapshots
from microsim_vm.cache import Cache
from microsim_vm.errors import SnapshotError
from microsim_vm.options import Options
from microsim_vm.sandbox.origin import Origin
from microsim_vm.snapshots import FileRecord

MANIFEST = "manifest.json"
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class SavedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot of a sandbox. Its manifest is written last, so that its presence means the rest is there.

    Attributes:
        id: Its name.
        origin: Where the sandbox came from.
        sandbox: The sandbox's id.
        created_at: Seconds since 1970.
        boot: The host boot in which the files' hashes were last checked.
        files: Memory and device state.
        metadata: The user's own words.
    """

    id: str
    origin: Origin
    sandbox: str
    created_at: float
    boot: str
    files: dict[str, FileRecord]
    metadata: dict[str, str] = {}

    @classmethod
    def list(cls, options: Options | None = None) -> SavedSnapshots:
        """Return all saved snapshots, oldest first."""
        return listed(Cache.of(options))

    @classmethod
    def get(cls, id: str, options: Options | None = None) -> SavedSnapshot:
        """Return a saved snapshot whose files are whole.

        Raises:
            SnapshotError: There is none of this id, or a file of it is damaged.
        """
        return get(Cache.of(options), id)

    def delete(self, options: Options | None = None) -> None:
        """Delete it; sandboxes forked from it keep what they use.

        Raises:
            SnapshotError: It is gone already.
        """
        delete(Cache.of(options), self.id)


# Inside the class ``list`` is the method.
SavedSnapshots = list[SavedSnapshot]


def seal(folder: Path, known: Mapping[str, FileRecord] = MappingProxyType({})) -> dict[str, FileRecord]:
    """Bring a saved guest's files to the disk and describe them; those described already are not read again."""
    found = dict(known)
    for path in sorted(folder.iterdir()):
        if path.name in known:
            continue
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        found[path.name] = FileRecord.of(path)
    return found


def check_name(cache: Cache, name: str) -> None:
    """Refuse a name that a new snapshot cannot have; to be asked before anything is copied.

    Raises:
        SnapshotError: It is no name, or another snapshot has it.
    """
    if not ID.fullmatch(name):
        raise SnapshotError(
            f"{name!r} is no snapshot's id", hint="1 to 100 of A-Z, a-z, 0-9, ., _ and -, a letter or digit first"
        )
    if folder_of(cache, name).exists():
        raise _taken(name)


def _taken(name: str) -> SnapshotError:
    return SnapshotError(f"there is a snapshot {name} already", hint="delete it, or choose another name")


def keep(cache: Cache, staging: Path, snapshot: SavedSnapshot) -> SavedSnapshot:
    """Make a freshly written snapshot final.

    Raises:
        SnapshotError: Its id is none, or another one has it.
    """
    check_name(cache, snapshot.id)
    snapshot = msgspec.structs.replace(snapshot, files=seal(staging))
    digests.write_atomically(staging / MANIFEST, msgspec.json.encode(snapshot))
    try:
        os.rename(staging, folder_of(cache, snapshot.id))
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        raise _taken(snapshot.id) from None
    return snapshot


def folder_of(cache: Cache, snapshot: str) -> Path:
    """Return a snapshot's folder."""
    return cache.folder("saved") / snapshot


def listed(cache: Cache) -> SavedSnapshots:
    """Return all saved snapshots, oldest first."""
    found = [_read(folder) for folder in cache.folder("saved").iterdir()]
    return sorted((each for each in found if each is not None), key=lambda each: each.created_at)


def get(cache: Cache, name: str) -> SavedSnapshot:
    """Return a saved snapshot whose files are whole.

    Raises:
        SnapshotError: There is none of this id, or a file of it is damaged.
    """
    snapshot = _read(folder_of(cache, name)) if ID.fullmatch(name) else None
    if snapshot is None:
        raise SnapshotError(
            f"there is no saved snapshot {name!r}", hint="see microsim snapshot ls",
            details="\n".join(f"{each.id}: of {each.sandbox}, {each.origin.template}" for each in listed(cache)),
        )  # fmt: skip
    try:
        checked = snapshots.checked_files(folder_of(cache, name), snapshot.files, snapshot.boot)
    except (OSError, ValueError) as error:
        raise SnapshotError(
            f"the saved snapshot {name} is damaged: {error}",
            cause="a crash of the host, a full disk, or somebody changed its files",
            hint=f"delete it (microsim snapshot rm {name}) and make it again",
        ) from None
    if checked != snapshot.files:
        snapshot = msgspec.structs.replace(snapshot, files=checked, boot=owner.boot_id())
        digests.write_atomically(folder_of(cache, name) / MANIFEST, msgspec.json.encode(snapshot))
    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile: whoever opens its files will be told
        os.utime(folder_of(cache, name))  # the folder's time is when it was last used
    return snapshot


def delete(cache: Cache, name: str) -> None:
    """Delete a saved snapshot; sandboxes forked from it keep what they use.

    Raises:
        SnapshotError: There is none of this id.
    """
    snapshot = _read(folder_of(cache, name)) if ID.fullmatch(name) else None
    if snapshot is None:
        raise SnapshotError(f"there is no saved snapshot {name!r}", hint="see microsim snapshot ls")
    (folder_of(cache, name) / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder_of(cache, name), ignore_errors=True)


def new_id() -> str:
    """Return a name that sorts by time."""
    return time.strftime("snap-%Y%m%d-%H%M%S-", time.gmtime()) + os.urandom(3).hex()


def _read(folder: Path) -> SavedSnapshot | None:
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=SavedSnapshot)
    except (OSError, msgspec.DecodeError):
        return None
