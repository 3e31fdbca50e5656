"""The host's end of the channel, with a guest at the other end that does as it likes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from microsim_guest import wire
from microsim_vm import agent
from microsim_vm.agent import AgentClient
from microsim_vm.errors import AgentError, AgentTimeoutError, ChannelClosedError, WorldError

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


def test_what_a_slow_caller_has_not_taken_is_bounded(
    guest: Guest, client: AgentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "MAX_PENDING", 1 << 20)
    sent = 0

    def act() -> None:
        nonlocal sent
        request = guest.link.receive().header
        for _ in range(64):
            guest.link.send({"id": request["id"], "event": "stdout"}, [bytes(1 << 20)])
            sent += 1
        guest.link.send({"id": request["id"], "ok": {}})

    taken = 0

    def take(stream: str, data: bytes) -> None:
        nonlocal taken
        if taken == 0:
            time.sleep(1.0)
            assert sent < 8  # it waits, and its memory is its own
        taken += len(data)

    playing(act)
    client.call("exec", timeout_s=20, on_event=take)
    assert taken == 64 << 20


def test_a_caller_that_leaves_holds_nobody_up(
    guest: Guest, client: AgentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "MAX_PENDING", 1 << 20)

    def act() -> None:
        first = guest.link.receive().header
        playing(lambda: [guest.link.send({"id": first["id"], "event": "stdout"}, [bytes(1 << 20)]) for _ in range(9)])
        second = guest.link.receive().header
        time.sleep(0.2)
        guest.link.send({"id": second["id"], "ok": {"second": True}})

    def refuse(stream: str, data: bytes) -> None:
        time.sleep(0.3)
        raise KeyError(stream)

    playing(act)
    with pytest.raises(KeyError):
        client.call("exec", timeout_s=5, on_event=refuse)
    assert client.call("ping", timeout_s=5)[0] == {"second": True}


def test_odd_events_and_errors_of_a_guest_are_errors_of_its_own(guest: Guest, client: AgentClient) -> None:
    def act() -> None:
        request = guest.link.receive().header
        guest.link.send({"id": request["id"], "event": ["no", "stream"]})
        guest.link.send({"id": request["id"], "event": {"x": 1}}, [b"data"])
        guest.link.send({"id": request["id"], "error": {"kind": "world", "message": "the shelf fell", "traceback": 7}})

    playing(act)
    with pytest.raises(WorldError, match="the shelf fell"):
        client.call("world.step", timeout_s=5, on_event=lambda stream, data: None)


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
