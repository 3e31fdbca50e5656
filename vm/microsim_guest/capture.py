"""Keep a bounded part of an endless stream: its beginning and its end."""

import os
import threading
from typing import Tuple


class Capture:
    """Drain a file descriptor in a thread; memory stays bounded however much is written.

    Args:
        fd: Read end of a pipe; closed when the stream ends.
        limit: Bytes kept, half of them from the start and half from the end.

    Attributes:
        total: Bytes that were written.
    """

    def __init__(self, fd: int, limit: int) -> None:
        self._fd = fd
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        with os.fdopen(self._fd, "rb", buffering=0) as stream:
            while True:
                data = stream.read(65536)
                if not data:
                    return
                self.total += len(data)
                room = self._half - len(self._head)
                self._head += data[:room]
                self._tail = (self._tail + data[max(0, room) :])[-self._half :]

    def finish(self, timeout: float = 1.0) -> bytes:
        """Wait for the end of the stream and return what was kept, with a note where bytes are missing."""
        self._thread.join(timeout)
        return self.so_far()

    def so_far(self) -> bytes:
        """Return what was kept up to now."""
        missing = self.total - len(self._head) - len(self._tail)
        note = b"\n[... %d bytes left out ...]\n" % missing if missing > 0 else b""
        return bytes(self._head) + note + bytes(self._tail)


def pipe_to(limit: int) -> Tuple[int, Capture]:
    """Return ``(write end, Capture)`` of a new pipe."""
    read_end, write_end = os.pipe()
    return write_end, Capture(read_end, limit)
