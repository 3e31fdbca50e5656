"""The host's end of the agent's channel: requests out, answers and streamed output back."""

from __future__ import annotations

import collections
import contextlib
import itertools
import queue
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from microsim_guest import wire

from microsim_vm import endings
from microsim_vm.endings import Ending
from microsim_vm.errors import (
    AgentError,
    AgentTimeoutError,
    ChannelClosedError,
    ControllerError,
    SnapshotError,
    WorldError,
)  # fmt: skip

_KINDS: dict[str, type[AgentError] | type[ControllerError]] = {"world": WorldError, "controller": ControllerError}

FLUSH_S = 20.0  # how long a guest may take to write its files out before it is copied
MAX_PENDING = 64 << 20  # bytes of a request's output that its caller has not taken
SEND_BYTES = 1 << 20
FRAME_COST = 1024  # what a frame costs beside its attachments and its header
HEADER_COST = 16  # bytes of memory that a byte of a header's text may become
LOOK_S = 2.0  # how often a waiting call looks whether the guest still lives


class Caller(Protocol):
    """The way to a guest's agent."""

    def call(
        self,
        op: str,
        args: dict[str, Any] | None = None,
        blobs: Sequence[bytes] = (),
        *,
        timeout_s: float,
        on_event: Callable[[str, bytes], None] | None = None,
    ) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        """Make one request and wait for its answer. See :meth:`AgentClient.call`."""


class Client(Caller, Protocol):
    """The way to a guest's agent, for whoever holds the guest."""

    def tell(self, op: str, args: dict[str, Any], blobs: Sequence[bytes] = (), *, timeout_s: float) -> None:
        """Send a request that has no answer. See :meth:`AgentClient.tell`."""

    def quiesced(self, *, flush_s: float = FLUSH_S) -> contextlib.AbstractContextManager[None]:
        """Leave nothing in flight while the block runs. See :meth:`AgentClient.quiesced`."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be asked any more."""

    def close(self) -> None:
        """Close the way; whoever waits gets a ChannelClosedError."""


class Channeled(Protocol):
    """What a client needs of a guest."""

    @property
    def channel(self) -> socket.socket:
        """The host's end of the agent's channel."""

    def alive(self) -> bool:
        """Tell whether anybody will answer."""

    def console(self) -> str:
        """Return the tail of the guest's console."""


class _Answers:
    """What has come for one request and is not taken yet: bounded, so that no guest fills the host's memory."""

    def __init__(self) -> None:
        self._frames: collections.deque[wire.Frame | None] = collections.deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self.too_much = False

    def put(self, frame: wire.Frame | None) -> None:
        """Add a frame, or None for the end of the channel; what is too much is dropped, and the request fails."""
        with self._changed:
            self._bytes += _size(frame)
            self.too_much = self.too_much or self._bytes > MAX_PENDING
            if not self.too_much:
                self._frames.append(frame)
            self._changed.notify_all()

    def get(self, timeout_s: float) -> wire.Frame | None:
        """Take the next frame.

        Raises:
            queue.Empty: None came in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._frames or self.too_much, timeout_s):
                raise queue.Empty
            if self.too_much:
                raise AgentError(
                    f"more than {MAX_PENDING >> 20} MiB of output came faster than they were taken",
                    cause="the guest does not keep to its protocol: an agent waits until its output is taken",
                )
            frame = self._frames.popleft()
            self._bytes -= _size(frame)
            return frame


def _size(frame: wire.Frame | None) -> int:
    if frame is None:
        return 0
    return sum(map(len, frame.blobs)) + frame.header_size * HEADER_COST + FRAME_COST


class AgentClient:
    """Talks to one guest's agent; any number of threads may call at the same time.

    Args:
        vm: The guest; its channel is closed by :meth:`close`.
    """

    def __init__(self, vm: Channeled) -> None:
        self._vm = vm
        self._channel = vm.channel
        # A fork's agent still holds answers for its parent's host; no number of ours may be one of theirs.
        self._epoch = secrets.token_hex(4)
        self._ids = itertools.count(1)
        self._waiting: dict[str, _Answers] = {}
        self._send_lock = threading.RLock()
        self._unsent = bytearray()
        self._closed = False
        self._ending: Ending | None = None  # why the channel ended, where that was seen on it
        self._agent_died = False
        self._cut_off = False
        self._quiet = False  # the guest is being copied: the end of its channel need not be its own
        self._reading = True
        self._ends = threading.Lock()
        self._start_reading()

    def call(
        self,
        op: str,
        args: dict[str, Any] | None = None,
        blobs: Sequence[bytes] = (),
        *,
        timeout_s: float,
        on_event: Callable[[str, bytes], None] | None = None,
    ) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        """Make one request and wait for its answer.

        Args:
            op: The operation.
            args: Its arguments.
            blobs: Binary attachments.
            timeout_s: Deadline in seconds.
            on_event: Called with ``(stream, data)`` for streamed output, in this thread.

        Returns:
            The result and its attachments.

        Raises:
            AgentTimeoutError: No answer in time.
            ChannelClosedError: The guest or the engine died.
            WorldError: The world raised.
            ControllerError: The action is none.
            AgentError: The agent reported another error.
        """
        request_id = f"{self._epoch}-{next(self._ids)}"
        answers = _Answers()
        self._waiting[request_id] = answers
        deadline = time.monotonic() + timeout_s
        try:
            if self._closed:  # the reader is gone: nobody would ever hand us the answer
                raise self._gone(op)
            self._send(op, wire.encode({"id": request_id, "op": op, "args": args or {}}, blobs), deadline)
            while True:
                remaining = deadline - time.monotonic()
                if remaining <= 0:  # also where it has never been silent
                    raise self._late(f"the guest did not answer {op!r} within {timeout_s:g} s")
                try:
                    frame = answers.get(min(remaining, LOOK_S))
                except queue.Empty:
                    if not self._vm.alive():
                        self._end()  # the next one need not wait to find out
                        raise self._gone(op) from None
                    continue
                if frame is None:
                    raise self._gone(op)
                if "event" not in frame.header:
                    return self._result(op, frame)
                if on_event is not None and frame.blobs:
                    on_event(str(frame.header["event"]), frame.blobs[0])
        finally:
            del self._waiting[request_id]

    def tell(self, op: str, args: dict[str, Any], blobs: Sequence[bytes] = (), *, timeout_s: float) -> None:
        """Send a request that has no answer.

        Raises:
            AgentTimeoutError: The guest did not take it in time.
            ChannelClosedError: The guest or the engine died.
        """
        if self._closed:
            raise self._gone(op)
        header = {"id": f"{self._epoch}-{next(self._ids)}", "op": op, "args": args}
        self._send(op, wire.encode(header, blobs), time.monotonic() + timeout_s)

    @contextlib.contextmanager
    def quiesced(self, *, flush_s: float = FLUSH_S) -> Iterator[None]:
        """Leave nothing in flight on the channel, and the guest's files flushed, while the block runs.

        Requests of other threads wait until its end. Commands in the guest run on; what they print waits.

        Raises:
            SnapshotError: The guest cannot flush its files, or does not answer.
        """
        if not self._send_lock.acquire(timeout=flush_s):
            raise SnapshotError(f"the guest cannot be copied now: it has not taken a request for {flush_s:g} s")
        try:
            try:
                self.call("quiesce", {"flush_s": flush_s}, timeout_s=flush_s + LOOK_S)
            except AgentError as error:
                with contextlib.suppress(AgentError):
                    self.call("resume", timeout_s=LOOK_S)
                raise SnapshotError(
                    f"the guest cannot be copied now: {error.what}",
                    cause="a file system in it is frozen or broken, or the guest hangs",
                    hint="it runs on; see what it is busy with, and try again", details=error.details,
                ) from error  # fmt: skip
            self._quiet = True
            try:
                yield
            finally:
                self._go_on()
                with contextlib.suppress(AgentError):  # it may have been ended meanwhile
                    self.call("resume", timeout_s=LOOK_S * 5)
        finally:
            self._send_lock.release()

    @property
    def closed(self) -> bool:
        """The channel is closed, from here or by the guest's end."""
        return self._closed

    def close(self) -> None:
        """Close the channel; whoever waits gets a ChannelClosedError."""
        self._ending = self._ending or (None if self._closed else endings.CLOSED)
        self._closed = True
        with contextlib.suppress(OSError):  # it may be closed from the other side
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()

    def _result(self, op: str, frame: wire.Frame) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        return result_of(op, frame)

    def _send(self, op: str, data: bytes, deadline: float) -> None:
        if not self._send_lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise self._late(f"{op!r} did not get its turn to be sent in time")
        try:
            # What could not be sent of an earlier frame comes first: half of one would be the end of the channel.
            self._unsent += data
            begun = len(self._unsent) - len(data)
            while self._unsent:
                try:
                    sent = self._channel.send(self._unsent[:SEND_BYTES], socket.MSG_DONTWAIT)
                    del self._unsent[:sent]
                    begun -= sent
                except BlockingIOError:
                    self._wait_to_send(op, begun, len(data), deadline)
        except OSError:
            raise self._gone(op) from None
        finally:
            self._send_lock.release()

    def _wait_to_send(self, op: str, before: int, size: int, deadline: float) -> None:
        """Wait until the channel takes more; at the deadline withdraw a frame of which nothing was sent."""
        remaining = deadline - time.monotonic()
        if remaining > 0:
            poll = select.poll()
            poll.register(self._channel, select.POLLOUT)
            poll.poll(min(remaining, LOOK_S) * 1000.0)
            return
        if before >= 0:
            del self._unsent[len(self._unsent) - size :]
        raise self._late(f"the guest did not take {op!r} in time")

    def _late(self, what: str) -> AgentTimeoutError:
        return AgentTimeoutError(
            what, cause="the guest hangs, or the machine is overloaded",
            hint="see the end of the guest's console, and how busy the machine is", details=_tail(self._vm.console()),
        )  # fmt: skip

    def _start_reading(self) -> None:
        threading.Thread(target=self._read, args=(self._channel,), name="microsim-agent-reader", daemon=True).start()

    def _go_on(self) -> None:
        """Take the channel that the guest has after the copy: an engine may have had to start it anew."""
        with self._ends:
            self._quiet = False
            if self._vm.channel is not self._channel:
                self._channel.close()
                self._channel, self._reading = self._vm.channel, True
                self._agent_died = self._cut_off = False
                self._start_reading()
            elif not self._reading:
                self._end()

    def _read(self, channel: socket.socket) -> None:
        link = wire.SocketLink(channel, read_ahead=True)
        ending = None
        agent_died = False
        try:
            while True:
                frame = link.receive()
                if "gone" in frame.header:
                    agent_died = True
                    break
                answers = self._waiting.get(str(frame.header.get("id")))
                if answers is not None:  # an answer that came after its deadline has no reader
                    answers.put(frame)
        except wire.ProtocolError as error:
            ending = endings.garbled(error)
        except (wire.LinkClosed, OSError):
            pass
        with self._ends:
            if channel is not self._channel:  # the guest has had another one for a while
                return
            self._ending = self._ending or ending
            self._agent_died, self._cut_off = agent_died, link.unread
            self._reading = False
            if not self._quiet:
                self._end()

    def _end(self) -> None:
        self._closed = True
        for waiting in list(self._waiting.values()):
            waiting.put(None)

    def _gone(self, op: str) -> ChannelClosedError:
        console = self._vm.console()
        ending = self._ending or endings.told(console, self._vm, agent_died=self._agent_died)
        self._ending = ending  # the next call need not wait for an engine's end
        where = ", in the middle of a frame" if self._cut_off and ending is not endings.CLOSED else ""
        return ChannelClosedError(
            f"the link to the guest was lost during {op!r}{where}", cause=ending.cause,
            hint=endings.hinted(ending, op), details=_tail(console),
        )  # fmt: skip


def result_of(op: str, frame: wire.Frame) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    """Return what a request's last frame says.

    Raises:
        WorldError: The world raised.
        ControllerError: The action is none.
        AgentError: The agent reported another error.
    """
    error, result = frame.header.get("error"), frame.header.get("ok", {})
    if error is None and isinstance(result, dict):
        return result, frame.blobs
    if not isinstance(error, dict):
        raise AgentError(f"{op}: the guest's answer is malformed")
    kind = _KINDS.get(str(error.get("kind")), AgentError)
    hint, details = str(error.get("hint", "")), str(error.get("traceback", ""))
    raise kind(f"{op}: {error.get('message')}", hint=hint, details=details)


def _tail(console: str) -> str:
    return "\n".join(console.splitlines()[-40:])
