"""A controller's machine that does as it likes with the dialogue, and the guest's end of it: all of it is bounded."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from microsim_guest import relay, wire
from microsim_vm import apart
from microsim_vm.agent import AgentClient
from microsim_vm.errors import AgentError, ControllerMachineError, WorldError

pytestmark = pytest.mark.timeout(30)

ARGS = {
    "kind": "python", "filename": "x.py", "words": [], "timeout_s": 5.0, "limits": {"output_bytes": 1024},
}  # fmt: skip
END = {"exit_code": 0, "ended": True, "events": {}, "left": 0, "refused": {}, "output": [0, 0]}


class Guest:
    """The other end of a channel; the test plays the agent."""

    def __init__(self) -> None:
        self.channel, other = socket.socketpair()
        self.link = wire.SocketLink(other)
        self.client = AgentClient(self)
        self.request = wire.Frame({}, ())

    def alive(self) -> bool:
        return True

    def console(self) -> str:
        return "last words\n"

    def take(self, op: str) -> wire.Frame:
        """Wait for a request of this kind; others are passed over."""
        while True:
            frame = self.link.receive(time.monotonic() + 10)
            if frame.header["op"] == op:
                return frame

    def begin(self, op: str) -> None:
        """Wait for the request that all that follows belongs to."""
        self.request = self.take(op)

    def event(self, name: str, data: bytes = b"") -> None:
        self.link.send({"id": self.request.header["id"], "event": name}, [data])

    def answer(self, result: dict[str, Any], *blobs: bytes) -> None:
        self.link.send({"id": self.request.header["id"], "ok": result}, blobs)


@pytest.fixture
def guests() -> Iterator[tuple[Guest, Guest]]:
    made = Guest(), Guest()
    yield made
    for guest in made:
        guest.client.close()
        guest.link.sock.close()


Act = Callable[[Guest], None]


def outcome(guests: tuple[Guest, Guest], act: Act, until: str = "relay.end") -> apart.Outcome:
    """Run an episode whose world ends once it is told something, against a place that acts as it is told to."""
    world, place = guests

    def be_world() -> None:
        world.begin("world.episode")
        world.event("start", b'{"seed":7}')
        world.event("data", b"question")
        if until:
            world.take(until)
        world.answer({"steps": 1}, b"column")

    def be_place() -> None:
        place.begin("controller.visit")
        act(place)

    for play in (be_world, be_place):
        threading.Thread(target=play, daemon=True).start()
    return apart.Episode(world.client, place.client, "other", b"program", ARGS, 20.0).run()


def test_the_program_and_its_seed_go_to_the_place_and_nothing_of_them_to_the_world(
    guests: tuple[Guest, Guest],
) -> None:
    said = []

    def act(place: Guest) -> None:
        said.append(place.take("relay.input").blobs)
        place.event("data", b"answer")
        place.take("relay.finish")
        place.answer(END, b"out", b"err")

    result, blobs, lost = outcome(guests, act, until="relay.input")
    assert (result["steps"], blobs, lost) == (1, (b"out", b"err", b"column"), None)
    world, place = (guest.request for guest in guests)
    assert (place.blobs, place.header["args"]["seed"]) == ((b"program",), 7)
    assert "timeout_s" not in place.header["args"]
    assert world.blobs == (b"",)
    assert said == [(b"question",)]


def flood(place: Guest) -> None:
    for _ in range(relay.WINDOW // 65536 + 1):
        place.event("data", b"x" * 65536)


def claim(text: bytes) -> Act:
    return lambda place: place.event("taken", text)


def say_the_end(result: Any, *blobs: bytes) -> Act:
    return lambda place: place.answer(result, *blobs)


@pytest.mark.parametrize(
    ("act", "word"),
    [
        (flood, "it sent more than 1024 KiB that were not taken"),
        (claim(b"many"), "malformed"), (claim(b"-5"), "malformed"), (claim(b""), "malformed"),
        (say_the_end({}), "malformed"), (say_the_end({**END, "exit_code": "7"}, b"", b""), "malformed"),
        (say_the_end(END, b""), "malformed"), (say_the_end(END, b"x" * 2000, b""), "more output than is kept"),
        (say_the_end({**END, "refused": {"\x1b[31m": 1}}, b"", b""), "malformed"),
        (say_the_end({**END, "refused": {f"a{n}": 1 for n in range(2000)}}, b"", b""), "malformed"),
        (lambda place: place.link.sock.close(), "the link to the guest was lost"),
        (lambda place: place.link.sock.sendall(b"\xff" * 64), "the link to the guest was lost"),
    ],
)  # fmt: skip
def test_a_place_that_breaks_its_protocol_ends_the_dialogue(guests: tuple[Guest, Guest], act: Act, word: str) -> None:
    result, blobs, lost = outcome(guests, act)
    assert (result["steps"], blobs) == (1, (b"", b"", b"column"))
    assert isinstance(lost, ControllerMachineError)
    assert lost.what.startswith("the machine 'other', which the controller ran in, was lost: ")
    assert word in lost.what


def test_a_place_that_never_ends_is_left_behind(guests: tuple[Guest, Guest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "FINISH_S", 0.3)
    lost = outcome(guests, lambda place: None, until="").lost
    assert lost is not None
    assert "it did not end the controller in time" in lost.what


def test_a_place_cannot_have_taken_more_than_it_was_sent(guests: tuple[Guest, Guest]) -> None:
    world, place = guests
    confirmed = []

    def act(place: Guest) -> None:
        place.take("relay.input")
        place.event("taken", b"9" * 19)
        confirmed.append(world.take("relay.confirm").header["args"]["size"])
        place.answer(END, b"", b"")

    def be_place() -> None:
        place.begin("controller.visit")
        act(place)

    def be_world() -> None:
        world.begin("world.episode")
        world.event("start", b'{"seed":null}')
        world.event("data", b"question")
        while not confirmed:
            time.sleep(0.01)
        world.answer({})

    for play in (be_world, be_place):
        threading.Thread(target=play, daemon=True).start()
    assert apart.Episode(world.client, place.client, "other", b"", ARGS, 20.0).run().lost is None
    assert confirmed == [len(b"question")]


@pytest.mark.parametrize("answer", [{"error": {"kind": "world", "message": "it broke"}}, None])
def test_the_controller_is_ended_where_the_world_fails(guests: tuple[Guest, Guest], answer: Any) -> None:
    world, place = guests
    finished = threading.Event()

    def be_place() -> None:
        place.begin("controller.visit")
        place.take("relay.finish")
        finished.set()
        place.answer(END, b"", b"")

    def be_world() -> None:
        world.begin("world.episode")
        world.event("start", b'{"seed":7}')
        if answer is None:
            world.link.sock.close()
        else:
            world.link.send({"id": world.request.header["id"], **answer})

    for play in (be_world, be_place):
        threading.Thread(target=play, daemon=True).start()
    with pytest.raises(WorldError if answer else AgentError):
        apart.Episode(world.client, place.client, "other", b"", ARGS, 20.0).run()
    assert finished.is_set()


def test_a_guests_end_sends_no_more_than_is_confirmed_and_gives_all_it_was_sent() -> None:
    ours, theirs = socket.socketpair()
    events: list[tuple[str, bytes]] = []
    pump = relay.Pump("a", ours, lambda event, data: events.append((event, data)))
    running = threading.Thread(target=pump.run, daemon=True)
    running.start()
    assert relay.find("a") is pump

    def count(name: str) -> int:
        return sum(len(data) for event, data in events if event == name)

    def wait_for(size: int) -> None:
        deadline = time.monotonic() + 10
        while count("data") < size:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    writer = threading.Thread(target=theirs.sendall, args=(b"x" * relay.WINDOW * 3,), daemon=True)
    writer.start()
    wait_for(relay.WINDOW)
    time.sleep(0.1)
    assert count("data") == relay.WINDOW
    pump.confirm(1000)
    wait_for(relay.WINDOW + 1000)
    time.sleep(0.1)
    assert count("data") == relay.WINDOW + 1000
    pump.confirm(relay.WINDOW * 4)
    writer.join(10)
    wait_for(relay.WINDOW * 3)

    pump.input(b"y" * relay.WINDOW)  # more than the socket takes at once
    pump.end()
    got = bytearray()
    while data := theirs.recv(65536):
        got += data
    assert got == b"y" * relay.WINDOW
    assert sum(int(data) for event, data in events if event == "taken") >= relay.WINDOW - relay.CONFIRM

    theirs.close()
    deadline = time.monotonic() + 10
    while ("end", b"") not in events:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    began = time.process_time()
    time.sleep(0.2)
    assert [event for event, _ in events].count("end") == 1
    assert time.process_time() - began < 0.1
    pump.input(b"late")
    pump.stop()
    running.join(10)
    assert not running.is_alive()
    pump.input(b"later")
    pump.stop()
    with pytest.raises(LookupError):
        relay.find("a")
