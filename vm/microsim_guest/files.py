"""The guest's file system for the host: read, write, list. Bounded, and regular files only."""

import os
import stat
import tempfile
from typing import Any, Dict, List, Tuple

MAX_FILE = 128 * 1024 * 1024
MAX_ENTRIES = 50_000


def read(path: str) -> Tuple[Dict[str, Any], List[bytes]]:
    """Return a regular file's bytes; a FIFO or a device would never end and is refused."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError("{} is not a regular file".format(path))
        parts: List[bytes] = []
        size = 0
        while True:
            part = os.read(fd, 1 << 20)
            if not part:
                return {"size": size}, [b"".join(parts)]
            size += len(part)
            if size > MAX_FILE:
                raise OSError("{} is larger than {} bytes".format(path, MAX_FILE))
            parts.append(part)
    finally:
        os.close(fd)


def write(path: str, data: bytes, mode: int) -> Dict[str, Any]:
    """Write a whole file, creating its folders; visible under its name only when complete."""
    folder = os.path.dirname(path) or "/"
    os.makedirs(folder, exist_ok=True)
    # An unpredictable, exclusive name: a controller cannot put a link or a pipe in its place.
    fd, partial = tempfile.mkstemp(prefix=".microsim-", dir=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
    return {"size": len(data)}


def listing(path: str) -> Dict[str, Any]:
    """List a folder, sorted by name."""
    entries = []
    with os.scandir(path) as scan:
        for entry in scan:
            info = entry.stat(follow_symlinks=False)
            entries.append([entry.name, info.st_size, entry.is_dir(follow_symlinks=False)])
            if len(entries) > MAX_ENTRIES:
                raise OSError("{} has more than {} entries".format(path, MAX_ENTRIES))
    return {"entries": sorted(entries)}
