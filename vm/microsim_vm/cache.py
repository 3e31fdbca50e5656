"""Where things are kept between sessions, and the locks that make one process build each of them."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import filelock
import platformdirs

from microsim_vm import owner
from microsim_vm.errors import BakeError, CapacityError, MicrosimError, NoSpaceError
from microsim_vm.options import Options
from microsim_vm.tools import Progress

SPACE_HINT = "free some space there, or choose another place with --microsim-cache-dir"
LEAST_FREE = 1 << 20  # bytes; below it, whatever fails is taken to fail for that
_STAGED = {
    "base": "the base system", "python": "the Python packages", "world": "the world layer", "snapshot": "a snapshot",
    "branch": "a copy of a running guest", "fork": "a copy of a running guest", "saved": "a saved snapshot",
    "hibernate": "a sandbox that is to hibernate", "import": "an imported snapshot", "volume": "a volume",
    "capture": "a capture of a network", "probe": "a guest that is tried",
}  # fmt: skip


class Cache:
    """The cache directory: bases, python layers, wheels, images, snapshots, locks.

    Args:
        root: The directory; None for the user's cache directory (or ``$MICROSIM_CACHE_DIR``).
    """

    def __init__(self, root: Path | None = None) -> None:
        default = os.environ.get("MICROSIM_CACHE_DIR") or platformdirs.user_cache_dir("microsim")
        self.root = Path(root or default).absolute()

    @classmethod
    def of(cls, options: Options | None) -> Cache:
        """Return the cache that these options name; the user's where there are none."""
        return cls(options.cache_dir if options is not None else None)

    def folder(self, *parts: str) -> Path:
        """Return a folder of the cache, created."""
        path = self.root.joinpath(*parts)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BakeError(
                f"cannot create the cache folder {path}: {error.strerror}",
                hint="choose another one with --microsim-cache-dir or MICROSIM_CACHE_DIR",
            ) from error
        return path

    @contextlib.contextmanager
    def lock(self, name: str, *, what: str, progress: Progress, timeout_s: float) -> Iterator[None]:
        """Hold the lock of one thing to build; the kernel frees it when its holder dies.

        Raises:
            BakeError: Another live process has held it for ``timeout_s``.
        """
        path = self.folder("locks") / f"{name}.lock"
        lock = filelock.FileLock(path)
        deadline = time.monotonic() + timeout_s
        waited = 0.0
        while True:
            try:
                lock.acquire(timeout=0 if waited == 0.0 else 0.25)
                break
            except filelock.Timeout:
                if time.monotonic() > deadline:
                    raise BakeError(
                        f"waited {timeout_s:.0f} s for another process to finish {what}",
                        cause="it hangs, or the machine is overloaded",
                        hint=f"see which process holds {path} (fuser {path})",
                    ) from None
                if waited % 10.0 < 0.25:
                    progress(f"waiting for another process: {what}")
                waited += 0.25
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def staging(self, kind: str) -> Iterator[Path]:
        """Yield a scratch folder on the cache's own file system, removed at the end.

        Raises:
            NoSpaceError: What the block does has failed, and the disk is full.
        """
        path = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=self.folder("staging")))
        try:
            with naming_full_disk(_STAGED.get(kind, f"a {kind}"), self.root):  # before the folder is removed
                owner.write(path, owner.Process.current())
                work = path / "work"
                work.mkdir()
                yield work
        finally:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def naming_full_disk(what: str, folder: Path, hint: str = SPACE_HINT) -> Iterator[None]:
    """Say so where what the block does fails and the disk of a folder is full: engines and tools rarely do.

    Args:
        what: What is written there.
        folder: Where.
        hint: The next step.

    Raises:
        NoSpaceError: In place of what the block has raised, which is among its details.
    """
    try:
        yield
    except (OSError, MicrosimError) as error:
        if not _for_want_of_space(error, folder):
            raise
        raise NoSpaceError(
            f"no space left for {what}: the disk of {folder} is full",
            cause="something else has filled it meanwhile, or it had just enough to begin with",
            hint=hint,
            details=str(error),
        ) from error


def _for_want_of_space(error: OSError | MicrosimError, folder: Path) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, NoSpaceError | CapacityError):  # what is short is known
        return False
    said = isinstance(error, BakeError) and "No space left on device" in error.details
    return said or shutil.disk_usage(folder).free < LEAST_FREE


def need_space(path: Path, need_bytes: int, what: str) -> None:
    """Refuse up front what will not fit.

    Raises:
        NoSpaceError: Says need, have and path.
    """
    have = shutil.disk_usage(path).free
    if have < need_bytes:
        raise NoSpaceError(
            f"no space for {what}: need {need_bytes >> 20} MiB, have {have >> 20} MiB in {path}",
            hint=SPACE_HINT,
        )
