"""A sandbox whose microVM belongs to another process, reached through that process's door."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from microsim_guest import wire

from microsim_vm import errors
from microsim_vm.agent import AgentClient
from microsim_vm.errors import ChannelClosedError, SandboxGoneError, SandboxStateError
from microsim_vm.sandbox.saved import SavedSnapshot
from microsim_vm.sandbox.store import Record, Store
from microsim_vm.snapshots import FileRecord

CONTROL_TIMEOUT_S = 300.0


class _Way:
    """The connection, in the shape of a guest whose agent is the other process."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.channel = socket.socket(socket.AF_UNIX)
        try:
            self.channel.connect(record.door)
        except OSError as error:
            self.channel.close()
            if record.owner is not None and record.owner.alive():
                raise SandboxStateError(
                    f"sandbox {record.id} belongs to process {record.owner.pid}, which cannot be reached: {error}",
                    hint="its door was removed; end that process, or use the sandbox in it",
                ) from None
            raise SandboxGoneError(f"the process of sandbox {record.id} is gone") from None

    def alive(self) -> bool:
        return self._record.owner is not None and self._record.owner.alive()

    def console(self) -> str:
        return ""


class _DoorClient(AgentClient):
    """Talks to a process's door."""

    def _result(self, op: str, frame: wire.Frame) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        error = frame.header.get("error")
        if error is not None:
            raise errors.rebuilt(error["kind"], error["state"])
        return super()._result(op, frame)


class Visitor:
    """The same requests as :class:`microsim_vm.sandbox.live.Live`, made from another process.

    Args:
        store: Where the sandbox's record is.
        record: The sandbox.

    Raises:
        SandboxGoneError: Its process is gone.
        SandboxStateError: Its process cannot be reached.
    """

    def __init__(self, store: Store, record: Record) -> None:
        self.record = record
        self._where = {"cache": str(store.cache.root), "sandbox": record.id}
        self._client = _DoorClient(_Way(record))
        self._uses = threading.Lock()
        self._under_way = 0
        self._left = False

    def call(
        self,
        op: str,
        args: dict[str, Any] | None = None,
        blobs: Sequence[bytes] = (),
        *,
        timeout_s: float,
        on_event: Callable[[str, bytes], None] | None = None,
    ) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        """Ask the guest's agent."""
        request = {**self._where, "op": op, "args": args or {}, "timeout_s": timeout_s}
        try:
            with self._in_use():
                # The other end has the same deadline, and more to say about it.
                return self._client.call("ask", request, blobs, timeout_s=timeout_s + 10.0, on_event=on_event)
        except ChannelClosedError as error:
            raise ChannelClosedError(
                f"the process of sandbox {self.record.id} ended during {op!r}", cause=error.cause
            ) from None

    def pause(self) -> None:
        """Stop its processors."""
        self._control("pause")

    def resume(self) -> None:
        """Let it run on."""
        self._control("resume")

    def hibernate(self) -> None:
        """Write it to the disk and end its microVM."""
        self._control("hibernate")

    def kill(self) -> None:
        """End it and remove all that is its."""
        self._control("kill")

    def console(self) -> str:
        """Return the tail of its console."""
        return str(self._control("console")["text"])

    def snapshot(self, name: str | None, metadata: Mapping[str, str]) -> SavedSnapshot:
        """Save the present moment."""
        return msgspec.convert(self._control("snapshot", name=name, metadata=dict(metadata)), type=SavedSnapshot)

    def link_fork_point(self, folder: Path) -> FileRecord | None:
        """Put what a fork starts from into an empty folder."""
        answer = self._control("link_fork_point", folder=str(folder))
        return msgspec.convert(answer["base"], type=FileRecord | None)

    def close(self) -> None:
        """Close the connection, once the requests of other threads have their answers."""
        with self._uses:
            self._left = True
            if not self._under_way:
                self._client.close()

    def _control(self, verb: str, **args: Any) -> dict[str, Any]:
        with self._in_use():
            return self._client.call(verb, {**self._where, **args}, timeout_s=CONTROL_TIMEOUT_S)[0]

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._uses:
            if self._left:
                raise SandboxGoneError(f"sandbox {self.record.id} was ended, hibernated or handed on")
            self._under_way += 1
        try:
            yield
        finally:
            with self._uses:
                self._under_way -= 1
                if self._left and not self._under_way:
                    self._client.close()
