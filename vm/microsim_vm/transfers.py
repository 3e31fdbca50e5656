"""Files and folders between host and guest. Neither side's links lead the other anywhere."""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from microsim_vm.errors import TransferError

if TYPE_CHECKING:
    from microsim_vm.filesystem import Filesystem, Stat

MAX_BYTES = 1 << 30
MAX_ENTRIES = 100_000
MAX_DEPTH = 100
PIECE = 8 << 20  # bytes per request: the link is the limit, and others get their turn in between
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REASONS = {"symlink": "a symbolic link", "other": "a FIFO, a socket or a device"}


@dataclass(frozen=True)
class Transfer:
    """What an upload or download has copied.

    Attributes:
        files: Number of regular files.
        size: Their bytes.
        skipped: What a download left out: (path below the source, reason).
    """

    files: int
    size: int
    skipped: tuple[tuple[str, str], ...] = ()


@dataclass
class _Tally:
    """Counts what is copied, up to a limit."""

    what: str
    max_bytes: int
    files: int = 0
    size: int = 0
    entries: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def add(self, path: str, size: int) -> None:
        """Count bytes of a file."""
        self.refuse_more(path, size)
        self.size += size

    def refuse_more(self, path: str, size: int) -> None:
        """Raise a TransferError where so many bytes more would be too many."""
        if self.size + size > self.max_bytes:
            raise TransferError(
                f"{self.what} is too large: {path} has {size} bytes, {self.size} bytes came before it, "
                f"and {self.max_bytes} bytes are the most",
                hint="name a smaller folder, or allow more with max_bytes",
            )

    def result(self) -> Transfer:
        """Return the sums."""
        return Transfer(self.files, self.size, tuple(self.skipped))


@dataclass(frozen=True)
class _Item:
    """One thing to be uploaded."""

    path: str
    info: os.stat_result
    link: str | None = None

    @property
    def mode(self) -> int:
        return stat.S_IMODE(self.info.st_mode)


def upload(files: Filesystem, source: str, target: str, max_bytes: int) -> Transfer:
    """See :meth:`microsim_vm.filesystem.Filesystem.upload`."""
    source = source.rstrip("/") or "/"  # with a slash at its end, a link would be followed
    info = os.lstat(source)
    tally = _Tally(f"the upload of {source}", max_bytes)
    if stat.S_ISREG(info.st_mode):
        tally.refuse_more(source, info.st_size)
        with _closing(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
            _send(files, fd, source, target, tally)
        return tally.result()
    if not stat.S_ISDIR(info.st_mode):
        raise TransferError(f"{source} is {_kind(info)}, neither a regular file nor a folder",
                            hint="name what it leads to" if stat.S_ISLNK(info.st_mode) else "")  # fmt: skip
    with _closing(os.open(source, FOLDER)) as root:
        items = list(_scan(root, source))
        planned = _Tally(tally.what, max_bytes)
        for item in items:
            if stat.S_ISREG(item.info.st_mode):
                planned.add(posixpath.join(source, item.path), item.info.st_size)
        folders = [item for item in items if stat.S_ISDIR(item.info.st_mode)]
        for item in folders:
            files._mkdir(posixpath.join(target, item.path), 0o700, None)
        for item in items:
            if item.link is not None:
                files._link(posixpath.join(target, item.path), item.link)
            elif stat.S_ISREG(item.info.st_mode):
                with _open_beneath(root, item.path) as fd:
                    _send(files, fd, posixpath.join(source, item.path), posixpath.join(target, item.path), tally)
        for item in reversed(folders):  # what is written into a folder changes its time
            files._mkdir(posixpath.join(target, item.path), item.mode, item.info.st_mtime_ns)
    return tally.result()


def _scan(root: int, source: str) -> Iterator[_Item]:
    """Yield the folder itself, as the path "", and all in it, parents first; refuse what cannot be sent."""
    yield _Item("", os.fstat(root))
    for folder, folders, others, fd in os.fwalk(".", dir_fd=root, onerror=_raise):
        for name in sorted([*folders, *others]):
            path = posixpath.normpath(posixpath.join(folder, name))
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISLNK(info.st_mode):
                yield _Item(path, info, _link_inside(source, path, os.readlink(name, dir_fd=fd)))
            elif stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode):
                yield _Item(path, info)
            else:
                raise TransferError(
                    f"{posixpath.join(source, path)} is {_kind(info)}; the upload of {source} was refused",
                    hint="leave it out of the folder",
                )


def _raise(error: OSError) -> None:
    raise error


def _link_inside(source: str, path: str, text: str) -> str:
    """Return the text of a link that leads to the same place in a copy of the folder."""
    root = os.path.realpath(source)
    link = os.path.join(root, path)
    real = os.path.realpath(link)
    if real != root and not real.startswith(root + "/"):
        raise TransferError(
            f"{posixpath.join(source, path)} is a link to {text}, which is outside of {source}; the upload was refused",
            hint="replace the link by a copy, or leave it out of the folder",
        )
    meant = posixpath.normpath(posixpath.join(posixpath.dirname(path), text))
    if meant.startswith("/") or meant.split("/")[0] == "..":  # it leaves the folder, and comes back by its name
        return os.path.relpath(real, os.path.dirname(link))
    return text


@contextlib.contextmanager
def _open_beneath(root: int, path: str) -> Iterator[int]:
    """Open a file below a folder, through no link: the folder may be changing."""
    *folders, name = path.split("/")
    with contextlib.ExitStack() as stack:
        at = root
        for folder in folders:
            at = stack.enter_context(_closing(os.open(folder, FOLDER, dir_fd=at)))
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        yield stack.enter_context(_closing(os.open(name, flags, dir_fd=at)))


def _send(files: Filesystem, fd: int, source: str, target: str, tally: _Tally) -> None:
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        raise TransferError(f"{source} became {_kind(info)} while it was uploaded")

    def piece(offset: int) -> bytes:
        tally.refuse_more(source, offset)
        return os.pread(fd, PIECE, offset)

    tally.add(source, files._write(target, piece, stat.S_IMODE(info.st_mode), info.st_mtime_ns))
    tally.files += 1


def download(files: Filesystem, source: str, target: str, max_bytes: int) -> Transfer:
    """See :meth:`microsim_vm.filesystem.Filesystem.download`."""
    target = os.path.abspath(target)
    info = files.stat(source)
    tally = _Tally(f"the download of {source}", max_bytes)
    if info.kind not in ("file", "dir"):
        raise TransferError(f"{source} is {_REASONS[info.kind]}, neither a regular file nor a folder",
                            hint="name what it leads to" if info.kind == "symlink" else "")  # fmt: skip
    parent, name = os.path.split(target)
    os.makedirs(parent, exist_ok=True)
    with _closing(os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        if info.kind == "file":
            _save(files, source, info, fd, name, tally)
        else:
            _save_folder(files, source, info, fd, name, "", tally)
    return tally.result()


def _save_folder(files: Filesystem, source: str, info: Stat, parent: int, name: str, below: str, tally: _Tally) -> None:
    """Copy a folder of the guest into an open folder of the host."""
    if below.count("/") > MAX_DEPTH:
        raise TransferError(f"{source} lies more than {MAX_DEPTH} folders deep")
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    try:
        folder = os.open(name, FOLDER, dir_fd=parent)
    except NotADirectoryError:
        raise TransferError(
            f"{name} is there on the host, as a link or a file, where {source} needs a folder",
            hint="download into a new folder",
        ) from None
    with _closing(folder):
        for entry in files._list(source, follow=False):
            tally.entries += 1
            if tally.entries > MAX_ENTRIES:
                raise TransferError(f"{tally.what} is too large: more than {MAX_ENTRIES} entries")
            path = posixpath.join(source, entry.name)
            if entry.kind == "dir":
                _save_folder(files, path, entry, folder, entry.name, f"{below}{entry.name}/", tally)
            elif entry.kind == "file":
                _save(files, path, entry, folder, entry.name, tally)
            else:
                tally.skipped.append((below + entry.name, _REASONS[entry.kind]))
        os.fchmod(folder, info.mode & 0o777 | 0o700)
        os.utime(folder, ns=(info.mtime_ns, info.mtime_ns))


def _save(files: Filesystem, source: str, info: Stat, folder: int, name: str, tally: _Tally) -> None:
    """Copy a file of the guest into an open folder of the host; whatever has its name there is replaced."""
    tally.refuse_more(source, info.size)
    partial = f".microsim-{uuid.uuid4().hex}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(partial, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            for piece in files.pieces(source, max_bytes=None, follow=False):
                tally.add(source, len(piece))
                file.write(piece)
            file.flush()
            os.fchmod(fd, info.mode & 0o777)
            os.utime(fd, ns=(info.mtime_ns, info.mtime_ns))
        os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(partial, dir_fd=folder)
        raise
    tally.files += 1


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def _kind(info: os.stat_result) -> str:
    names = {stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket",
             stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFDIR: "a folder"}  # fmt: skip
    return names.get(stat.S_IFMT(info.st_mode), "no regular file")
