"""The world host's side of one controller: what it is asked, how long it may take, and how it can fail."""

import contextlib
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from microsim_guest import dialogue, driver, streams, wire


class ControllerFailed(driver.DriverFailed):
    """The controller did not load, raised, died, or returned something that is no action."""


class ControllersGone(wire.KnownError):
    """The controller host is dead: no episode can be run any more."""

    kind = "agent"

    def __init__(self) -> None:
        super().__init__("the process that starts controllers died")


class ControllerEnded(ControllerFailed):
    """The controller's process ended, or closed its link."""

    kind = "controller_ended"


class ControllerTimedOut(ControllerFailed):
    """The episode's wall-clock limit passed."""

    kind = "controller_timeout"


class ControllerLate(ControllerFailed):
    """A step's deadline passed, and the episode does not go on without an action."""

    kind = "controller_late"


class ControllerLink(driver.Driver):
    """One controller, for one episode.

    Args:
        host: Socket to the controller host, or to the agent where another guest has the controller.
        request: ``kind``, ``filename``, ``words``, ``limits``, ``timeout_s``; ``step_deadline_s``, ``env``
            (additional environment) and ``relay`` (the dialogue's name) where there are any.
        program: The controller's file.
        seed: The episode's; None leaves the controller's generators as the snapshot had them.
    """

    def __init__(self, host: socket.socket, request: Dict[str, Any], program: bytes, seed: Optional[int]) -> None:
        self._host = wire.SocketLink(host)
        self._deadline = time.monotonic() + request["timeout_s"]
        self._limit = request["timeout_s"]
        self._step_limit: Optional[float] = request.get("step_deadline_s")
        self._owed = False  # an answer that came too late is still to come
        ours, theirs = socket.socketpair()
        # A stream of its own: the controller must not be able to replay the world's randomness.
        own = None if seed is None else streams.integer(seed, "controller")
        kind = request.get("kind", "python")
        self._dialogue = dialogue.Frames(ours) if kind == "python" else dialogue.Lines(ours, small(own))
        start = {
            "kind": kind,
            "filename": request["filename"],
            "words": request.get("words", []),
            "seed": own,
            "limits": request["limits"],
            "env": request.get("env", {}),
            "relay": request.get("relay", ""),
        }
        with theirs:
            try:
                wire.send_command(host, b"S", start, [program], theirs)
            except OSError:
                raise ControllersGone from None

    def wait_ready(self, space: Any, clock: driver.Clock) -> None:
        """Wait until the controller has been loaded. From here on its time counts."""
        self._deadline = time.monotonic() + self._limit
        self._checked(self._waited(self._dialogue.greet, "loading", self._deadline))

    def grant(self, seconds: float) -> None:
        """Give the controller the time that something else has spent."""
        self._deadline += seconds

    def act(self, observation: Any, step: int) -> Tuple[Any, bool]:
        """Send one observation and wait for the action.

        Returns:
            The action, and False; or None and True where it does not come before the step's deadline. The answer that
            is still to come is for an observation of the past, and will be dropped; until then the controller is
            sent no other.

        Raises:
            ControllerFailed: Of any kind.
        """
        limit = self._deadline
        if self._step_limit is not None:
            limit = min(limit, time.monotonic() + self._step_limit)
        try:
            if self._owed:
                with contextlib.suppress(OSError):
                    self._dialogue.flush(limit)
                self._checked(self._waited(self._dialogue.answer, "acting", limit))
                self._owed = False
            elif self._spoke():
                raise ControllerFailed("the controller answered before it was asked, at step {}".format(step))
            self._owed = True
            # Where it died or does not read, the answer below says so, after any error it still reported.
            with contextlib.suppress(OSError):
                self._dialogue.ask(observation, step, limit)
            answer = self._waited(self._dialogue.answer, "acting", limit)
            self._owed = False
            return self._checked(answer).get("action"), False
        except socket.timeout:
            return None, True

    def described(self) -> str:
        """Say that the controller returned it."""
        return "the controller returned"

    def _spoke(self) -> bool:
        try:
            return self._dialogue.spoke()
        except OSError:
            return False

    def _waited(self, wait: Any, activity: str, limit: float) -> Dict[str, Any]:
        try:
            answer: Dict[str, Any] = wait(limit)
            return answer
        except socket.timeout:
            if time.monotonic() < self._deadline:
                raise
            raise ControllerTimedOut(
                "the controller was still {} when the episode's {:g} s were over".format(activity, self._limit)
            ) from None
        except dialogue.Broken as wrong:
            raise ControllerFailed("the controller sent no answer: {}".format(wrong)) from None
        except (wire.LinkClosed, OSError):
            raise ControllerEnded("the controller's process ended while {}".format(activity)) from None

    def _checked(self, answer: Dict[str, Any]) -> Dict[str, Any]:
        error = answer.get("error")
        if error is not None:
            raise ControllerFailed(
                "the controller raised {}: {}".format(error.get("kind"), error.get("message")),
                str(error.get("traceback", "")),
            )
        return answer

    def finish(self) -> Tuple[Dict[str, Any], List[bytes]]:
        """End the controller; return what its place says of its end, and its captured output."""
        self._dialogue.sock.close()
        try:
            wire.send_command(self._host.sock, b"F", {})
            frame = self._host.receive()
        except (OSError, wire.LinkClosed):
            raise ControllersGone from None
        return frame.header["ok"], list(frame.blobs)


def small(seed: Optional[int]) -> Optional[int]:
    """Return a seed that fits into the integers of any language: 53 bits, as JSON's numbers have."""
    return None if seed is None else seed & ((1 << 53) - 1)
