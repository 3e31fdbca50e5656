"""The framed protocol between host and guest, and between the guest's own processes.

A frame is an 8-byte prefix (two big-endian unsigned 32-bit lengths), a UTF-8 JSON header of the first
length, and raw bytes of the second length. The header is one JSON object; binary attachments follow each
other in the raw part, their lengths listed under ``"blobs"``.

Requests carry ``id``, ``op`` and ``args``. Every answer repeats the ``id`` and carries exactly one of
``event`` (streamed output, more to come), ``ok`` (the result) or ``error`` (``kind``, ``message``,
``traceback``): errors are data, never a broken link.
"""

import json
import os
import socket
import struct
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

PREFIX = struct.Struct(">II")
MAX_HEADER = 4 * 1024 * 1024
MAX_BLOBS = 256 * 1024 * 1024
CHUNK = 64 * 1024


class ProtocolError(Exception):
    """The peer sent something that is not a frame; the link cannot be used any more."""


class LinkClosed(Exception):
    """The peer closed the link."""


class Frame(NamedTuple):
    """One decoded frame: the JSON header and its binary attachments."""

    header: Dict[str, Any]
    blobs: Tuple[bytes, ...]


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
        lengths = message.get("blobs", []) if isinstance(message, dict) else None
    except ValueError as error:
        raise ProtocolError("not a frame: {}".format(error)) from None
    if lengths is None or not all(type(n) is int and n >= 0 for n in lengths) or sum(lengths) != len(raw):
        raise ProtocolError("not a frame: its header does not describe its attachments")
    blobs: List[bytes] = []
    start = 0
    for length in lengths:
        blobs.append(raw[start : start + length])
        start += length
    return Frame(message, tuple(blobs))


class FdLink:
    """Frames over a file descriptor that is read with ``read(2)``: the agent's virtio-serial port."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def _read_exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = os.read(self.fd, min(size, CHUNK))
            if not part:
                raise LinkClosed
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def receive(self) -> Frame:
        """Read one frame, blocking."""
        header_size, blobs_size = parse_prefix(self._read_exactly(PREFIX.size))
        return decode(self._read_exactly(header_size), self._read_exactly(blobs_size))

    def send(self, header: Dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
        """Write one frame, blocking."""
        view = memoryview(encode(header, blobs))
        while view:
            view = view[os.write(self.fd, view[:CHUNK]) :]


class SocketLink:
    """Frames over a stream socket, with an optional deadline per receive."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def _read_exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self.sock.recv(min(size, CHUNK))
            if not part:
                raise LinkClosed
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def receive(self) -> Frame:
        """Read one frame; ``socket.timeout`` where the socket has a time-out."""
        header_size, blobs_size = parse_prefix(self._read_exactly(PREFIX.size))
        return decode(self._read_exactly(header_size), self._read_exactly(blobs_size))

    def send(self, header: Dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
        """Write one frame."""
        self.sock.sendall(encode(header, blobs))


def error_header(error: BaseException, traceback_text: str = "") -> Dict[str, Any]:
    """Describe an exception as the ``error`` member of an answer."""
    return {
        "kind": getattr(error, "kind", type(error).__name__),
        "message": str(error)[:4000],
        "traceback": traceback_text[-16000:],
    }
