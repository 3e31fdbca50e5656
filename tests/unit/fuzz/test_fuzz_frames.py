"""Whatever a guest sends, the host reads it as a frame or refuses it: no other error, no wait without an end, and no
more memory than arrived.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import threading
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from microsim_guest import codec, wire
from microsim_vm import answers, episode
from microsim_vm.agent import AgentClient
from microsim_vm.errors import MicrosimError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
HEADERS = st.dictionaries(st.sampled_from(["id", "ok", "error", "event", "gone", "blobs", "x"]), JSON, max_size=5)
BLOBS = st.lists(st.binary(max_size=40), max_size=4)
DTYPES = st.sampled_from([*codec.TYPECODES, "<f16", "|O", "", "<U4", ">f8"])
SHAPES = st.lists(st.integers(-2, 5) | st.sampled_from([2**31, 2**63, 10**30, 1.5, True, None, "3"]), max_size=4)
INDEX = st.integers(-3, 4) | st.sampled_from([2**70, None, "0", 0.0, True])
PACKED = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.fixed_dictionaries({"__array__": st.tuples(DTYPES, SHAPES, INDEX).map(list) | JSON})
    | st.fixed_dictionaries({"__bytes__": INDEX})
    | st.fixed_dictionaries({"__float__": st.sampled_from(["nan", "inf", "-inf", "1e999", "x", "", 5, None])}),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def frames_of(data: bytes) -> list[wire.Frame]:
    """Read frames out of bytes, as out of a channel whose other end is then closed; return those before it ended."""

    class Link(wire.Link):
        def _read(self, size: int, deadline: float | None) -> bytes:
            nonlocal data
            part, data = data[:size], data[size:]
            return part

    link, found = Link(wire.MAX_BLOBS, read_ahead=True), []
    while True:
        try:
            found.append(link.receive())
        except (wire.ProtocolError, wire.LinkClosed):
            return found


@given(st.lists(st.tuples(HEADERS, BLOBS), max_size=4))
def test_what_is_sent_is_what_is_read(sent: list[tuple[dict[str, Any], list[bytes]]]) -> None:
    data = b"".join(wire.encode({**header, "blobs": []}, blobs) for header, blobs in sent)
    found = frames_of(data)
    assert [list(frame.blobs) for frame in found] == [blobs for _, blobs in sent]
    for (header, _), frame in zip(sent, found, strict=True):
        kept = {name: value for name, value in frame.header.items() if name != "blobs"}
        assert repr(kept) == repr({name: value for name, value in header.items() if name != "blobs"})


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    """Draw frames, some of whose bytes were changed, left out, or written twice."""
    data = bytearray()
    for header, blobs in draw(st.lists(st.tuples(HEADERS, BLOBS), min_size=1, max_size=3)):
        text = json.dumps(header).encode()
        raw = b"".join(blobs)
        lengths = draw(st.tuples(st.integers(-3, 3), st.integers(-3, 3)) | st.just((0, 0)))
        sizes = [max(0, size + off) for size, off in zip((len(text), len(raw)), lengths, strict=True)]
        data += struct.pack(">II", *sizes) + text + raw
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        change = draw(st.sampled_from(["set", "cut", "twice", "insert"]))
        if change == "set" and data:
            data[place] = draw(st.integers(0, 255))
        elif change == "cut":
            del data[place : place + draw(st.integers(1, 9))]
        elif change == "twice":
            data[place:place] = data[place : place + draw(st.integers(1, 9))]
        else:
            data[place:place] = draw(st.binary(max_size=9))
    return bytes(data)


@given(st.binary(max_size=200) | _damaged())
@example(b"\xff" * 64)
@example(struct.pack(">II", 2, 0) + b"[]")
@example(struct.pack(">II", 20000, 0) + b"[" * 20000)
@example(struct.pack(">II", 9000, 0) + b'{"a":' + b"1" * 8994 + b"}")
@example(struct.pack(">II", 20, 0) + b'{"blobs":[1e400]}   ')
def test_bytes_are_frames_or_refused(data: bytes) -> None:
    for frame in frames_of(data):
        assert isinstance(frame.header, dict)
        assert sum(map(len, frame.blobs)) <= len(data)


@given(PACKED, BLOBS)
def test_values_are_read_or_refused(packed: Any, blobs: list[bytes]) -> None:
    try:
        value = codec.unpack(packed, blobs)
    except ValueError:
        return
    assert _size(value) <= _size(packed) * 200 + 8 * sum(map(len, blobs))


def _size(value: Any) -> int:
    """Return about how many bytes a value holds."""
    if isinstance(value, dict):
        return sum(len(str(key)) + _size(item) for key, item in value.items()) + 1
    if isinstance(value, list):
        return sum(map(_size, value)) + 1
    return int(getattr(value, "nbytes", 0) or len(value) if isinstance(value, str | bytes) else 8)


def test_an_attachment_is_not_taken_twice() -> None:
    """A header of a few hundred kilobytes that names one attachment again and again would fill the host's memory."""
    packed = [{"__array__": ["|u1", [1 << 16], 0]}] * 4096
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="twice"):
            codec.unpack(packed, [bytes(1 << 16)])
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@given(
    st.dictionaries(st.sampled_from(["name", "dtype", "shape"]), DTYPES | SHAPES | JSON, max_size=3)
    | st.fixed_dictionaries(
        {"name": st.sampled_from(["observation", "reward", "action"]), "dtype": DTYPES, "shape": SHAPES}
    ),
    st.dictionaries(st.sampled_from(["terminated", "truncated", "limit", "late_steps", "wall_ms", "metrics"]), JSON),
    st.binary(max_size=32),
)
def test_episodes_are_read_or_refused(column: dict[str, Any], changes: dict[str, Any], data: bytes) -> None:
    answer = {**_EPISODE, "columns": [column], **changes}
    try:
        with answers.read("world.episode"):
            record = episode.from_answer(answer, (b"", b"", data), seed=1, score=None)
    except MicrosimError:
        return
    assert all(math.prod(found.shape) * 1 <= len(data) for found in record.columns.values())
    assert all(math.isfinite(number) for number in record.metrics.values())


_EPISODE: dict[str, Any] = {
    "steps": 1, "terminated": False, "truncated": True, "limit": "", "total_reward": 0.0, "error": None, "metrics": {},
    "late_steps": 0, "simulated_s": None, "wall_ms": 1.0,
    "controller": {"exit_code": 0, "ended": True, "events": {}, "left": 0, "refused": {}, "output": [0, 0]},
}  # fmt: skip


class _Guest:
    """A guest that sends what it likes, and then is gone."""

    def __init__(self, data: bytes) -> None:
        self.channel, other = socket.socketpair()
        self._lives = True

        def act() -> None:
            with other:
                request = wire.SocketLink(other).receive().header["id"]
                other.sendall(data.replace(b"REQUEST", str(request).encode()))
                self._lives = False

        threading.Thread(target=act, daemon=True).start()

    def alive(self) -> bool:
        return self._lives

    def console(self) -> str:
        return ""


@given(_damaged().map(lambda data: data.replace(b'"id": null', b'"id": "REQUEST"')) | st.binary(max_size=60))
@example(wire.encode({"id": "REQUEST", "ok": []})[:8].replace(b"REQUEST", b"") + b'{"id": "REQUEST"}')
def test_a_request_ends_whatever_is_answered(data: bytes) -> None:
    client = AgentClient(_Guest(data))
    started = time.monotonic()
    try:
        result, _ = client.call("ping", timeout_s=5, on_event=lambda stream, part: None)
        assert isinstance(result, dict)
    except MicrosimError:
        pass
    finally:
        client.close()
    assert time.monotonic() - started < 5
