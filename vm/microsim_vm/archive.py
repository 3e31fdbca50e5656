"""Saved snapshots as files: one compressed tar of a manifest, the saved guest, and the image files that it needs.

The manifest is the first member, and compressed by itself, so that its checksum is known before it is believed. It
says which members follow, in which order, with size and SHA-256 of each; nothing else is accepted. An archive may come
from anywhere: no name in it becomes a path here, what is unpacked is bounded by what the manifest says and there is
room for, and nothing is left unless all of it was right. Image files go into a place of their own, named by their
hashes, so that an archive cannot slip anything into what a bake would use.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tarfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard

from microsim_vm import digests, owner
from microsim_vm.cache import Cache, need_space
from microsim_vm.engines import select
from microsim_vm.engines.base import Engine
from microsim_vm.errors import ArchiveError, SnapshotError
from microsim_vm.islands.policy import Network
from microsim_vm.sandbox import saved
from microsim_vm.sandbox.origin import Origin
from microsim_vm.sandbox.saved import SavedSnapshot
from microsim_vm.tools import Progress

FORMAT = "microsim snapshot 1"
MANIFEST = "manifest.json"
MAX_MANIFEST = 1 << 20
LEVEL = 3
BLOCK = tarfile.BLOCKSIZE
PIECE = 1 << 16
ZEROS = bytes(PIECE)
# The decompressor hands out all that a piece becomes, which is up to 30,000 times as much where there are zeros only.
COMPRESSED_PIECE = 1024
MAX_WINDOW = 1 << 27
IMPORTED, FILE = "imported", "file"
IMPORT_WAIT_S = 3600.0
LAYER = re.compile(r"[a-z][a-z0-9]{0,15}")
PLACE = re.compile(rf"(bases|pythons|images|{IMPORTED})/[0-9a-f]{{32,64}}/[a-z0-9][a-z0-9.]{{0,40}}")
SHA256 = re.compile(r"[0-9a-f]{64}")


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file in an archive.

    Attributes:
        name: "guest/" and the name of a saved guest's file, or "image/" and a place in the cache.
        size: Bytes.
        sha256: Their hash.
    """

    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first member of an archive.

    Attributes:
        format: :data:`FORMAT`.
        snapshot: The saved snapshot.
        members: All other members, in their order.
    """

    format: str
    snapshot: SavedSnapshot
    members: list[Member]


def export(cache: Cache, snapshot: str, target: Path) -> Manifest:
    """Write a saved snapshot and the image files that it needs into one file.

    Args:
        cache: Where it is.
        snapshot: Its id.
        target: The file; it is there when it is whole, and replaces what has its name.

    Raises:
        SnapshotError: There is none of this id, or a file of it or of its image is gone or damaged.
        OSError: The target cannot be written.
    """
    found = saved.get(cache, snapshot)
    found.origin.boot(cache)  # refuses where a file of the image is gone
    sources = {f"guest/{name}": saved.folder_of(cache, snapshot) / name for name in sorted(found.files)}
    sources |= {f"image/{name}": cache.root / name for name in found.origin.files}
    members = []
    for name, path in sources.items():
        known = found.files.get(name.removeprefix("guest/"))
        members.append(Member(name, path.stat().st_size, digests.of_file(path) if known is None else known.sha256))
    manifest = Manifest(FORMAT, found, members)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        with open(partial, "xb") as file:
            compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, threads=-1)
            data = msgspec.json.encode(manifest)
            file.write(compressor.compress(_header(MANIFEST, len(data)) + data + _padding(len(data))))
            with compressor.stream_writer(file, closefd=False) as stream:
                for member in members:
                    stream.write(_header(member.name, member.size))
                    with open(sources[member.name], "rb") as source:
                        _copy_in(source, member, stream.write)
                    stream.write(_padding(member.size))
                stream.write(bytes(2 * BLOCK))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return manifest


def _copy_in(source: BinaryIO, member: Member, write: Callable[[bytes], object]) -> None:
    hashed = hashlib.sha256()
    left = member.size
    while left and (data := source.read(min(PIECE, left))):
        hashed.update(data)
        write(data)
        left -= len(data)
    if left or hashed.hexdigest() != member.sha256:
        raise SnapshotError(f"{source.name} changed while it was exported", hint="export it again")


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def restore(
    cache: Cache, source: Path, *, name: str | None = None, progress: Progress = lambda _: None
) -> SavedSnapshot:
    """Make a saved snapshot of an exported one.

    Args:
        cache: Where to.
        source: The file.
        name: Another id for it.
        progress: Told when this has to wait for another import.

    Raises:
        SnapshotMismatchError: Engine, processor or arguments here are others; nothing was unpacked.
        ArchiveError: The file is no archive, damaged, or holds what it must not; nothing is left of it.
        SnapshotError: There is a snapshot of this id already, or the name is none.
        NoSpaceError: It does not fit.
        BakeError: Another import has gone on for an hour.
        OSError: The file cannot be read.
    """
    with open(source, "rb") as file, _reading(source):
        reader = _Reader(file)
        manifest = _manifest(reader)
        wanted = manifest.snapshot.id if name is None else name
        snapshot = msgspec.structs.replace(manifest.snapshot, id=wanted, boot=owner.boot_id())
        if name is None and not saved.ID.fullmatch(snapshot.id):
            raise ArchiveError(f"{snapshot.id!r} is no snapshot's id")
        engine = select.matching(snapshot.origin.engine, f"the snapshot in {source}")
        refusal = _refusal(snapshot.origin.template, engine)
        # Of two imports at once each would find an image's file missing, and one would undo what the other needs.
        with (
            cache.lock("import", what=f"importing {source}", progress=progress, timeout_s=IMPORT_WAIT_S),
            cache.staging("import") as staging,
            contextlib.ExitStack() as undo,
        ):
            saved.check_name(cache, snapshot.id)
            need_space(staging, sum(member.size for member in manifest.members), f"unpacking {source}")
            guest, image = staging / "guest", staging / "image"
            guest.mkdir()
            image.mkdir()
            places = {}
            for member in manifest.members:
                kind, _, place = member.name.partition("/")
                if kind == "guest":
                    reader.unpack(member, guest / place)
                    (guest / place).chmod(0o600 if os.geteuid() else 0o400)
                else:
                    places[place] = _image_file(cache, reader, member, place, image, refusal)
            reader.end()
            for fresh in sorted(image.iterdir()):
                final = cache.folder(IMPORTED, fresh.name)
                if not (final / FILE).exists():  # a damaged one is replaced, for all who need it
                    undo.callback(shutil.rmtree, final, ignore_errors=True)
                os.rename(fresh, final / FILE)
            kept = saved.keep(cache, guest, msgspec.structs.replace(snapshot, origin=_moved(snapshot.origin, places)))
            undo.pop_all()
            return kept


def _image_file(
    cache: Cache, reader: _Reader, member: Member, place: str, folder: Path, refusal: ArchiveError | None
) -> str:
    """Return the place in the cache of an image's file, which is unpacked into a folder where it is not there.

    Raises:
        ArchiveError: The refusal, where there is one, of all that was not made here.
    """
    imported = f"{IMPORTED}/{member.sha256}/{FILE}"
    for known in (place, imported):
        if refusal is not None and known.startswith(f"{IMPORTED}/"):
            continue
        path = cache.root / known
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size == member.size and digests.of_file(path) == member.sha256:
                reader.unpack(member, None)
                return known
    if refusal is not None:
        raise refusal
    reader.unpack(member, folder / member.sha256)
    (folder / member.sha256).chmod(0o444)
    return imported


def _refusal(template: str, engine: Engine) -> ArchiveError | None:
    """Return what is said where an image is not the cache's own; None where the engine runs others too."""
    if "foreign images" not in engine.lacks:
        return None
    return ArchiveError(
        f"the image of {template} is not here, and {engine.name} runs no other",
        cause=engine.lacks["foreign images"],
        hint="bake the same template here (microsim bake), and import it again",
    )


def _moved(origin: Origin, places: dict[str, str]) -> Origin:
    return msgspec.structs.replace(
        origin, kernel=places[origin.kernel], initramfs=places[origin.initramfs],
        layers={name: places[place] for name, place in origin.layers.items()},
        # What it may reach here, and who may reach it, is not for a file from elsewhere to say.
        network=origin.network if origin.network.policy == "none" else Network("island"),
    )  # fmt: skip


def _manifest(reader: _Reader) -> Manifest:
    """Read the manifest and refuse whatever is not as :func:`export` writes it."""
    size = reader.header(MANIFEST, MAX_MANIFEST)
    data = reader.take(size)
    reader.take(len(_padding(size)))
    reader.end_frame()
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, ValueError) as error:
        raise ArchiveError("its manifest cannot be read", cause=str(error)) from None
    origin, files = manifest.snapshot.origin, manifest.snapshot.files
    engine = select.of(origin.engine)
    largest = engine.largest(origin.machine.memory_mib)
    problem = ""
    wanted = [*(f"guest/{name}" for name in sorted(files)), *(f"image/{name}" for name in origin.files)]
    if manifest.format != FORMAT:
        problem = f"its format is {manifest.format!r}, not {FORMAT!r}"
    elif not set(engine.snapshot_files) <= files.keys() <= largest.keys():
        problem = f"a saved guest has other files than {', '.join(sorted(files))}"
    elif not all(PLACE.fullmatch(name) for name in origin.files):
        problem = "a file of its image lies where no image has one"
    elif not all(LAYER.fullmatch(name) for name in origin.layers):
        problem = "a layer's name is none"
    elif [member.name for member in manifest.members] != wanted or len(set(wanted)) < len(wanted):
        problem = "it holds other files than its snapshot has"
    elif not all(SHA256.fullmatch(member.sha256) and member.size >= 0 for member in manifest.members):
        problem = "a size or hash is none"
    else:
        limits = {f"guest/{name}": size for name, size in largest.items()}
        wrong = [member.name for member in manifest.members if member.size > limits.get(member.name, member.size)]
        if engine.memory_file is not None and files[engine.memory_file].size != largest[engine.memory_file]:
            wrong.append(engine.memory_file)
        if wrong:
            problem = f"the sizes of {', '.join(wrong)} do not fit a guest of {origin.machine.memory_mib} MiB"
    if problem:
        raise ArchiveError(problem)
    return manifest


@contextlib.contextmanager
def _reading(source: Path) -> Iterator[None]:
    try:
        yield
    except ArchiveError as error:
        raise ArchiveError(
            f"{source} was not imported: {error.what}", cause=error.cause or "it was cut off, damaged, or made by hand",
            hint=error.hint or "export the snapshot again",
        ) from None  # fmt: skip


class _Reader:
    """Reads a compressed tar as :func:`export` writes it: regular files only, names known beforehand."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._compressed = b""
        self._ready = bytearray()
        self._start_frame()

    def take(self, size: int) -> bytes:
        """Return exactly so many bytes, or refuse a file that has fewer."""
        while len(self._ready) < size:
            if not self._fill():
                raise ArchiveError("it ends too early")
        data = bytes(self._ready[:size])
        del self._ready[:size]
        return data

    def header(self, name: str, max_size: int) -> int:
        """Read the header of the next member, which has to be this one, and return its size."""
        try:
            info = tarfile.TarInfo.frombuf(self.take(BLOCK), "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as error:
            raise ArchiveError(f"where {name} should begin there is no file", cause=str(error)) from None
        if info.name != name or info.type != tarfile.REGTYPE or not 0 <= info.size <= max_size:
            raise ArchiveError(f"where {name} should be it has {info.name!r}, {info.size} bytes")
        return info.size

    def unpack(self, member: Member, target: Path | None) -> None:
        """Write the next member into a new file, with holes where it has zeros; with None, only check it."""
        if self.header(member.name, member.size) != member.size:
            raise ArchiveError(f"{member.name} has another size than the manifest says")
        hashed = hashlib.sha256()
        with contextlib.ExitStack() as stack:
            file = None if target is None else stack.enter_context(open(target, "xb"))
            left = member.size
            while left:
                data = self.take(min(PIECE, left))
                hashed.update(data)
                left -= len(data)
                if file is not None and data == ZEROS:
                    file.seek(len(data), os.SEEK_CUR)
                elif file is not None:
                    file.write(data)
            if file is not None:
                file.truncate(member.size)
        self.take(len(_padding(member.size)))
        if hashed.hexdigest() != member.sha256:
            raise ArchiveError(f"{member.name} is not what was exported: its hash differs")

    def end(self) -> None:
        """Refuse a file that goes on after the last member."""
        if self.take(2 * BLOCK).strip(b"\0"):
            raise ArchiveError("it has more in it than its manifest says")
        self.end_frame()
        if self._compressed or self._file.read(1):
            raise ArchiveError("something was added to it")

    def end_frame(self) -> None:
        """Refuse a frame that goes on, or whose checksum is missing or wrong; the next one follows."""
        while not self._ready and self._fill():
            pass
        if self._ready:
            raise ArchiveError("it has more in it than its manifest says")
        if not self._decompressor.eof:
            raise ArchiveError("it ends too early")
        self._compressed = self._decompressor.unused_data
        self._start_frame()

    def _start_frame(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj()

    def _fill(self) -> bool:
        if self._decompressor.eof:
            return False
        data = self._compressed or self._file.read(COMPRESSED_PIECE)
        self._compressed = b""
        if not data:
            return False
        try:
            self._ready += self._decompressor.decompress(data)
        except zstandard.ZstdError as error:
            raise ArchiveError("it cannot be decompressed", cause=str(error)) from None
        return True
