"""Make room in the cache: what was used longest ago goes first, what is in use or needed stays.

What depends on what: a snapshot needs its image, an image its base system and its Python layer. Whatever needs a thing
counts as its use. Memory files (QEMU) and unpacked layers (gVisor) are shared by hard links, so what a removal frees
is what no other name holds.
"""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import msgspec

from microsim_vm import digests, reaper, runtime
from microsim_vm.cache import Cache
from microsim_vm.sandbox import saved
from microsim_vm.sandbox.origin import Origin
from microsim_vm.sandbox.store import Store

RECENT_S = 3600.0  # who uses a thing, or is about to, has touched it within the hour
FAILURE_S = 86400.0  # no session lasts longer, and only within one is a failure read again
# What may go, those that need others first, and the prefix of the lock that builds each.
KINDS = {"snapshots": "snapshot-", "saved": "", "images": "image-", "bases": "base-", "pythons": "python-",
         "imported": "", "wheels": "", "failures": ""}  # fmt: skip
BUILT_FROM = frozenset({"images", "bases", "pythons", "wheels"})
BUILDING = ("snapshot-", "image-", "base-", "python-")
WHOLE = frozenset({"snapshots", "saved", "images", "bases", "pythons"})  # a folder with a manifest

_Inodes = dict[tuple[int, int], int]


@dataclass
class Item:
    """Something in the cache that may go.

    Attributes:
        kind: The folder of the cache that it is in.
        path: Where it is.
        used: When it, or what needs it, was last used, seconds since 1970.
        label: What it is, for people.
        inodes: Bytes on disk of each of its files.
        needs: What it cannot do without.
        held: Why it stays, whatever the limits; "" where nothing speaks for it.
        broken: It is not whole, so nobody can use it.
    """

    kind: str
    path: Path
    used: float
    label: str
    inodes: _Inodes
    needs: list[Path] = field(default_factory=list)
    held: str = ""
    broken: bool = False


@dataclass(frozen=True)
class Removed:
    """Something that was removed, or would be.

    Attributes:
        kind: The folder of the cache that it was in.
        name: Its name there.
        label: What it was, for people.
        size: Bytes that this freed.
        used: When it was last used, seconds since 1970.
        why: Why it had to go.
    """

    kind: str
    name: str
    label: str
    size: int
    used: float
    why: str


@dataclass(frozen=True)
class Report:
    """What was done.

    Attributes:
        removed: What went, in this order.
        reaped: What dead processes had left, one line each.
        before: Bytes of the cache before, without what dead processes had left.
        after: Bytes of the cache afterwards.
        held: What stays whatever the limits: path below the cache, and why.
    """

    removed: list[Removed]
    reaped: list[str]
    before: int
    after: int
    held: list[tuple[str, str]]


def collect(
    cache: Cache, *, older_than: float | None = None, max_size: int | None = None, dry_run: bool = False
) -> Report:
    """Remove what is not whole, what dead processes left, and what the limits do not allow.

    Args:
        cache: The cache.
        older_than: Remove what was not used for so many seconds.
        max_size: Then remove what was used longest ago until the cache has at most so many bytes.
        dry_run: Remove nothing; the report says what would be.
    """
    reaped = [] if dry_run else reaper.reap(cache)
    survey = _Survey(cache)
    before = survey.size
    removed = []
    now = time.time()
    for item in survey.removable():
        if item.broken:
            why = "it is not whole"
        elif item.kind == "failures":
            why = "no session reads it any more"
        elif older_than is not None and now - item.used > older_than:
            why = "it is older than asked for"
        elif max_size is not None and survey.size > max_size:
            why = "the cache is larger than asked for"
        else:
            continue
        if survey.needed(item) or not (dry_run or _remove(cache, item)):
            continue
        removed.append(Removed(item.kind, item.path.name, item.label, survey.drop(item), item.used, why))
    held = [(f"{item.kind}/{item.path.name}", item.held) for item in survey.items if item.held]
    return Report(removed, reaped, before, survey.size, held)


class _Survey:
    """What is in a cache, what needs what, and what is left as things go."""

    def __init__(self, cache: Cache) -> None:
        self.items = [item for kind in KINDS for item in _items(cache, kind)]
        self._by_path = {item.path: item for item in self.items}
        self._names = collections.Counter[tuple[int, int]]()
        self._bytes: _Inodes = {}
        mine = {cache.root / kind for kind in KINDS}
        others = (path for path in cache.folder().iterdir() if path not in mine and not path.is_symlink())
        for inodes in (*(item.inodes for item in self.items), *map(_inodes, others)):
            self._names.update(inodes.keys())
            self._bytes.update(inodes)
        self.size = sum(self._bytes.values())
        self._hold(cache)

    def _hold(self, cache: Cache) -> None:
        """Mark what is in use, and let each use count for what it needs."""
        for record in Store(cache).records():
            if record.owner is None or record.owner.alive():  # without an owner it hibernates
                self._mark(_folders(cache, record.origin), f"sandbox {record.id} runs from it")
        self._mark(_images_in_use(cache), "a guest runs from it")
        if any(name.startswith(BUILDING) for name in _locks_held(cache)):
            # What is built, or warmed up, reads what only later has a manifest that names it.
            self._mark((item.path for item in self.items if item.kind in BUILT_FROM), "something is being built")
        now = time.time()
        for item in self.items:  # KINDS has those that need others first
            if now - item.used < RECENT_S and item.kind != "failures" and not item.held:
                item.held = "it was used within the last hour"
            for path in item.needs:
                needed = self._by_path.get(path)
                if needed is not None:
                    needed.used = max(needed.used, item.used)
                    if item.held and not needed.held:
                        needed.held = f"{item.kind}/{item.path.name} needs it"

    def _mark(self, paths: Iterable[Path], why: str) -> None:
        for path in paths:
            item = self._by_path.get(path)
            if item is not None:
                item.held = why

    def removable(self) -> list[Item]:
        """Return what may go, in the order in which it would."""
        order = list(KINDS)
        return sorted(
            (item for item in self.items if not item.held), key=lambda item: (item.used, order.index(item.kind))
        )

    def needed(self, item: Item) -> bool:
        """Tell whether something that stays needs an item."""
        return any(item.path in other.needs for other in self.items)

    def drop(self, item: Item) -> int:
        """Forget an item that is gone, and return the bytes that this freed."""
        self.items.remove(item)
        freed = 0
        for inode, size in item.inodes.items():
            self._names[inode] -= 1
            freed += size if self._names[inode] == 0 else 0
        self.size -= freed
        return freed


def _items(cache: Cache, kind: str) -> Iterator[Item]:
    top = cache.root / kind
    if top.is_symlink() or not top.is_dir():  # what lies behind a link is another cache's
        return
    for path in sorted(top.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # it went meanwhile
            item = Item(kind, path, _used(path), path.name[:16], _inodes(path))
            _describe(cache, item)
            if kind != "failures" or time.time() - item.used > FAILURE_S:
                yield item


def _describe(cache: Cache, item: Item) -> None:
    """Add what an item's manifest tells."""
    manifest: Any = digests.read_json(item.path / saved.MANIFEST) if item.kind in WHOLE else {}
    if manifest is None:
        item.broken = True
        return
    try:
        if item.kind == "images":
            item.needs = [cache.root / "bases" / manifest["base"], cache.root / "pythons" / manifest["python"]]
            item.label = f"image of {manifest['lock']['template']['name']}"
        elif item.kind == "snapshots":
            item.label = f"snapshot of {manifest['template']}"
            item.needs = _images_of(cache, manifest["digest"])
        elif item.kind == "saved":
            item.label = f"saved snapshot {manifest['id']} of {manifest['origin']['template']}"
            item.needs = list(_folders(cache, _origin(manifest["origin"])))
    except (LookupError, TypeError, ValueError):
        item.broken = True


def _origin(data: Any) -> Origin:
    return msgspec.convert(data, type=Origin)


def _images_of(cache: Cache, digest: str) -> list[Path]:
    """Return the images of this digest; there may be several with the same bytes."""
    found = []
    for folder in (cache.root / "images").glob("*"):
        manifest = digests.read_json(folder / "manifest.json")
        if manifest is not None and manifest.get("lock", {}).get("digest") == digest:
            found.append(folder)
    return found


def _images_in_use(cache: Cache) -> set[Path]:
    """Return the images that guests run from; those of a rollout are no sandbox's."""
    root = cache.root.resolve()
    with runtime.locked() as path:
        files = [Path(record.image) for _, record in runtime.records(path) if record.image and record.owner.alive()]
    below = [file.relative_to(root) for file in map(Path.resolve, files) if file.is_relative_to(root)]
    return {cache.root.joinpath(*file.parts[:2]) for file in below}


def _folders(cache: Cache, origin: Origin) -> Iterator[Path]:
    """Yield the things in the cache that an origin's files are in."""
    for name in origin.files:
        yield cache.root.joinpath(*Path(name).parts[:2])


def _used(path: Path) -> float:
    """Return when a thing was last used: a snapshot's folder is touched, a layer's file is read."""
    times = [path.stat().st_mtime]
    for file in path.iterdir() if path.is_dir() else [path]:
        if file.name != saved.MANIFEST:  # whoever lists what there is reads that one
            info = file.stat()
            # Whoever looks how large a folder is, as we do, reads it.
            times += [info.st_mtime] if stat.S_ISDIR(info.st_mode) else [info.st_mtime, info.st_atime]
    return max(times)


def _inodes(top: Path) -> _Inodes:
    found: _Inodes = {}

    def add(path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            info = os.lstat(path)
            found[info.st_dev, info.st_ino] = info.st_blocks * 512

    if not top.is_dir():
        add(str(top))
    for folder, _, names in os.walk(top):
        for name in names:
            add(os.path.join(folder, name))
    return found


def _locks_held(cache: Cache) -> list[str]:
    """Return the names of the cache's locks that somebody holds; trying them would get in their holders' way."""
    with open("/proc/locks") as lines:  # "1: FLOCK  ADVISORY  WRITE 4711 fe:00:123456 0 EOF"
        held = {int(words[5].rpartition(":")[2]) for words in map(str.split, lines) if words[1] == "FLOCK"}
    return [path.name for path in cache.folder("locks").iterdir() if path.stat().st_ino in held]


def _remove(cache: Cache, item: Item) -> bool:
    """Remove an item, unless somebody builds it, or began to use it, at this moment."""
    prefix = KINDS[item.kind]
    lock = cache.folder("locks") / f"{prefix}{item.path.name}.lock"
    try:
        with filelock.FileLock(lock, timeout=0) if prefix else contextlib.nullcontext():
            if item.kind != "failures" and time.time() - _used(item.path) < RECENT_S:
                return False
            if item.kind == "images" and item.path in _images_in_use(cache):
                return False
            if not item.path.is_dir():
                item.path.unlink()
                return True
            (item.path / saved.MANIFEST).unlink(missing_ok=True)  # from here on it is not whole
            shutil.rmtree(item.path, ignore_errors=True)
    except filelock.Timeout:
        return False
    except FileNotFoundError:
        return True
    return not item.path.exists()
