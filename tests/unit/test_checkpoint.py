"""gVisor's checkpoints written anew: nothing of what they hold changes, and what is not understood is left alone."""

from __future__ import annotations

import os
import random
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from microsim_vm.engines import checkpoint

METADATA = b'{"compression":"flate-best-speed"}'
HMAC = bytes(range(32))
CHUNK = 1 << 20


def header(metadata: bytes = METADATA, chunk: int = CHUNK) -> bytes:
    return b"gVisorSF" + struct.pack(">Q", len(metadata)) + metadata + HMAC + struct.pack(">I", chunk)


def deflated(data: bytes, level: int = 1) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def written(chunks: Sequence[bytes], **how: int) -> bytes:
    """Return a file as gVisor writes it."""
    return header() + b"".join(struct.pack(">I", len(each)) + each for each in (deflated(c, **how) for c in chunks))


def read(data: bytes) -> list[bytes]:
    """Return the content of each chunk, as gVisor reads it."""
    start = header()
    assert data.startswith(start)
    place, found = len(start), []
    while place < len(data):
        (size,) = struct.unpack_from(">I", data, place)
        found.append(zlib.decompress(data[place + 4 : place + 4 + size], -15))
        place += 4 + size
    assert place == len(data)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.img"


CONTENTS = {
    "nothing": [],
    "an empty chunk": [b""],
    "text": [b"a robot docks. " * 1000, b"the end"],
    "zeros": [bytes(CHUNK), bytes(CHUNK), bytes(17)],
    "noise": [random.Random(1).randbytes(CHUNK), random.Random(2).randbytes(3)],
}


@pytest.mark.parametrize("chunks", CONTENTS.values(), ids=CONTENTS)
def test_the_content_stays_and_is_stored(file: Path, chunks: list[bytes]) -> None:
    file.write_bytes(written(chunks))
    assert checkpoint.store(file)
    data = file.read_bytes()
    assert read(data) == chunks
    for chunk in chunks:
        assert chunk[:1000] in data  # readable without decompressing anything
    assert checkpoint.store(file)
    assert file.read_bytes() == data
    assert os.listdir(file.parent) == [file.name]


WHOLE = written(CONTENTS["text"])
FIRST = len(header())  # where the first chunk's size is
LEFT_ALONE = {
    "empty": b"",
    "another format": b"\x7fELF" + bytes(100),
    "nearly the magic": b"gVisorSG" + WHOLE[8:],
    "cut off in the magic": WHOLE[:6],
    "cut off in the length": WHOLE[:12],
    "cut off in the metadata": WHOLE[:20],
    "cut off in the hash": WHOLE[: FIRST - 10],
    "cut off in the chunk's size": WHOLE[: FIRST + 2],
    "cut off in a chunk": WHOLE[:-3],
    "cut off after a chunk's size": WHOLE[: FIRST + 4],
    "metadata without end": b"gVisorSF" + struct.pack(">Q", 1 << 62) + WHOLE[16:],
    "a chunk without end": WHOLE[:FIRST] + struct.pack(">I", 0xFFFFFFFF) + WHOLE[FIRST + 4 :],
    "an uncompressed chunk": header() + struct.pack(">I", 5) + b"plain",
    "a chunk with something behind it": header() + struct.pack(">I", len(deflated(b"x")) + 1) + deflated(b"x") + b"y",
    "a stream that does not end": header() + struct.pack(">I", 4) + deflated(b"robots" * 9)[:4],
    "a bomb": header() + struct.pack(">I", len(deflated(bytes(1 << 25)))) + deflated(bytes(1 << 25)),
}


@pytest.mark.parametrize("data", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_is_not_understood_is_left_as_it_is(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    before = file.stat()
    assert not checkpoint.store(file)
    after = file.stat()
    assert file.read_bytes() == data
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert os.listdir(file.parent) == [file.name]


def test_with_any_byte_flipped_it_is_written_anew_as_a_whole_or_not_at_all(file: Path) -> None:
    whole = written([b"robot " * 20])
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        file.write_bytes(damaged)
        if checkpoint.store(file):
            assert file.read_bytes()[:FIRST] == damaged[:FIRST]
            (content,) = read(whole[:FIRST] + file.read_bytes()[FIRST:])
            assert len(content) <= checkpoint.MAX_CHUNK
        else:
            assert file.read_bytes() == damaged
        assert os.listdir(file.parent) == [file.name]


def test_a_missing_file_and_a_full_disk_are_errors_that_leave_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        checkpoint.store(file)
    assert os.listdir(file.parent) == []
    file.write_bytes(WHOLE)

    def full(_: object, __: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.store(file)
    assert file.read_bytes() == WHOLE
    assert os.listdir(file.parent) == [file.name]
