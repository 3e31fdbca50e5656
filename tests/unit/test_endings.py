"""Why a guest's channel ended, as its console and its engine tell it."""

from __future__ import annotations

import socket
import time

import pytest
from microsim_guest import wire
from microsim_vm import endings
from microsim_vm.agent import AgentClient
from microsim_vm.endings import Ending
from microsim_vm.errors import ChannelClosedError

PANIC = "[   19.8] Kernel panic - not syncing: {}\n[   19.9] CPU: 0 PID: 128 Comm: sh\n"
STARVED = "[    9.1] Out of memory: Killed process 116 (python3) total-vm:1kB\n"
OUTGROWN = "words\nmicrosim: killed: the guest used 517 MiB of the host's memory\n"


class Engine:
    """Ends after it was asked some times."""

    def __init__(self, answers: int) -> None:
        self.answers = answers

    def alive(self) -> bool:
        self.answers -= 1
        return self.answers >= 0


class Guest(Engine):
    """One with a channel, whose other end the test has."""

    def __init__(self, answers: int) -> None:
        super().__init__(answers)
        self.channel, self.other = socket.socketpair()

    def console(self) -> str:
        return "last words\n"


@pytest.mark.parametrize(
    ("console", "agent_died", "cause", "hint"),
    [
        (PANIC.format("sysrq triggered crash"), False, "the guest's kernel panicked: sysrq triggered crash", "console"),
        (PANIC.format("System is deadlocked on memory"), False, "deadlocked on memory", "raise machine.memory_mib"),
        (STARVED, True, "ran out of memory, and its kernel killed python3", "raise machine.memory_mib"),
        (STARVED + PANIC.format("no init"), False, "the guest's kernel panicked: no init", "console"),
        (OUTGROWN, False, "the guest used 517 MiB of the host's memory", "raise machine.memory_mib"),
        ("words", True, "the agent in the guest was killed, or crashed", "what the last command was"),
    ],
)
def test_a_console_tells(console: str, agent_died: bool, cause: str, hint: str) -> None:
    found = endings.told(console, Engine(1000), agent_died=agent_died)
    assert cause in found.cause
    assert hint in found.hint


@pytest.mark.parametrize(("answers", "ending"), [(0, endings.ENGINE), (3, endings.ENGINE), (10**6, endings.UNKNOWN)])
def test_an_engine_is_given_a_moment_to_end(answers: int, ending: Ending) -> None:
    started = time.monotonic()
    assert endings.told("words", Engine(answers)) == ending
    assert time.monotonic() - started < endings.END_S + 1


@pytest.mark.parametrize(
    ("sent", "where", "cause"),
    [
        (
            b"garbage, and more of it",
            ", in the middle of a frame",
            "what came from the guest is no answer (not a frame",
        ),
        (wire.encode({"id": "1", "ok": {}})[:12], ", in the middle of a frame", endings.ENGINE.cause),
        (b"", "", endings.ENGINE.cause),
        (wire.encode({"gone": True}), "", endings.AGENT.cause),
    ],
)
def test_what_came_last_is_told_with_every_request_from_then_on(sent: bytes, where: str, cause: str) -> None:
    guest = Guest(0)
    client = AgentClient(guest)
    guest.other.sendall(sent)
    guest.other.shutdown(socket.SHUT_WR)
    for _ in range(2):
        with pytest.raises(ChannelClosedError) as caught:
            client.call("ping", timeout_s=5)
        assert caught.value.what == f"the link to the guest was lost during 'ping'{where}"
        assert cause in caught.value.cause
        assert caught.value.hint
        assert caught.value.details == "last words"
    client.close()
    guest.other.close()


def test_a_guest_that_ran_out_of_memory_in_an_episode_is_not_told_to_grow_alone() -> None:
    outgrown = endings.told(OUTGROWN, Engine(1000))
    assert "controller.memory_mib" in endings.hinted(outgrown, "world.episode")
    assert outgrown.hint in endings.hinted(outgrown, "world.episode")
    assert endings.hinted(outgrown, "exec") == outgrown.hint
    assert endings.hinted(endings.AGENT, "world.episode") == endings.AGENT.hint


def test_what_was_closed_from_here_is_no_crash() -> None:
    guest = Guest(1000)
    client = AgentClient(guest)
    client.close()
    with pytest.raises(ChannelClosedError) as caught:
        client.call("ping", timeout_s=5)
    assert (caught.value.cause, caught.value.hint) == endings.CLOSED
    guest.other.close()
