"""What is kept of an endless stream: its two ends, in bounded memory and time."""

from __future__ import annotations

import os
import random
import time

import pytest
from microsim_guest import capture


def written(limit: int, *pieces: bytes) -> tuple[capture.Capture, bytes]:
    end, kept = capture.pipe_to(limit)
    with os.fdopen(end, "wb", buffering=0) as stream:
        for piece in pieces:
            view = memoryview(piece)
            while view:
                view = view[stream.write(view) :]
    return kept, kept.finish(30.0)


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 70_000, 1_000_000])
def test_beginning_and_end_are_kept_however_it_is_written(size: int) -> None:
    drawn = random.Random(size)
    data, pieces, limit = drawn.randbytes(size), [], 1000
    while sum(map(len, pieces)) < size:
        at = sum(map(len, pieces))
        pieces.append(data[at : at + drawn.choice((1, 7, 300, 65_536))])
    kept, output = written(limit, *pieces)
    assert kept.total == size
    note = b"\n[... %d bytes left out ...]\n" % (size - limit)
    assert output == (data if size <= limit else data[:500] + note + data[-500:])


def test_a_long_tail_is_not_copied_for_each_read() -> None:
    started = time.monotonic()
    _, output = written(64 << 20, *([bytes(1 << 20)] * 127), b"end")
    assert output.endswith(b"end")
    assert len(output) == (64 << 20) + len(b"\n[... 66060291 bytes left out ...]\n")
    assert time.monotonic() - started < 5.0
