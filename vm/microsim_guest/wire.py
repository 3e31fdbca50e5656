"""The framed protocol between host and guest, and between the guest's own processes.

A frame is an 8-byte prefix (two big-endian unsigned 32-bit lengths), a UTF-8 JSON header of the first
length, and raw bytes of the second length. The header is one JSON object; binary attachments follow each
other in the raw part, their lengths listed under ``"blobs"``.

Requests carry ``id``, ``op`` and ``args``. Every answer repeats the ``id`` and carries exactly one of
``event`` (streamed output, more to come), ``ok`` (the result) or ``error`` (``kind``, ``message``,
``traceback``): errors are data, never a broken link. ``gone`` alone is the guest's last word: its agent died.
"""

import array
import json
import os
import select
import socket
import struct
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

PREFIX = struct.Struct(">II")
MAX_HEADER = 4 * 1024 * 1024
MAX_BLOBS = 256 * 1024 * 1024
CHUNK = 64 * 1024


class ProtocolError(Exception):
    """The peer sent something that is not a frame; the link cannot be used any more."""


class LinkClosed(Exception):
    """The peer closed the link."""


class KnownError(Exception):
    """An error of ours, whose kind the host knows. A world's own exceptions may have a ``kind`` too."""

    kind = "guest"
    hint = ""


class Frame(NamedTuple):
    """One decoded frame: the JSON header, its binary attachments, and how many bytes the header's text had."""

    header: Dict[str, Any]
    blobs: Tuple[bytes, ...]
    header_size: int = 0


def encode(header: Dict[str, Any], blobs: Sequence[bytes] = ()) -> bytes:
    """Serialise one frame.

    Raises:
        ProtocolError: The frame is larger than the protocol allows.
    """
    if blobs:
        header = dict(header, blobs=[len(blob) for blob in blobs])
    text = json.dumps(header, separators=(",", ":")).encode()
    size = sum(len(blob) for blob in blobs)
    if len(text) > MAX_HEADER or size > MAX_BLOBS:
        raise ProtocolError(
            "frame too large: header {} bytes (limit {}), attachments {} bytes (limit {})".format(
                len(text), MAX_HEADER, size, MAX_BLOBS
            )
        )
    return b"".join((PREFIX.pack(len(text), size), text, *blobs))


def parse_prefix(prefix: bytes) -> Tuple[int, int]:
    """Check a frame's 8-byte prefix and return (header length, attachments length)."""
    header_size, blobs_size = PREFIX.unpack(prefix)
    if header_size > MAX_HEADER or blobs_size > MAX_BLOBS:
        raise ProtocolError("not a frame: it claims {} + {} bytes".format(header_size, blobs_size))
    return header_size, blobs_size


def decode(header: bytes, raw: bytes) -> Frame:
    """Decode a frame's two parts."""
    try:
        message = json.loads(header.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError("not a frame: {}".format(error)) from None
    lengths = message.get("blobs", []) if isinstance(message, dict) else None
    if not isinstance(lengths, list) or not all(type(n) is int and n >= 0 for n in lengths) or sum(lengths) != len(raw):
        raise ProtocolError("not a frame: its header does not describe its attachments")
    blobs: List[bytes] = []
    start = 0
    for length in lengths:
        blobs.append(raw[start : start + length])
        start += length
    return Frame(message, tuple(blobs), len(header))


class Link:
    """Frames out of a stream of bytes. Reading ahead, a small frame costs one call of the kernel and not three.

    Args:
        max_blobs: Most bytes of attachments that the peer may send in one frame.
        read_ahead: Whether more may be read than the frame that is asked for; not where others read the stream too.
        max_header: Most bytes of a frame's header.
    """

    def __init__(self, max_blobs: int, read_ahead: bool, max_header: int = MAX_HEADER) -> None:
        self._max_blobs = max_blobs
        self._max_header = max_header
        self._read_ahead = read_ahead
        self._buffer = bytearray()

    def _read(self, size: int, deadline: Optional[float]) -> bytes:
        """Read up to ``size`` bytes, at least one; none at the end of the stream."""
        raise NotImplementedError

    def _fill(self, size: int, deadline: Optional[float]) -> None:
        """Read until there are ``size`` bytes, or more."""
        while len(self._buffer) < size:
            missing = size - len(self._buffer)
            part = self._read(CHUNK if self._read_ahead else min(missing, CHUNK), deadline)
            if not part:
                raise LinkClosed
            self._buffer += part

    @property
    def unread(self) -> bool:
        """Whether bytes have been read that no frame was made of yet."""
        return bool(self._buffer)

    def receive(self, deadline: Optional[float] = None) -> Frame:
        """Read one frame. After a deadline has passed, the same frame can be waited for again.

        Args:
            deadline: Of ``time.monotonic()``, for the whole frame, however slowly its bytes arrive.

        Raises:
            socket.timeout: The deadline passed.
            LinkClosed: The peer closed the link.
            ProtocolError: What arrived is no frame, or one larger than allowed.
        """
        self._fill(PREFIX.size, deadline)
        header_size, blobs_size = parse_prefix(bytes(self._buffer[: PREFIX.size]))
        if header_size > self._max_header:
            raise ProtocolError("{} bytes of header, {} are allowed".format(header_size, self._max_header))
        if blobs_size > self._max_blobs:
            raise ProtocolError("{} bytes of attachments, {} are allowed".format(blobs_size, self._max_blobs))
        blobs_at, end = PREFIX.size + header_size, PREFIX.size + header_size + blobs_size
        self._fill(end, deadline)
        header, blobs = bytes(self._buffer[PREFIX.size : blobs_at]), bytes(self._buffer[blobs_at:end])
        del self._buffer[:end]
        return decode(header, blobs)

    def receive_line(self, longest: int, deadline: Optional[float] = None) -> bytes:
        """Read one line, without its end. After a deadline has passed, the same line can be waited for again.

        Raises:
            socket.timeout: The deadline passed.
            LinkClosed: The peer closed the link.
            ProtocolError: The line is longer than ``longest`` bytes, or the peer has closed the link within it.
        """
        searched = 0
        while True:
            end = self._buffer.find(b"\n", searched)
            if (len(self._buffer) if end < 0 else end) > longest:
                raise ProtocolError("its line is longer than {} bytes".format(longest))
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return line
            searched = len(self._buffer)
            try:
                self._fill(searched + 1, deadline)
            except LinkClosed:
                if searched:
                    raise ProtocolError("its line has no end: {!r}".format(bytes(self._buffer[:80]))) from None
                raise


class FdLink(Link):
    """Frames over a file descriptor that is read with ``read(2)``: the agent's channel to the host. No deadlines."""

    def __init__(self, fd: int) -> None:
        super().__init__(MAX_BLOBS, read_ahead=True)
        self.fd = fd

    def _read(self, size: int, deadline: Optional[float]) -> bytes:
        return os.read(self.fd, size)

    def send(self, header: Dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
        """Write one frame, blocking."""
        view = memoryview(encode(header, blobs))
        while view:
            view = view[os.write(self.fd, view[:CHUNK]) :]


class SocketLink(Link):
    """Frames over a stream socket, with an optional deadline per frame.

    Args:
        sock: The socket; it blocks.
        max_blobs: Most bytes of attachments that the peer may send in one frame.
        read_ahead: Whether nobody else reads from the socket.
        max_header: Most bytes of a frame's header.
    """

    def __init__(
        self, sock: socket.socket, max_blobs: int = MAX_BLOBS, *, read_ahead: bool = False, max_header: int = MAX_HEADER
    ) -> None:
        super().__init__(max_blobs, read_ahead, max_header)
        self.sock = sock
        self._unsent = bytearray()

    def _read(self, size: int, deadline: Optional[float]) -> bytes:
        if deadline is not None:
            self._wait(select.POLLIN, deadline)
        return self.sock.recv(size)

    def _wait(self, event: int, deadline: float) -> None:
        """Wait until something can be read or written; raise ``socket.timeout`` once the deadline has passed."""
        remaining = deadline - time.monotonic()
        poll = select.poll()
        poll.register(self.sock, event)
        if remaining <= 0 or not poll.poll(remaining * 1000.0):
            raise socket.timeout

    def send(self, header: Dict[str, Any], blobs: Sequence[bytes] = (), deadline: Optional[float] = None) -> None:
        """Write one frame. What a deadline leaves of it is written first the next time, or by :meth:`flush`.

        Raises:
            socket.timeout: The deadline passed.
        """
        self.send_bytes(encode(header, blobs), deadline)

    def send_bytes(self, data: bytes, deadline: Optional[float] = None) -> None:
        """Write bytes, as :meth:`send` does a frame.

        Raises:
            socket.timeout: The deadline passed.
        """
        self._unsent += data
        self.flush(deadline)

    def flush(self, deadline: Optional[float] = None) -> None:
        """Write what is left of what was to be sent before.

        Raises:
            socket.timeout: The deadline passed.
        """
        while self._unsent:
            try:
                del self._unsent[: self.sock.send(self._unsent, 0 if deadline is None else socket.MSG_DONTWAIT)]
            except BlockingIOError:
                assert deadline is not None
                self._wait(select.POLLOUT, deadline)


def send_command(
    sock: socket.socket,
    marker: bytes,
    header: Dict[str, Any],
    blobs: Sequence[bytes] = (),
    attached: Optional[socket.socket] = None,
) -> None:
    """Send a command, and a socket with it where one is given."""
    rights = [] if attached is None else [array.array("i", [attached.fileno()])]
    sock.sendmsg([marker], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, right) for right in rights])
    SocketLink(sock).send(header, blobs)


def receive_command(sock: socket.socket) -> Any:
    """Return ``(marker, frame, attached socket or None)``; :class:`LinkClosed` at the end."""
    descriptors = array.array("i")
    marker, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(descriptors.itemsize))
    if not marker:
        raise LinkClosed
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: descriptors.itemsize])
    attached = socket.socket(fileno=descriptors[0]) if descriptors else None
    return marker, SocketLink(sock).receive(), attached


def error_header(error: BaseException, traceback_text: str = "") -> Dict[str, Any]:
    """Describe an exception as the ``error`` member of an answer."""
    try:
        message = str(error)
    except Exception:  # a user's exception class may be broken too
        message = "<its message cannot be shown>"
    return {
        "kind": error.kind if isinstance(error, KnownError) else type(error).__name__,
        "hint": error.hint if isinstance(error, KnownError) else "",
        "message": message[:4000],
        "traceback": traceback_text[-16000:],
    }
