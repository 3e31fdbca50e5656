"""Snapshots on disk: immutable, keyed by everything that could change them, trusted only when whole."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import msgspec

from microsim_vm import digests, owner
from microsim_vm.cache import Cache
from microsim_vm.engines.base import Boot, Engine
from microsim_vm.errors import SnapshotError
from microsim_vm.templates.bake import Image
from microsim_vm.templates.spec import MachineShape, Template

FORMAT = 1
KEEP = 3  # snapshots kept per template; each holds a whole guest's memory


class FileRecord(msgspec.Struct, frozen=True):
    """A file as it was when the snapshot was written."""

    size: int
    mtime_ns: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> FileRecord:
        """Describe a file."""
        info = path.stat()
        return cls(info.st_size, info.st_mtime_ns, digests.of_file(path))


class WarmUp(msgspec.Struct, frozen=True):
    """What the warm-up found.

    Attributes:
        boot_ms: From starting the engine to the agent's first answer, milliseconds.
        load_ms: Loading the world, milliseconds.
        findings: Generators that every fork would repeat.
        sources: Names of the generators that a fork reseeds.
        versions: Guest kernel, Python and simulator versions.
    """

    boot_ms: float
    load_ms: float
    findings: list[str]
    sources: list[str]
    versions: dict[str, str]


class Manifest(msgspec.Struct, frozen=True):
    """A snapshot's manifest: written last, so that its presence means the rest is there.

    Attributes:
        key: The snapshot's key.
        template: The template's name.
        digest: The image's digest.
        engine: The engine's identity.
        boot: The host boot in which the files' hashes were last checked.
        files: Memory and device state.
        warmup: What the warm-up found.
    """

    key: str
    template: str
    digest: str
    engine: dict[str, str]
    boot: str
    files: dict[str, FileRecord]
    warmup: WarmUp


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot that can be forked.

    Attributes:
        directory: Where it lies.
        manifest: What it is.
    """

    directory: Path
    manifest: Manifest

    @property
    def key(self) -> str:
        """The snapshot's key."""
        return self.manifest.key

    @property
    def contents(self) -> str:
        """What tells it from others of its key, each of another warm-up: a digest of its memory and devices, hex."""
        return digests.of_data({name: file.sha256 for name, file in self.manifest.files.items()})


def key_of(image: Image, engine: Engine, shape: MachineShape) -> str:
    """Return the key of the snapshot that this image, engine and machine size would give."""
    parts = [FORMAT, image.name, image.digest, engine.identity(), msgspec.to_builtins(shape)]
    return digests.of_data(parts)[:32]


def boot_of(image: Image, template: Template) -> Boot:
    """Return what an engine boots for this image and template."""
    shape = template.machine
    return Boot(
        image.kernel, image.initramfs, image.layers, shape.vcpus, shape.memory_mib, network=template.network_plan
    )


def load(cache: Cache, key: str) -> Snapshot | None:
    """Return a snapshot that is whole, or None; one that is not is removed.

    Size and modification time are compared always, the content where they differ or where the host was booted
    since: after a crash a file may have the right name and length and not the contents.
    """
    folder = cache.folder("snapshots") / key
    try:
        manifest = _read(folder)
        checked = checked_files(folder, manifest.files, manifest.boot)
        if (checked, owner.boot_id()) != (manifest.files, manifest.boot):
            manifest = msgspec.structs.replace(manifest, boot=owner.boot_id(), files=checked)
            digests.write_atomically(folder / "manifest.json", msgspec.json.encode(manifest))
    except (OSError, msgspec.DecodeError, ValueError):
        shutil.rmtree(folder, ignore_errors=True)
        return None
    os.utime(folder)  # the folder's time is when it was last used
    return Snapshot(folder, manifest)


def use(snapshot: Snapshot) -> None:
    """Mark a snapshot as in use, so that it is not pruned while a long session forks it.

    Raises:
        SnapshotError: Its files are gone, or not as they were when this session found them whole.
    """
    try:
        os.utime(snapshot.directory)
        touched = _all_touched(snapshot.directory, snapshot.manifest)
        # Another session may have found it damaged before us, and made it anew.
        touched = touched and _all_touched(snapshot.directory, _read(snapshot.directory))
    except (OSError, msgspec.DecodeError):
        raise SnapshotError(
            f"the snapshot of {snapshot.manifest.template} is gone from {snapshot.directory}",
            cause="the cache was emptied while this session was using it",
            hint="start again: it is warmed up anew",
        ) from None
    if touched:
        raise SnapshotError(
            f"the snapshot of {snapshot.manifest.template} is damaged: "
            f"{', '.join(touched)} changed while this session used it",
            cause=f"somebody wrote to {snapshot.directory}",
            hint="start again: it is warmed up anew",
        )


def checked_files(folder: Path, files: dict[str, FileRecord], boot: str) -> dict[str, FileRecord]:
    """Return the files' records as they are now, or refuse files that are not as they were written.

    Raises:
        OSError: A file is gone.
        ValueError: A file is not what was written.
    """
    if boot == owner.boot_id() and not any(_touched(folder / name, record) for name, record in files.items()):
        return files
    fresh = {name: FileRecord.of(folder / name) for name in files}
    for name, record in files.items():
        if (fresh[name].size, fresh[name].sha256) != (record.size, record.sha256):
            raise ValueError(f"{name} is not what was written")
    return fresh


def _read(folder: Path) -> Manifest:
    return msgspec.json.decode((folder / "manifest.json").read_bytes(), type=Manifest)


def _all_touched(folder: Path, manifest: Manifest) -> list[str]:
    return [name for name, record in manifest.files.items() if _touched(folder / name, record)]


def _touched(path: Path, record: FileRecord) -> bool:
    info = path.stat()
    return (info.st_size, info.st_mtime_ns) != (record.size, record.mtime_ns)


def seal(cache: Cache, staging: Path, manifest: Manifest, names: tuple[str, ...]) -> Snapshot:
    """Make a freshly written snapshot final: contents to disk, hashes, manifest, and the name last of all."""
    for name in names:
        with open(staging / name, "rb+") as file:
            os.fsync(file.fileno())
        (staging / name).chmod(0o600 if os.geteuid() else 0o400)
    manifest = msgspec.structs.replace(manifest, files={name: FileRecord.of(staging / name) for name in names})
    digests.write_atomically(staging / "manifest.json", msgspec.json.encode(manifest))
    folder = cache.folder("snapshots") / manifest.key
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(staging, folder)
    staging.mkdir()  # its owner removes it
    _prune(cache, manifest.template)
    return Snapshot(folder, manifest)


def _prune(cache: Cache, template: str) -> None:
    """Keep the few last used snapshots of a template; running forks keep their files open regardless."""
    found = []
    for folder in cache.folder("snapshots").iterdir():
        manifest = digests.read_json(folder / "manifest.json")
        if manifest is not None and manifest.get("template") == template:
            found.append((folder.stat().st_mtime, folder))
    for used, folder in sorted(found, reverse=True)[KEEP:]:
        if time.time() - used > 3600:
            shutil.rmtree(folder, ignore_errors=True)
