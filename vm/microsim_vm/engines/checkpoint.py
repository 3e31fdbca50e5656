"""gVisor's checkpoint files, written anew so that a fork reads them without decompressing anything.

A file of the releases that always compress begins with ``gVisorSF``, the length (8 bytes, big-endian) of a JSON
object, that object and its SHA-256 HMAC. Then come the size of a chunk (4 bytes) and each chunk: its compressed size
(4 bytes) and a raw deflate stream (gVisor: pkg/state/statefile, pkg/compressio). A stored deflate stream is as valid as
a compressed one.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MAGIC = b"gVisorSF"
HMAC_BYTES = 32
MAX_METADATA, MAX_CHUNK = 1 << 20, 1 << 24
LENGTH, SIZE = struct.Struct(">Q"), struct.Struct(">I")
RAW = -15  # zlib's word for a deflate stream without a header


class _UnknownFormatError(Exception):
    """This release writes something else."""


def store(path: Path) -> bool:
    """Write a checkpoint anew, uncompressed; leave one that is in another format as it is.

    Returns:
        Whether it was written anew.

    Raises:
        OSError: It cannot be read or written.
    """
    partial = path.with_suffix(".partial")
    try:
        with open(path, "rb") as source, open(partial, "wb") as target:
            target.write(_header(source))
            for chunk in _chunks(source):
                packer = zlib.compressobj(0, zlib.DEFLATED, RAW)
                stored = packer.compress(chunk) + packer.flush()
                target.write(SIZE.pack(len(stored)))
                target.write(stored)
        os.replace(partial, path)
        return True
    except (_UnknownFormatError, zlib.error):
        return False
    finally:
        partial.unlink(missing_ok=True)


def _header(source: BinaryIO) -> bytes:
    begin = source.read(len(MAGIC) + LENGTH.size)
    if not begin.startswith(MAGIC) or len(begin) < len(MAGIC) + LENGTH.size:
        raise _UnknownFormatError
    (length,) = LENGTH.unpack(begin[len(MAGIC) :])
    if length > MAX_METADATA:
        raise _UnknownFormatError
    return begin + _exactly(source, length + HMAC_BYTES + SIZE.size)


def _chunks(source: BinaryIO) -> Iterator[bytes]:
    while size := source.read(SIZE.size):
        if len(size) < SIZE.size or SIZE.unpack(size)[0] > MAX_CHUNK:
            raise _UnknownFormatError
        unpacker = zlib.decompressobj(RAW)
        chunk = unpacker.decompress(_exactly(source, SIZE.unpack(size)[0]), MAX_CHUNK)
        if not unpacker.eof or unpacker.unused_data:
            raise _UnknownFormatError
        yield chunk


def _exactly(source: BinaryIO, size: int) -> bytes:
    data = source.read(size)
    if len(data) < size:
        raise _UnknownFormatError
    return data
