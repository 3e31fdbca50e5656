"""A terminal in a guest."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from microsim_vm import answers
from microsim_vm.agent import Caller
from microsim_vm.errors import AgentTimeoutError, ChannelClosedError, MicrosimError
from microsim_vm.outputs import CONTROL_TIMEOUT_S, Confirming, PartialOutput, interrupted

TERMINAL_S = 365 * 86400.0
CONFIRM_BYTES = 64 << 10  # of its output; the guest sends four times as much before it waits


class Terminal:
    """A command on a terminal in the guest, as made by :meth:`Guest.terminal`; a context manager that closes it.

    One thread is in :meth:`run`; any other may :meth:`write`, :meth:`resize` and :meth:`close` meanwhile.
    """

    def __init__(self, caller: Caller, token: str) -> None:
        self._caller = caller
        self._token = token
        self._ended = threading.Event()

    def write(self, data: bytes) -> None:
        """Type.

        Raises:
            AgentError: The command has ended, or leaves more than 1 MiB unread.
        """
        self._control("terminal.input", {}, data)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size, in characters.

        Raises:
            AgentError: The command has ended.
        """
        self._control("terminal.resize", {"rows": rows, "columns": columns})

    def run(self, on_output: Callable[[bytes], None]) -> int:
        """Hand out what the terminal shows until the command ends; a slow callback slows the command down.

        Args:
            on_output: Takes the bytes, escape sequences and all.

        Returns:
            The exit code; negative signal number when the command was killed.

        Raises:
            CommandInterruptedError: The guest died, or the link to it was lost, before the command's end.
            AgentError: It has ended before, or is being run already.
        """
        taken = Confirming(self._caller, "terminal.confirm", self._token, every=CONFIRM_BYTES)

        def take(_: str, data: bytes) -> None:
            on_output(data)
            taken(len(data))

        try:
            answer, _ = self._caller.call("terminal.run", {"token": self._token}, timeout_s=TERMINAL_S, on_event=take)
        except BaseException as error:
            self.close()
            if isinstance(error, ChannelClosedError | AgentTimeoutError):
                raise interrupted("the terminal", error, PartialOutput(b"", b"")) from error
            raise
        self._ended.set()
        with answers.read("terminal.run"):
            return int(answer["exit_code"])

    def close(self) -> None:
        """Kill the command and all it started; may be called again."""
        if not self._ended.is_set():
            self._ended.set()
            with contextlib.suppress(MicrosimError):  # it has ended by itself, or the guest has
                self._control("terminal.close", {})

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _control(self, op: str, args: dict[str, Any], *blobs: bytes) -> None:
        self._caller.call(op, {"token": self._token, **args}, blobs, timeout_s=CONTROL_TIMEOUT_S)
