"""The guest's file system for the host: regular files, folders and links, in bounded pieces."""

import json
import os
import shutil
import stat
from typing import Any, Callable, Dict, List, Optional, Tuple

MAX_PIECE = 64 * 1024 * 1024
MAX_ENTRIES = 50_000
KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink"}
SPECIAL = {
    stat.S_IFDIR: "a folder", stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device", stat.S_IFBLK: "a block device",
}  # fmt: skip
Answer = Tuple[Dict[str, Any], List[bytes]]


def read(path: str, offset: int, length: int, max_bytes: Optional[int] = None, follow: bool = True) -> Answer:
    """Return a piece of a regular file; a FIFO or a device would never end and is refused.

    Args:
        path: The file.
        offset: Where to begin, in bytes.
        length: How many bytes at most; no more than ``MAX_PIECE``.
        max_bytes: Refuse a file that is larger.
        follow: Follow a link at the path's end.

    Returns:
        ``size`` (of the whole file), ``file`` (its identity), ``end`` (nothing comes after this piece), and the
        piece.
    """
    fd = _open_regular(path, follow)
    try:
        info = os.fstat(fd)
        if max_bytes is not None and info.st_size > max_bytes:
            raise OSError("{} is too large: {} bytes, and {} bytes are the most".format(path, info.st_size, max_bytes))
        if offset:  # /proc has files that can be read from their start alone
            os.lseek(fd, offset, os.SEEK_SET)
        parts: List[bytes] = []
        left = min(length, MAX_PIECE)
        end = False
        while left and not end:
            part = os.read(fd, min(left, 1 << 20))
            parts.append(part)
            left -= len(part)
            end = not part
        return {"size": info.st_size, "file": [info.st_dev, info.st_ino], "end": end}, [b"".join(parts)]
    finally:
        os.close(fd)


def _open_regular(path: str, follow: bool) -> int:
    """Open a regular file for reading; nothing else is opened at all, as that alone may block or set things off."""
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        kind = stat.S_IFMT(os.fstat(handle).st_mode)
        if kind != stat.S_IFREG:
            raise OSError("{} is {}, not a regular file".format(path, SPECIAL.get(kind, "something else")))
        return os.open("/proc/self/fd/{}".format(handle), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(handle)


def write(path: str, data: bytes, part: str, offset: int, last: bool, mode: int, mtime_ns: Optional[int]) -> Answer:
    """Write a file in pieces, creating its folders; it is visible under its name only when complete.

    Args:
        path: The file; whatever is there and is no folder is replaced, also a link.
        data: The piece.
        part: The file's name until then: one that nobody can guess, so that nobody puts a link in its place.
        offset: Where the piece belongs, in bytes.
        last: Nothing comes after it.
        mode: Permission bits.
        mtime_ns: Time of modification, nanoseconds; None for now.
    """
    partial = _partial(path, part)
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    if offset == 0:
        os.makedirs(os.path.dirname(partial), exist_ok=True)
        flags |= os.O_CREAT | os.O_EXCL
    fd = os.open(partial, flags, 0o600)
    try:
        try:
            view = memoryview(data)
            while view:
                count = os.pwrite(fd, view, offset)
                view, offset = view[count:], offset + count
            if last:
                os.fchmod(fd, mode)
                if mtime_ns is not None:
                    os.utime(fd, ns=(mtime_ns, mtime_ns))
        finally:
            os.close(fd)
        if last:
            os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
    return {}, []


def discard(path: str, part: str) -> Answer:
    """Give up a file that was written in part."""
    os.unlink(_partial(path, part))
    return {}, []


def _partial(path: str, part: str) -> str:
    return os.path.join(os.path.dirname(path) or "/", ".microsim-" + part)


def listing(path: str, follow: bool) -> Answer:
    """List a folder as JSON, sorted by name: rows of a name and what :func:`status` says."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    rows = []
    try:
        with os.scandir(fd) as scan:
            for entry in scan:
                try:
                    rows.append([entry.name, *_row(entry.stat(follow_symlinks=False))])
                except FileNotFoundError:
                    continue  # gone since
                if len(rows) > MAX_ENTRIES:
                    raise OSError("{} has more than {} entries".format(path, MAX_ENTRIES))
    finally:
        os.close(fd)
    return {}, [json.dumps(sorted(rows)).encode()]


def status(path: str, missing_ok: bool) -> Answer:
    """Describe what is at a path, never following a link at its end; ``stat`` is null for nothing."""
    try:
        return {"stat": _row(os.lstat(path))}, []
    except (FileNotFoundError, NotADirectoryError):
        if missing_ok:
            return {"stat": None}, []
        raise


def _row(info: os.stat_result) -> List[Any]:
    kind = KINDS.get(stat.S_IFMT(info.st_mode), "other")
    return [kind, info.st_size, stat.S_IMODE(info.st_mode), info.st_mtime_ns, info.st_uid, info.st_gid]


def remove(path: str, recursive: bool) -> Answer:
    """Remove a file, a link or an empty folder; with ``recursive`` a folder with all that is in it."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
    elif recursive and os.path.realpath(path) != "/":
        shutil.rmtree(path)
    else:
        os.rmdir(path)
    return {}, []


def make_folder(path: str, mode: Optional[int], mtime_ns: Optional[int]) -> Answer:
    """Create a folder and those above it, where they are missing; set its mode and time where given."""
    os.makedirs(path, exist_ok=True)
    if mode is not None:
        os.chmod(path, mode)
    if mtime_ns is not None:
        os.utime(path, ns=(mtime_ns, mtime_ns))
    return {}, []


def make_link(path: str, target: str, part: str) -> Answer:
    """Create a symbolic link, in place of whatever is there and is no folder."""
    partial = _partial(path, part)
    os.makedirs(os.path.dirname(partial), exist_ok=True)
    os.symlink(target, partial)
    try:
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
    return {}, []


def handle(op: str, args: Dict[str, Any], blobs: Tuple[bytes, ...]) -> Answer:
    """Answer one request of the host's, such as ``files.read``."""
    if op == "files.write":
        return write(data=blobs[0], **args)
    try:
        answer = _OPERATIONS[op]
    except KeyError:
        raise ValueError("unknown operation {!r}".format(op)) from None
    return answer(**args)


_OPERATIONS: Dict[str, Callable[..., Answer]] = {
    "files.read": read,
    "files.discard": discard,
    "files.list": listing,
    "files.stat": status,
    "files.remove": remove,
    "files.mkdir": make_folder,
    "files.link": make_link,
}
