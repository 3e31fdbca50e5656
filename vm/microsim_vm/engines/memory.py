"""The memory of a running guest, from outside: the pages it has written, copied out and put into another guest.

A fork maps its snapshot's memory file copy-on-write, so what it has written since is what the kernel holds as
anonymous pages of that mapping. A saved guest is therefore the file that it was forked from (a hard link, no copy)
and ``pages``: the differences. A guest started from both shares the file's memory like any other fork.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from microsim_vm.errors import SnapshotError

RAM, PAGES = "ram", "pages"
PAGE = mmap.PAGESIZE
# Bits of an entry's highest byte in /proc/<pid>/pagemap (Linux: Documentation/admin-guide/mm/pagemap.rst).
PRESENT, SWAPPED, FILE = 1 << 7, 1 << 6, 1 << 5
ENTRY_BYTES = 8
OWN = bytes(bool(bits & (PRESENT | SWAPPED) and not bits & FILE) for bits in range(256))
COUNT = struct.Struct("=Q")
MAX_RUN = 16 << 20  # bytes read at a time


class Mapping(NamedTuple):
    """A part of a memory file in a process's address space."""

    start: int
    end: int
    offset: int

    @property
    def reach(self) -> int:
        """Where in the file it ends."""
        return self.offset + self.end - self.start


def link(fd: int, target: Path) -> None:
    """Give an open memory file one more name, whatever became of the name that it was opened by.

    Raises:
        SnapshotError: It has no name left.
    """
    descriptors = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a folder Python calls linkat(2), which alone can follow the link that a descriptor is there.
        os.link(str(fd), target, src_dir_fd=descriptors, follow_symlinks=True)
    except FileNotFoundError:
        raise SnapshotError(
            "the memory file that this guest was forked from is gone",
            cause="the cache was emptied while a guest forked from it was running",
            hint="start again: it is warmed up anew",
        ) from None
    finally:
        os.close(descriptors)


def copy_out(pid: int, folder: Path) -> None:
    """Write the pages that differ from ``folder/ram`` in a stopped guest to ``folder/pages``.

    Raises:
        SnapshotError: The kernel does not let us read the guest's memory.
    """
    with memory(pid, os.O_RDONLY) as source, open(folder / PAGES, "wb") as file:
        runs = [run for mapping in mappings(pid, folder / RAM) for run in written(pid, mapping)]
        file.write(COUNT.pack(len(runs)))
        file.write(array("Q", [number for _, offset, size in runs for number in (offset, size)]).tobytes())
        for address, _, size in runs:
            for start in range(0, size, MAX_RUN):
                file.write(os.pread(source, min(MAX_RUN, size - start), address + start))


def copy_in(pid: int, folder: Path) -> None:
    """Put ``folder/pages`` into a guest that maps ``folder/ram`` and has not run yet.

    Raises:
        SnapshotError: The kernel does not let us write the guest's memory.
    """
    with memory(pid, os.O_RDWR) as target:
        mapped = mappings(pid, folder / RAM)
        for offset, data in _pages(folder):
            # /proc/<pid>/mem heeds no protection: what is outside the guest's memory is the engine's own.
            where = [part for part in mapped if part.offset <= offset and offset + len(data) <= part.reach]
            if not where:
                raise SnapshotError("the engine has mapped the guest's memory in another way than it was saved")
            write_all(target, data, where[0].start + offset - where[0].offset)


def flatten(folder: Path) -> None:
    """Turn a file and its differences into one file, so that forks share all of it."""
    whole = folder / "ram.partial"
    try:
        with open(folder / RAM, "rb") as source, open(whole, "wb") as target:
            size = os.fstat(source.fileno()).st_size
            target.truncate(size)
            for start, end in _extents(source.fileno(), size):
                while start < end:
                    start += os.copy_file_range(source.fileno(), target.fileno(), end - start, start, start)
            for offset, data in _pages(folder):
                write_all(target.fileno(), data, offset)
        os.replace(whole, folder / RAM)
    finally:
        whole.unlink(missing_ok=True)
    (folder / PAGES).unlink()


@contextlib.contextmanager
def memory(pid: int, flags: int) -> Iterator[int]:
    """Open a process's memory, which is read and written at its own addresses.

    Raises:
        SnapshotError: The kernel does not let us.
    """
    try:
        fd = os.open(f"/proc/{pid}/mem", flags | os.O_CLOEXEC)
    except PermissionError:
        raise SnapshotError(
            "the kernel does not let this user reach the memory of a running guest",
            cause="kernel.yama.ptrace_scope is 2 or 3, or a container forbids ptrace",
            hint="set it to 0 or 1, or allow SYS_PTRACE",
        ) from None
    try:
        yield fd
    finally:
        os.close(fd)


def mappings(pid: int, ram: Path) -> list[Mapping]:
    """Return where a process has mapped a file."""
    inode = ram.stat().st_ino
    found = []
    with open(f"/proc/{pid}/maps") as lines:
        for line in lines:
            span, _, offset, _, number, *_ = line.split(maxsplit=5)
            if int(number) == inode:
                start, _, end = span.partition("-")
                found.append(Mapping(int(start, 16), int(end, 16), int(offset, 16)))
    return found


def written(pid: int, mapping: Mapping) -> list[tuple[int, int, int]]:
    """Return (address, offset in the file, size) of each run of pages that are the guest's own."""
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as file:
        file.seek(mapping.start // PAGE * ENTRY_BYTES)
        entries = file.read((mapping.end - mapping.start) // PAGE * ENTRY_BYTES)
    own = entries[ENTRY_BYTES - 1 :: ENTRY_BYTES].translate(OWN)
    runs = []
    first = own.find(1)
    while first >= 0:
        last = own.find(0, first)
        last = len(own) if last < 0 else last
        runs.append((mapping.start + first * PAGE, mapping.offset + first * PAGE, (last - first) * PAGE))
        first = own.find(1, last)
    return runs


def check(folder: Path) -> None:
    """Refuse differences that do not fit their memory file.

    Raises:
        SnapshotError: They were damaged, or made by hand.
    """
    if (folder / PAGES).exists():
        with open(folder / PAGES, "rb") as file:
            _index(file, (folder / RAM).stat().st_size)


def _pages(folder: Path) -> Iterator[tuple[int, memoryview]]:
    """Yield (offset, bytes) of each run of differing pages."""
    with open(folder / PAGES, "rb") as file:
        index = _index(file, (folder / RAM).stat().st_size)
        place = file.tell()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            for offset, size in zip(index[::2], index[1::2], strict=True):
                with view[place : place + size] as data:
                    yield offset, data
                place += size


def _index(file: BinaryIO, ram_bytes: int) -> array[int]:
    """Read (offset, size) of each run, and refuse what is not as :func:`copy_out` writes it."""
    length = os.fstat(file.fileno()).st_size
    (count,) = COUNT.unpack(file.read(COUNT.size).ljust(COUNT.size, b"\0"))
    index = array("Q")
    if count <= ram_bytes // PAGE:
        index.frombytes(file.read(2 * index.itemsize * count)[: length // 16 * 16])
    end = 0
    for offset, size in zip(index[::2], index[1::2], strict=True):
        if offset < end or offset % PAGE or size % PAGE or not size or offset + size > ram_bytes:
            break
        end = offset + size
    else:
        if len(index) == 2 * count and file.tell() + sum(index[1::2]) == length:
            return index
    raise SnapshotError(
        f"{file.name} does not fit its memory file", cause="it was damaged, or made by hand",
        hint="make the snapshot again",
    )  # fmt: skip


def _extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each part of a sparse file that holds data."""
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError:  # only a hole is left
            return
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end


def write_all(fd: int, data: memoryview, offset: int) -> None:
    """Write all of some bytes at a place of a file."""
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done
