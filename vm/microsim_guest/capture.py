"""Keep a bounded part of an endless stream: its beginning and its end."""

import collections
import os
import threading
from typing import Deque, Tuple

READ_BYTES = 65536


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
        self._tail: Deque[bytearray] = collections.deque()  # full chunks, but for the last one
        self._tail_size = 0
        self._lock = threading.Lock()
        self.total = 0
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        with os.fdopen(self._fd, "rb", buffering=0) as stream:
            while True:
                data = stream.read(READ_BYTES)
                if not data:
                    return
                with self._lock:
                    self._keep(data)

    def _keep(self, data: bytes) -> None:
        self.total += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        rest = data[max(0, room) :]
        if self._tail and len(self._tail[-1]) + len(rest) <= READ_BYTES:  # not one object per byte written
            self._tail[-1] += rest
        elif rest:
            self._tail.append(bytearray(rest))
        self._tail_size += len(rest)
        while self._tail and self._tail_size - len(self._tail[0]) >= self._half:
            self._tail_size -= len(self._tail.popleft())

    def finish(self, timeout: float = 1.0) -> bytes:
        """Wait for the end of the stream and return what was kept, with a note where bytes are missing."""
        self._thread.join(timeout)
        return self.so_far()

    def so_far(self) -> bytes:
        """Return what was kept up to now."""
        with self._lock:
            head, tail, total = bytes(self._head), b"".join(self._tail)[-self._half :], self.total
        missing = total - len(head) - len(tail)
        note = b"\n[... %d bytes left out ...]\n" % missing if missing > 0 else b""
        return head + note + tail


def pipe_to(limit: int) -> Tuple[int, Capture]:
    """Return ``(write end, Capture)`` of a new pipe."""
    read_end, write_end = os.pipe()
    return write_end, Capture(read_end, limit)
