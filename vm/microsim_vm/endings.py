"""Why a guest's channel ended: what can be told from its console, its engine and what last came."""

from __future__ import annotations

import re
import time
from typing import NamedTuple, Protocol

END_S = 1.0  # an engine's channel is closed a moment before its process has ended
LOOK_S = 0.02
FAREWELL = "microsim: the agent is gone"  # on the console of a guest whose agent died
MEMORY_HINT = "raise machine.memory_mib in the template, or use less; files in the guest are memory too"
EPISODE_HINT = (
    "a controller was running, and may have done it: see what it does, and lower controller.memory_mib or "
    "controller.open_files; else {}"
)
_PANIC = re.compile(r"Kernel panic - not syncing: *(.*)")
_OUT_OF_MEMORY = re.compile(r"Out of memory: Killed process \d+ \(([^)]*)\)")
_KILLED = re.compile(r"^microsim: killed: (.*)$", re.MULTILINE)


class Ending(NamedTuple):
    """Why no answer will come.

    Attributes:
        cause: The likely cause.
        hint: The next step.
    """

    cause: str
    hint: str


class Guest(Protocol):
    """What is looked at."""

    def alive(self) -> bool:
        """Tell whether the engine's process still runs."""


CLOSED = Ending(
    "it was closed from here, by its owner, before the answer came",
    "keep the rollout, sandbox or machine open until its last request has been answered",
)
AGENT = Ending(
    "the agent in the guest was killed, or crashed; root in the guest can do that, also by killing every process",
    "see the end of the guest's console, and what the last command was",
)
UNKNOWN = Ending(
    "the channel was closed while the guest's engine ran on: the guest crashed, or somebody closed it from outside",
    "see the end of the guest's console, and run the test again",
)
ENGINE = Ending(
    "its engine's process ended: the guest ended itself, the engine crashed, or it was killed from outside, as by the "
    "host's kernel when memory runs out",
    "look for the engine (qemu or runsc) in the host's kernel log; else run the test again",
)


def garbled(error: Exception) -> Ending:
    """Return the ending of a channel on which something came that is no frame."""
    return Ending(
        f"what came from the guest is no answer ({error}); root in the guest can write that to the agent's channel",
        "do not trust what this guest has said before; see what in it writes to other processes' descriptors",
    )


def hinted(ending: Ending, op: str) -> str:
    """Return an ending's hint for the request that did not get its answer: an episode's names the controller too."""
    return EPISODE_HINT.format(ending.hint) if op == "world.episode" and ending.hint == MEMORY_HINT else ending.hint


def told(console: str, guest: Guest, *, agent_died: bool = False) -> Ending:
    """Return why a guest's channel ended, as far as its console and its engine tell.

    Args:
        console: The console's tail.
        guest: The guest; its engine is given a moment to end.
        agent_died: The guest said that its agent did.
    """
    if killed := _KILLED.findall(console):
        return Ending(killed[-1], MEMORY_HINT)
    if panic := _PANIC.search(console):
        return Ending(
            f"the guest's kernel panicked: {panic[1].strip()}",
            MEMORY_HINT if "memory" in panic[1] else "see the end of the guest's console",
        )
    if starved := _OUT_OF_MEMORY.findall(console):
        return Ending(f"the guest ran out of memory, and its kernel killed {starved[-1]}", MEMORY_HINT)
    if agent_died:
        return AGENT
    deadline = time.monotonic() + END_S
    while guest.alive():
        if time.monotonic() > deadline:
            return UNKNOWN
        time.sleep(LOOK_S)
    return ENGINE
