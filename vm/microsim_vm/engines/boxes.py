"""The host's side of a deterministic machine's mailbox, and the digest of all that such a machine is at its end."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from microsim_guest import mailbox

from microsim_vm.engines import memory
from microsim_vm.engines.memory import PAGE, RAM
from microsim_vm.engines.qemu import STATE
from microsim_vm.errors import SnapshotError

INPUT = range(mailbox.AT, mailbox.AT + mailbox.OUT)
MOST_INPUT = mailbox.OUT - mailbox.LENGTH.size
# The one section of the device state that differs from run to run. It has the offsets of the host's own clocks, which
# no clock of this machine is derived from; what was added to the count for the times that the processor was idle, which
# QEMU goes on adding to while it stops, when no timer runs any more; and last the count of instructions, which counts.
CLOCKS, COUNT = "timer", slice(-8, None)
_FULL, _FOOTER, _END = b"\x04", b"\x7e", b"\0"
_HEADER = struct.Struct(">IB")


def fill(pid: int, folder: Path, frames: bytes) -> None:
    """Put requests into the memory of a fork that has not run yet.

    Args:
        pid: Its QEMU.
        folder: The snapshot that it was forked from.
        frames: At most :data:`MOST_INPUT` bytes.

    Raises:
        SnapshotError: The kernel does not let us.
    """
    start = _place(pid, folder)
    with memory.memory(pid, os.O_RDWR) as target:
        for offset, data in ((mailbox.LENGTH.size, frames), (0, mailbox.LENGTH.pack(len(frames), True))):
            memory.write_all(target, memoryview(data), start + offset)


def answers(pid: int, folder: Path) -> tuple[int, bytes]:
    """Return the status of a machine that has stopped, and the frames that it left.

    Raises:
        SnapshotError: The kernel does not let us.
    """
    start = _place(pid, folder) + mailbox.OUT
    with memory.memory(pid, os.O_RDONLY) as source:
        status, size = mailbox.HEAD.unpack(os.pread(source, mailbox.HEAD.size, start))
        most = mailbox.SIZE - mailbox.OUT - mailbox.HEAD.size
        return status, os.pread(source, min(size, most), start + mailbox.HEAD.size)


def digest(pid: int, folder: Path, state: Path) -> str:
    """Return a digest of a stopped machine: what differs of its memory from its snapshot's, and its devices.

    The requests are not in it, and of the host's clocks only the count of the machine's instructions.

    Args:
        pid: Its QEMU.
        folder: The snapshot that it was forked from.
        state: The folder with its devices' state.

    Raises:
        SnapshotError: The kernel does not let us read its memory.
    """
    total = hashlib.sha256()
    for offset, page in _differing(pid, folder):
        total.update(offset.to_bytes(8, "little") + page)
    for name, data in sorted(sections((state / STATE).read_bytes())):
        kept = data[COUNT] if name == CLOCKS else data
        total.update(name.encode() + len(kept).to_bytes(8, "little") + kept)
    return total.hexdigest()


def _place(pid: int, folder: Path) -> int:
    """Return where the mailbox is in a QEMU's address space."""
    for mapping in memory.mappings(pid, folder / RAM):
        if mapping.offset <= mailbox.AT and mapping.reach >= mailbox.AT + mailbox.SIZE:
            return mapping.start + mailbox.AT - mapping.offset
    raise SnapshotError("the engine has mapped the guest's memory in another way than it was saved")


def _differing(pid: int, folder: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of each page that is not as the snapshot has it; written and the same is the same."""
    with memory.memory(pid, os.O_RDONLY) as source, open(folder / RAM, "rb", buffering=0) as saved:
        for mapping in memory.mappings(pid, folder / RAM):
            for address, offset, size in memory.written(pid, mapping):
                for start in range(0, size, memory.MAX_RUN):
                    most = min(memory.MAX_RUN, size - start)
                    now = os.pread(source, most, address + start)
                    before = os.pread(saved.fileno(), most, offset + start)
                    for at in range(0, most, PAGE):
                        page = now[at : at + PAGE]
                        if page != before[at : at + PAGE] and offset + start + at not in INPUT:
                            yield offset + start + at, page


def sections(state: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the name and bytes of each section of a device state, as QEMU writes it: a header, data, a footer.

    Raises:
        SnapshotError: It is none.
    """
    at = 8  # a magic number and a version
    while state[at : at + 1] == _FULL:
        identity, length = _HEADER.unpack_from(state, at + 1)
        begin = at + 1 + _HEADER.size
        name = state[begin : begin + length].decode("ascii", "replace")
        begin += length + 8  # numbers of the instance and the version
        footer = _FOOTER + identity.to_bytes(4, "big")
        end = state.find(footer, begin)
        while end >= 0 and not _follows(state, end + len(footer), identity):
            end = state.find(footer, end + 1)
        if end < 0:
            break
        yield name, state[begin:end]
        at = end + len(footer)
    if state[at : at + 1] != _END:
        raise SnapshotError("the devices' state is not as QEMU writes it")


def _follows(state: bytes, at: int, identity: int) -> bool:
    """Tell whether another section begins here, or the end: data can look like a footer."""
    if state[at : at + 1] == _END:
        return at + 1 >= len(state) or b"\x7e" not in state[at:]
    if state[at : at + 1] != _FULL or at + 6 > len(state):
        return False
    following, _ = _HEADER.unpack_from(state, at + 1)
    return bool(following > identity)
