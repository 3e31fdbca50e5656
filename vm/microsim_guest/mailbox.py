"""The deterministic machine's end of its channel: requests that lie in its memory before it runs, answers left there.

A part of the machine's memory belongs to no kernel. When the machine is saved, the agent looks at one byte there
again and again. A fork's host writes all requests into that part, and the byte last, before the fork's first
instruction; and nothing reaches it after that. When the last request is answered the machine stops itself, at one
instruction.

The part has the requests first: a length in 4 bytes, three of nothing, that byte, then frames of
:mod:`microsim_guest.wire`. The byte is always the same: how soon it is seen may not depend on what comes after it.
At :data:`OUT` follow a status in 8 bytes, a length in 8 bytes, and the frames of the answers.
"""

import mmap
import os
import struct
import threading
from typing import Any, Dict, Optional, Sequence

from microsim_guest import wire

AT = 96 << 20  # address in the machine's memory; a kernel that is not relocated ends well before
SIZE = 32 << 20
OUT = 8 << 20  # where the answers begin
LENGTH = struct.Struct("<I3xB")
HEAD = struct.Struct("<QQ")
ANSWERED, FULL = 1, 2  # statuses; 0: it was not the agent that has stopped the machine
# A device that is told of panics, and stops the machine at once: vendor, device, and what to write.
STOPPER, STOP = ("0x1b36", "0x0011"), 1
PCI = "/sys/bus/pci/devices"


class MailboxLink(wire.Link):
    """Frames out of that part of the memory, and into it.

    The next request is not read before the last one is answered, as if it had come from a host that waits.
    """

    def __init__(self) -> None:
        super().__init__(wire.MAX_BLOBS, read_ahead=False)
        memory = os.open("/dev/mem", os.O_RDWR | os.O_CLOEXEC)
        self._box = mmap.mmap(memory, SIZE, offset=AT)
        stopper = _stopper()
        self._offset = stopper % mmap.PAGESIZE
        self._stopper = mmap.mmap(memory, mmap.PAGESIZE, offset=stopper - self._offset)
        os.close(memory)
        self._taken = 0
        self._written = 0
        self._answered = threading.Condition()
        self._open: Optional[str] = None

    def wait(self) -> None:
        """Keep the processor until there are requests: a machine that was idle when it was saved would begin by
        waiting for a timer, and that is a race with its host."""
        box, there = memoryview(self._box), LENGTH.size - 1
        while not box[there]:
            pass

    def receive(self, deadline: Optional[float] = None) -> wire.Frame:
        """Return the next request, once the last one is answered; stop the machine after the last."""
        with self._answered:
            self._answered.wait_for(lambda: self._open is None)
        if self._taken == LENGTH.unpack_from(self._box)[0]:
            self._stop(ANSWERED)
        frame = super().receive()
        self._open = str(frame.header["id"])
        return frame

    def _read(self, size: int, deadline: Optional[float]) -> bytes:
        start = LENGTH.size + self._taken
        self._taken += size
        return self._box[start : start + size]

    def send(self, header: Dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
        """Leave one frame; stop the machine where there is no room for it."""
        data = wire.encode(header, blobs)
        start = OUT + HEAD.size + self._written
        if start + len(data) > SIZE:
            self._stop(FULL)
        self._box[start : start + len(data)] = data
        self._written += len(data)
        if "event" not in header and str(header.get("id")) == self._open:
            with self._answered:
                self._open = None
                self._answered.notify_all()

    def _stop(self, status: int) -> None:
        HEAD.pack_into(self._box, OUT, status, self._written)
        self._stopper[self._offset] = STOP
        raise AssertionError("the machine runs on after its end")


def _stopper() -> int:
    """Return the address of the device that stops the machine, and let it be reached.

    Raises:
        FileNotFoundError: The machine has none.
    """
    for name in sorted(os.listdir(PCI)):
        folder = os.path.join(PCI, name)
        if tuple(_line(folder, each) for each in ("vendor", "device")) == STOPPER:
            with open(os.path.join(folder, "enable"), "w") as enable:
                enable.write("1")
            return int(_line(folder, "resource").split()[0], 16)
    raise FileNotFoundError("this machine has no device that stops it")


def _line(folder: str, name: str) -> str:
    with open(os.path.join(folder, name)) as file:
        return file.readline().strip()
