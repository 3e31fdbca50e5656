"""Durable volumes: named ext4 disks that outlive the sandboxes which mount them. One writer, or many readers."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import filelock
import msgspec

from microsim_vm import digests, tools
from microsim_vm.cache import Cache
from microsim_vm.engines.base import Disk
from microsim_vm.errors import VolumeBusyError, VolumeError
from microsim_vm.options import Options

IMAGE, ABOUT, CLAIMS = "image", "volume.json", "claims.json"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
MIN_MIB, MAX_MIB = 8, 1 << 20
LOCK_WAIT_S = 60.0
# A microvm machine has eight device slots: three are taken by an image's layers, one by the agent's channel, and one
# by the network interface, where there is one.
SLOTS, TAKEN = 8, 4


class Volume(msgspec.Struct, frozen=True):
    """A volume.

    Attributes:
        name: Its name.
        size_mib: Its size, MiB; the host gives the space as it is written.
        created_at: Seconds since 1970.
    """

    name: str
    size_mib: int
    created_at: float

    @classmethod
    def create(cls, name: str, size_mib: int, options: Options | None = None) -> Volume:
        """Make an empty volume.

        Args:
            name: 1 to 63 of a-z, 0-9, - and _.
            size_mib: From 8 to 1048576.
            options: Which cache it is kept in.

        Raises:
            VolumeError: The name is taken or unusable, the size is, or mkfs failed.
            MissingToolError: mkfs.ext4 is not installed.
        """
        return create(Cache.of(options), name, size_mib)

    @classmethod
    def list(cls, options: Options | None = None) -> Volumes:
        """Return all volumes, by name."""
        return listed(Cache.of(options))

    @classmethod
    def get(cls, name: str, options: Options | None = None) -> Volume:
        """Return a volume.

        Raises:
            VolumeError: There is none of this name.
        """
        return get(Cache.of(options), name)

    def delete(self, options: Options | None = None) -> None:
        """Delete it and all that is in it.

        Raises:
            VolumeError: It is gone already.
            VolumeBusyError: A sandbox has it mounted, or hibernates with it; names it.
        """
        from microsim_vm.sandbox.store import Store

        cache = Cache.of(options)
        delete(cache, self.name, Store(cache).exists)


class Claim(msgspec.Struct, frozen=True):
    """Who has a volume mounted. A claim is worth nothing once its sandbox is gone."""

    sandbox: str
    read_only: bool


class Wanted(Protocol):
    """A volume, and how a sandbox wants it."""

    @property
    def volume(self) -> str:
        """The volume's name."""

    @property
    def read_only(self) -> bool:
        """It is not written to."""


# Inside the class ``list`` is the method.
Volumes = list[Volume]


def create(cache: Cache, name: str, size_mib: int) -> Volume:
    """Make an empty volume. See :meth:`Volume.create`."""
    if not NAME.fullmatch(name):
        raise VolumeError(f"{name!r} is no volume's name", hint="1 to 63 of a-z, 0-9, - and _")
    if not MIN_MIB <= size_mib <= MAX_MIB:
        raise VolumeError(f"a volume has {MIN_MIB} to {MAX_MIB} MiB, not {size_mib}")
    folder = cache.folder("volumes") / name
    with cache.staging("volume") as staging:
        with open(staging / IMAGE, "wb") as file:
            file.truncate(size_mib << 20)
        made = subprocess.run(
            [tools.need("mkfs.ext4"), "-q", "-F", "-L", name[:16], "-m", "0", str(staging / IMAGE)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if made.returncode != 0:
            raise VolumeError(f"mkfs.ext4 could not make volume {name}", details=made.stderr)
        volume = Volume(name, size_mib, time.time())
        digests.write_atomically(staging / ABOUT, msgspec.json.encode(volume))
        with _locked(cache, name):
            if (folder / ABOUT).exists():
                raise VolumeError(f"there is a volume {name!r} already", hint="choose another name")
            shutil.rmtree(folder, ignore_errors=True)  # what is left of one whose deletion was interrupted
            staging.rename(folder)
        staging.mkdir()  # its owner removes it
    return volume


def listed(cache: Cache) -> list[Volume]:
    """Return all volumes, by name."""
    found = []
    for folder in sorted(cache.folder("volumes").iterdir()):
        try:
            found.append(msgspec.json.decode((folder / ABOUT).read_bytes(), type=Volume))
        except (OSError, msgspec.DecodeError):
            continue
    return found


def get(cache: Cache, name: str) -> Volume:
    """Return a volume. See :meth:`Volume.get`."""
    for volume in listed(cache):
        if volume.name == name:
            return volume
    raise VolumeError(
        f"there is no volume {name!r}", hint="make it first: Volume.create(name, size_mib)",
        details="\n".join(f"{volume.name}: {volume.size_mib} MiB" for volume in listed(cache)),
    )  # fmt: skip


def delete(cache: Cache, name: str, alive: Callable[[str], bool]) -> None:
    """Delete a volume that no living sandbox holds. See :meth:`Volume.delete`."""
    with _found(cache, name) as folder:
        held = _live_claims(folder, alive)
        if held:
            raise VolumeBusyError(
                f"volume {name} is mounted by {', '.join(claim.sandbox for claim in held)}", hint="kill those first"
            )
        (folder / ABOUT).unlink()
        shutil.rmtree(folder, ignore_errors=True)


def need_slots(count: int, *, network: bool) -> None:
    """Refuse more volumes than a machine has room for.

    Raises:
        VolumeError: There are too many.
    """
    most = SLOTS - TAKEN - network
    if count > most:
        why = "with a network" if network else "without a network"
        raise VolumeError(
            f"a sandbox {why} has {most} volumes at most, not {count}",
            cause=f"its machine has {SLOTS} places for devices, and {SLOTS - most} are taken",
            hint="write network: none in its template, which leaves room for one more" if network else "",
        )


def claim(cache: Cache, wanted: Sequence[Wanted], sandbox: str, alive: Callable[[str], bool]) -> None:
    """Claim volumes for a sandbox; it loses them when it is gone, however it went.

    Args:
        cache: Where they are.
        wanted: Which, and whether to write to them.
        sandbox: The sandbox's id.
        alive: Tells whether a sandbox still is.

    Raises:
        VolumeError: There is no such volume.
        VolumeBusyError: Another sandbox writes to it, or reads what this one would write to; names it.
    """
    for each in wanted:
        with _found(cache, each.volume) as folder:
            held = [other for other in _live_claims(folder, alive) if other.sandbox != sandbox]
            busy = [other for other in held if not (other.read_only and each.read_only)]
            if busy:
                does = "reads" if busy[0].read_only else "writes to"
                raise VolumeBusyError(
                    f"volume {each.volume} cannot be mounted {'read-only' if each.read_only else 'for writing'}: "
                    f"sandbox {busy[0].sandbox} {does} it",
                    hint="kill that sandbox first, or mount the volume read-only in both",
                )
            claims = [*held, Claim(sandbox, each.read_only)]
            digests.write_atomically(folder / CLAIMS, msgspec.json.encode(claims))


def disks(cache: Cache, wanted: Sequence[Wanted]) -> tuple[Disk, ...]:
    """Return the disks of a sandbox's volumes, in order."""
    folder = cache.folder("volumes")
    return tuple(Disk(folder / each.volume / IMAGE, each.read_only) for each in wanted)


@contextlib.contextmanager
def _found(cache: Cache, name: str) -> Iterator[Path]:
    """Yield the folder of a volume that nobody deletes or claims meanwhile."""
    get(cache, name)
    with _locked(cache, name):
        get(cache, name)  # it may have been deleted while this waited
        yield cache.folder("volumes") / name


@contextlib.contextmanager
def _locked(cache: Cache, name: str) -> Iterator[None]:
    """Hold a volume's lock, which outlives the volume: who waits for it must not bring a folder back."""
    lock = filelock.FileLock(cache.folder("locks") / f"volume-{name}.lock", timeout=LOCK_WAIT_S)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise VolumeBusyError(
            f"volume {name} has been in use by another process for {LOCK_WAIT_S:.0f} s",
            cause="it hangs, or the machine is overloaded", hint=f"see which one it is (fuser {lock.lock_file})",
        ) from None  # fmt: skip
    try:
        yield
    finally:
        lock.release()


def _live_claims(folder: Path, alive: Callable[[str], bool]) -> list[Claim]:
    try:
        claims = msgspec.json.decode((folder / CLAIMS).read_bytes(), type=list[Claim])
    except FileNotFoundError:
        return []
    return [claim for claim in claims if alive(claim.sandbox)]
