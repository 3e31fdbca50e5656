"""What comes of a command in a guest: its output while it runs, and its result."""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from microsim_vm.agent import Caller
from microsim_vm.errors import AgentError, CommandInterruptedError, MicrosimError

CONTROL_TIMEOUT_S = 10.0


class _Output:
    """Output as bytes, and as text."""

    stdout_bytes: bytes
    stderr_bytes: bytes

    @property
    def stdout(self) -> str:
        """Output as text; bytes that are no UTF-8 are replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Error output as text; bytes that are no UTF-8 are replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")


@dataclass(frozen=True)
class ExecResult(_Output):
    """A finished command.

    Attributes:
        exit_code: Its status; negative signal number when it was killed.
        stdout_bytes: Output as it was, the first 16 MiB.
        stderr_bytes: Likewise.
        duration_ms: Wall-clock time in the guest, milliseconds.
        timed_out: It was killed, with all it had started, because its time was over.
        dropped_bytes: How much more output there was than is kept.
        limits_hit: "processes" where it was refused one more process or thread (a guest allows as many as it has
            MiB), or, on gVisor, had one more; "memory" where the guest's memory was used up and a process of it
            killed for that.
    """

    exit_code: int
    stdout_bytes: bytes
    stderr_bytes: bytes
    duration_ms: float
    timed_out: bool
    dropped_bytes: int = 0
    limits_hit: tuple[str, ...] = ()


@dataclass(frozen=True)
class PartialOutput(_Output):
    """What a command had printed when it was lost.

    Attributes:
        stdout_bytes: Output as it was, the first 16 MiB.
        stderr_bytes: Likewise.
    """

    stdout_bytes: bytes
    stderr_bytes: bytes


class Confirming:
    """Tells the guest how much of an output was taken, so that it sends more: a slow taker slows the command down."""

    def __init__(self, caller: Caller, op: str, token: str, *, every: int) -> None:
        self._caller = caller
        self._op = op
        self._token = token
        self._every = every
        self._unconfirmed = 0

    def __call__(self, size: int) -> None:
        """Count bytes that were taken."""
        self._unconfirmed += size
        if self._unconfirmed >= self._every:
            confirmed, self._unconfirmed = self._unconfirmed, 0
            with contextlib.suppress(MicrosimError):  # it may have ended, and this be the last of its output
                self._caller.call(self._op, {"token": self._token, "size": confirmed}, timeout_s=CONTROL_TIMEOUT_S)


class TextTaker:
    """Decodes one stream for a callback."""

    def __init__(self, taker: Callable[[str], None] | None) -> None:
        self._taker = taker
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, data: bytes, *, final: bool = False) -> None:
        """Hand on what is complete; with ``final`` all of it."""
        text = self._decoder.decode(data, final)
        if text and self._taker is not None:
            self._taker(text)


def interrupted(what: str, error: AgentError, partial: PartialOutput) -> CommandInterruptedError:
    """Return the error for a command whose end was not heard of.

    Args:
        what: The command, for the message.
        error: Why no answer came.
        partial: What had come of its output.
    """
    return CommandInterruptedError(
        f"{what} was interrupted: {error.what}",
        cause=error.cause,
        hint=error.hint,
        details=error.details,
        partial=partial,
    )
