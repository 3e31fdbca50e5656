"""An episode whose world is in one guest and whose controller in another: the host carries their dialogue."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from microsim_guest.relay import WINDOW

from microsim_vm import answers
from microsim_vm.agent import Client
from microsim_vm.episode import End
from microsim_vm.errors import AgentError, ControllerMachineError, MicrosimError

FINISH_S = 60.0  # how long the controller's guest may take to end it
SPARE_S = 5.0  # how much longer than its episode a request may wait to be taken
NOTE_BYTES = 100  # of the note between the beginning and the end of an output that was not kept as a whole


class Outcome(NamedTuple):
    """How an episode ended.

    Attributes:
        result: The world host's answer, with the controller's end in it.
        blobs: The answer's attachments, with the controller's output before them.
        lost: Why the controller's guest cannot be heard any more, or not believed; None where it is in order.
    """

    result: dict[str, Any]
    blobs: tuple[bytes, ...]
    lost: ControllerMachineError | None


class _Way:
    """One direction of the dialogue. What the receiver has not taken yet is bounded, whatever either guest says."""

    def __init__(self, token: str, sender: Client, receiver: Client, ends_at: float) -> None:
        self._token = token
        self._sender = sender
        self._receiver = receiver
        self._ends_at = ends_at
        self._lock = threading.Lock()
        self._waiting = 0  # bytes sent and not taken
        self._ended = False

    def carry(self, data: bytes) -> None:
        """Pass bytes on.

        Raises:
            AgentError: They are more than the sender may send, or the receiver cannot be reached.
        """
        with self._lock:
            self._waiting += len(data)
            if self._waiting > WINDOW:
                raise AgentError(
                    f"it sent more than {WINDOW >> 10} KiB that were not taken", cause="it breaks its protocol"
                )
        if data:
            self._tell(self._receiver, "relay.input", {}, [data])

    def taken(self, text: bytes) -> None:
        """Tell the sender how many bytes the receiver says it has taken; more than it was sent are no good.

        Raises:
            AgentError: It is no number, or the sender cannot be reached.
        """
        with self._lock, answers.read("relay"):
            size = min(int(text[:20]), self._waiting)
            if size < 0:
                raise ValueError(f"{size} bytes were taken")
            self._waiting -= size
        if size:
            self._tell(self._sender, "relay.confirm", {"size": size}, [])

    def end(self) -> None:
        """Tell the receiver, once, that nothing more comes; it may be gone."""
        with self._lock:
            before, self._ended = self._ended, True
        if not before:
            with contextlib.suppress(MicrosimError):
                self._tell(self._receiver, "relay.end", {}, [])

    def _tell(self, client: Client, op: str, args: Mapping[str, Any], blobs: Sequence[bytes]) -> None:
        timeout_s = max(SPARE_S, self._ends_at - time.monotonic() + SPARE_S)
        client.tell(op, {"relay": self._token, **args}, blobs, timeout_s=timeout_s)


class Episode:
    """One episode of a world and of a controller in another guest, which may be anything's by now.

    Args:
        world: The world's guest.
        place: The controller's.
        name: The latter's name.
        program: The controller's file.
        args: Of the operation ``world.episode``.
        timeout_s: How long the world's guest may take for all of it.
    """

    def __init__(
        self, world: Client, place: Client, name: str, program: bytes, args: Mapping[str, Any],
        timeout_s: float,
    ) -> None:  # fmt: skip
        self._token = uuid.uuid4().hex
        self._world, self._place = world, place
        self._name = name
        self._program = program
        self._args = {**args, "relay": self._token}
        self._timeout_s = timeout_s
        ends_at = time.monotonic() + args["timeout_s"]
        self._out = _Way(self._token, world, place, ends_at)
        self._back = _Way(self._token, place, world, ends_at)
        self._thread: threading.Thread | None = None
        self._end: tuple[dict[str, Any], tuple[bytes, ...]] | None = None
        self._lost: AgentError | None = None

    def run(self) -> Outcome:
        """Run it, and end the controller in any case.

        Raises:
            WorldError: The world raised.
            AgentError: The world's guest died or hangs.
        """
        try:
            # The controller's file does not concern the world's guest.
            result, blobs = self._world.call(
                "world.episode", self._args, [b""], timeout_s=self._timeout_s, on_event=self._from_world
            )
        except BaseException:
            self._finish(wait_s=SPARE_S)
            raise
        self._finish(wait_s=FINISH_S)
        if self._end is None or self._lost is not None:
            unknown = msgspec.to_builtins(End(exit_code=0, ended=False, events={}, left=0, refused={}, output=(0, 0)))
            return Outcome({**result, "controller": unknown}, (b"", b"", *blobs), self._explained())
        end, output = self._end
        return Outcome({**result, "controller": end}, (*output, *blobs), None)

    def _from_world(self, event: str, data: bytes) -> None:
        if event == "start" and self._thread is None:
            with answers.read("world.episode"):
                seed = msgspec.json.decode(data, type=dict[str, int | None])["seed"]
            self._thread = threading.Thread(target=self._visit, args=(seed,), name="microsim-controller", daemon=True)
            self._thread.start()
        elif event == "taken":
            self._back.taken(data)
        elif self._lost is None:
            try:
                self._out.carry(data) if event == "data" else self._out.end()
            except AgentError as error:  # of the controller's guest
                self._lost = error
                self._back.end()

    def _visit(self, seed: int | None) -> None:
        """Let the other guest run the controller, and pass on what it says."""
        start = {key: self._args[key] for key in ("kind", "filename", "words", "limits", "relay")}
        try:
            result, blobs = self._place.call(
                "controller.visit", {**start, "seed": seed, "env": {}}, [self._program],
                timeout_s=self._timeout_s + FINISH_S, on_event=self._from_place,
            )  # fmt: skip
            self._end = _checked(result, blobs, self._args["limits"]["output_bytes"])
        except MicrosimError as error:
            self._lost = self._lost or (error if isinstance(error, AgentError) else AgentError(error.what))
        finally:
            self._back.end()

    def _from_place(self, event: str, data: bytes) -> None:
        if event == "data":
            self._back.carry(data)
        elif event == "taken":
            self._out.taken(data)
        else:
            self._back.end()

    def _finish(self, wait_s: float) -> None:
        if self._thread is None:
            return
        with contextlib.suppress(MicrosimError):
            self._place.tell("relay.finish", {"relay": self._token}, timeout_s=SPARE_S)
        self._thread.join(wait_s)

    def _explained(self) -> ControllerMachineError:
        lost = self._lost or AgentError("it did not end the controller in time", cause="it hangs")
        return ControllerMachineError(
            f"the machine {self._name!r}, which the controller ran in, was lost: {lost.what}",
            cause=lost.cause, hint="the world's machine lives; the next episode needs a new rollout",
            details=lost.details,
        )  # fmt: skip


def _checked(result: dict[str, Any], output: tuple[bytes, ...], kept: int) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    """Return a controller's end as a guest tells it, which may be lying but not in its form.

    Raises:
        AgentError: It is none.
    """
    with answers.read("controller.visit"):
        end = msgspec.to_builtins(msgspec.convert(result, End))
        stdout, stderr = output
        if max(map(len, output)) > kept + NOTE_BYTES:
            raise ValueError("more output than is kept")
        return end, (stdout, stderr)
