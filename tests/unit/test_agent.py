"""The host's end of the channel, with a guest at the other end that does as it likes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from microsim_guest import wire
from microsim_vm import agent
from microsim_vm.agent import AgentClient
from microsim_vm.errors import AgentError, AgentTimeoutError, ChannelClosedError, SnapshotError, WorldError

pytestmark = pytest.mark.timeout(30)


class Guest:
    """The other end of a channel; the test plays the agent."""

    def __init__(self) -> None:
        self.channel, other = socket.socketpair()
        self.link = wire.SocketLink(other)
        self.lives = True

    def alive(self) -> bool:
        return self.lives

    def console(self) -> str:
        return "last words\n"


@pytest.fixture
def guest() -> Iterator[Guest]:
    made = Guest()
    yield made
    made.link.sock.close()
    made.channel.close()


@pytest.fixture
def client(guest: Guest) -> Iterator[AgentClient]:
    made = AgentClient(guest)
    yield made
    made.close()


def playing(act: object) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_answers_that_belong_to_another_host_are_nobodys(guest: Guest, client: AgentClient) -> None:
    def act() -> None:
        request = guest.link.receive().header
        guest.link.send({"id": "other-1", "ok": {"whose": "another's"}})
        guest.link.send({"id": 1, "ok": {"whose": "another's"}})
        guest.link.send({"id": request["id"], "ok": {"whose": "mine"}})

    playing(act)
    assert client.call("ping", timeout_s=5) == ({"whose": "mine"}, ())


def test_an_endless_stream_of_events_still_has_a_deadline(guest: Guest, client: AgentClient) -> None:
    def act() -> None:
        request = guest.link.receive().header
        with contextlib.suppress(OSError):
            while True:
                guest.link.send({"id": request["id"], "event": "stdout"}, [b"x" * 100])

    playing(act)
    started = time.monotonic()
    with pytest.raises(AgentTimeoutError, match="within 1 s"):
        client.call("exec", timeout_s=1, on_event=lambda stream, data: None)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("in_header", [False, True], ids=["attachments", "headers"])
def test_output_that_nobody_takes_fails_its_own_request_only(
    guest: Guest, client: AgentClient, monkeypatch: pytest.MonkeyPatch, in_header: bool
) -> None:
    monkeypatch.setattr(agent, "MAX_PENDING", 4 << 20)

    def act() -> None:
        first = guest.link.receive().header
        for _ in range(64):  # all of it is taken off the channel, and little of it kept
            extra = {"extra": "x" * (1 << 20)} if in_header else {}
            guest.link.send({"id": first["id"], "event": "stdout", **extra}, [bytes(1 if in_header else 1 << 20)])
        guest.link.send({"id": first["id"], "ok": {}})
        guest.link.send({"id": guest.link.receive().header["id"], "ok": {"second": True}})

    playing(act)
    with pytest.raises(AgentError, match="faster than they were taken"):
        client.call("exec", timeout_s=20, on_event=lambda stream, data: time.sleep(1.0))
    assert client.call("ping", timeout_s=5)[0] == {"second": True}


def test_a_guest_that_takes_nothing_holds_nobody_past_the_deadline(
    guest: Guest, client: AgentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "LOOK_S", 0.3)
    started = time.monotonic()
    with pytest.raises(AgentTimeoutError, match=r"did not take 'files\.write' in time"):
        client.call("files.write", blobs=[bytes(8 << 20)], timeout_s=0.5)
    with pytest.raises(AgentTimeoutError, match="'ping'"):
        client.call("ping", timeout_s=0.5)
    with pytest.raises(SnapshotError, match="cannot be copied now"), client.quiesced(flush_s=0.2):
        pass
    assert time.monotonic() - started < 15
    # It wakes up: the frame that was begun comes whole, that of which nothing was sent was withdrawn.
    requests: list[str] = []

    def act() -> None:
        while "world.logs" not in requests:
            frame = guest.link.receive()
            requests.append(frame.header["op"])
            guest.link.send({"id": frame.header["id"], "ok": {"op": frame.header["op"]}})

    playing(act)
    assert client.call("world.logs", timeout_s=10) == ({"op": "world.logs"}, ())
    assert requests == ["files.write", "world.logs"]


def test_many_threads_send_large_frames_whole(guest: Guest, client: AgentClient) -> None:
    def act() -> None:
        with contextlib.suppress(wire.LinkClosed, OSError):
            while True:
                frame = guest.link.receive()
                guest.link.send({"id": frame.header["id"], "ok": {"size": len(frame.blobs[0])}})

    playing(act)
    sizes = [1 << 20, 3, 700_000, 5 << 20] * 4
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda size: client.call("files.write", blobs=[bytes(size)], timeout_s=20)[0]["size"], sizes)
    assert list(answers) == sizes


def test_odd_events_and_errors_of_a_guest_are_errors_of_its_own(guest: Guest, client: AgentClient) -> None:
    def act() -> None:
        request = guest.link.receive().header
        guest.link.send({"id": request["id"], "event": ["no", "stream"]})
        guest.link.send({"id": request["id"], "event": {"x": 1}}, [b"data"])
        error = {"kind": "world", "message": "the shelf fell", "hint": "mind it", "traceback": 7}
        guest.link.send({"id": request["id"], "error": error})

    playing(act)
    with pytest.raises(WorldError, match="the shelf fell") as caught:
        client.call("world.step", timeout_s=5, on_event=lambda stream, data: None)
    assert caught.value.hint == "mind it"


@pytest.mark.parametrize("answer", [{"ok": [1]}, {"error": "x"}, {"error": []}, {"ok": 3, "error": 4}])
def test_a_malformed_answer_is_an_error(guest: Guest, client: AgentClient, answer: dict[str, object]) -> None:
    playing(lambda: guest.link.send({"id": guest.link.receive().header["id"], **answer}))
    with pytest.raises(AgentError, match="malformed"):
        client.call("ping", timeout_s=5)


def test_a_guest_that_ends_ends_the_request_with_its_console(guest: Guest, client: AgentClient) -> None:
    playing(lambda: (guest.link.receive(), guest.link.sock.close()))
    with pytest.raises(ChannelClosedError) as caught:
        client.call("ping", timeout_s=5)
    assert "last words" in str(caught.value)
    with pytest.raises(ChannelClosedError):
        client.call("ping", timeout_s=5)


def test_a_guest_that_is_dead_and_keeps_its_channel_is_noticed(guest: Guest, client: AgentClient) -> None:
    guest.lives = False
    started = time.monotonic()
    with pytest.raises(AgentError, match="lost"):
        client.call("ping", timeout_s=60)
    assert time.monotonic() - started < 10
