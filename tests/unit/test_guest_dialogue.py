"""What a controller may make of the world's end of its link, and what becomes of what it sends."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from microsim_guest import codec, controllerlink, dialogue, driver, episode, recorder, wire

LATER_S = 0.1


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def soon() -> float:
    return time.monotonic() + LATER_S


@pytest.mark.parametrize("kind", ["frames", "lines"])
def test_an_observation_that_is_not_taken_in_time_arrives_whole_later(
    ends: tuple[socket.socket, socket.socket], kind: str
) -> None:
    ours, theirs = ends
    image = numpy.arange(1 << 19, dtype="<f8")
    talk = dialogue.Frames(ours) if kind == "frames" else dialogue.Lines(ours, 7)
    with pytest.raises(socket.timeout):
        talk.ask({"image": image}, 0, soon())
    with pytest.raises(socket.timeout):
        talk.flush(soon())
    link = wire.SocketLink(theirs)
    theirs.settimeout(5)
    received = bytearray()
    with contextlib.suppress(BlockingIOError, TimeoutError):
        while True:
            with contextlib.suppress(socket.timeout):
                talk.flush(time.monotonic())
            received += theirs.recv(1 << 20, socket.MSG_DONTWAIT)
    if kind == "lines":
        message = json.loads(received)
        assert message["seed"] == 7
        assert message["observation"]["image"] == image.tolist()
        return
    header_size, _ = wire.parse_prefix(bytes(received[:8]))
    frame = wire.decode(bytes(received[8 : 8 + header_size]), bytes(received[8 + header_size :]))
    assert (codec.unpack(frame.header["observation"], frame.blobs)["image"] == image).all()
    assert not link.unread


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack(">II", dialogue.MAX_TEXT + 1, 0), "bytes of header, 262144 are allowed"),
        (struct.pack(">II", 10, dialogue.MAX_ACTION + 1), "bytes of attachments"),
    ],
)
def test_an_answer_is_refused_before_it_is_read(
    ends: tuple[socket.socket, socket.socket], data: bytes, words: str
) -> None:
    ours, theirs = ends
    theirs.sendall(data)
    with pytest.raises(dialogue.Broken, match=words):
        dialogue.Frames(ours).answer(soon())


@pytest.mark.parametrize("shape", [[10**9, 0], [2**31, 2**31, 0], [0, 10**12], [-1], [5000, 0]])
def test_an_array_without_numbers_takes_no_memory(shape: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for installed in (numpy, None):
        monkeypatch.setitem(codec._numpy, "numpy", installed)
        with pytest.raises(ValueError, match="an array of shape"):
            codec.unpack({"__array__": ["<f8", shape, 0]}, [b""])


@pytest.mark.parametrize("kind", ["<f2", ">f2", "<f4", ">f8", "longdouble", "?", ">u2"])
def test_every_numeric_type_travels_and_is_recorded(kind: str) -> None:
    array = numpy.array([[0.5, 1.0, 0.25]], dtype=kind)
    blobs: list[bytes] = []
    packed = codec.pack(array, blobs)
    assert codec.unpack(packed, blobs).tolist() == array.tolist()
    dtype, shape, data = recorder.to_bytes(array)
    assert codec.nested(dtype, shape, data) == array.tolist()


def test_empty_arrays_are_arrays() -> None:
    blobs: list[bytes] = []
    packed = codec.pack(numpy.zeros((0, 3)), blobs)
    assert codec.unpack(packed, blobs).shape == (0, 3)


class World:
    """A world that tells its time now and then, and takes whatever action."""

    def __init__(self, times: list[float | None], space: Any = None) -> None:
        self.times = times
        self.taken: list[Any] = []
        if space is not None:
            self.action_space = space

    def reset(self, seed: int | None = None) -> tuple[list[float], dict[str, Any]]:
        return [0.0], self._info()

    def step(self, action: Any) -> tuple[list[float], float, bool, bool, dict[str, Any]]:
        self.taken.append(action)
        if isinstance(action, list):
            action[0] *= 2.0  # as some do
        return [0.0], 1.0, False, False, self._info()

    def _info(self) -> dict[str, Any]:
        moment = self.times.pop(0)
        return {} if moment is None else {"time": moment}


class Link(driver.Driver):
    """A controller that answers what it is told to; LATE is an answer that does not come in time."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def wait_ready(self, space: Any, clock: driver.Clock) -> None:
        pass

    def described(self) -> str:
        return "the controller returned"

    def act(self, observation: Any, step: int) -> tuple[Any, bool]:
        answer = self.answers.pop(0)
        return (None, True) if answer is LATE else (answer, False)


LATE = object()


def ran(world: World, link: Link, **limits: Any) -> dict[str, Any]:
    asked = {"max_steps": len(link.answers), "late": "fail", **limits}
    result, _ = episode.run(world, 1, asked, link)
    return result


@pytest.mark.parametrize(("times", "passed"), [([1.0, 3.5], 2.5), ([1.0, None], None), ([None, 1.0], None)])
def test_a_world_that_tells_its_time_now_and_then(times: list[float | None], passed: float | None) -> None:
    result = ran(World(list(times)), Link(0.0))
    assert result["error"] is None
    assert result["simulated_s"] == passed


@pytest.mark.parametrize("depth", [17, 100, 700, 985])
def test_a_nested_action_is_the_controllers_failure(depth: int) -> None:
    action: Any = 0.0
    for _ in range(depth):
        action = [action]
    result = ran(World([None] * 3), Link(action, 0.0))
    assert result["error"]["kind"] == "controller"
    assert "nested too deeply" in result["error"]["message"]


def test_what_is_held_is_what_was_sent() -> None:
    world = World([None] * 4)
    assert ran(world, Link([1.0], LATE, LATE), late="hold")["error"] is None
    assert world.taken == [[2.0]] * 3  # of 1.0 each time, and not of what the world has made of it


@pytest.mark.parametrize(
    ("space", "late", "words"),
    [
        (None, "hold", "no earlier action, nor an action space"),
        (None, "fail", "controller.late is fail"),
        ("from one", "zero", "zero, which would stand in for it, is no action"),
    ],
)
def test_a_late_step_for_which_nothing_stands_in_is_late(space: Any, late: str, words: str) -> None:
    class FromOne:
        dtype, shape = numpy.dtype("i8"), ()

        def contains(self, value: Any) -> bool:
            return value >= 1

    result = ran(World([None] * 2, FromOne() if space else None), Link(LATE), late=late)
    assert result["error"]["kind"] == controllerlink.ControllerLate.kind
    assert words in result["error"]["message"]
