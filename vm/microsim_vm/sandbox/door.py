"""The door of a process: a socket at which other processes of the same user reach the sandboxes that live here.

Frames are those of the agent's channel. A request says ``sandbox``, and either the guest's operation (``ask``) or
one of :data:`CONTROLS`. Errors travel with their class and attributes.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from microsim_guest import wire

from microsim_vm import owner, runtime
from microsim_vm.cache import Cache
from microsim_vm.errors import MicrosimError, SandboxError, SandboxGoneError
from microsim_vm.sandbox import live
from microsim_vm.sandbox.live import Live
from microsim_vm.sandbox.store import Store

SUFFIX = ".door"

_answering: set[object] = set()
_opening = threading.Lock()


def path() -> str:
    """Return the path of this process's door, opened at the first call.

    Raises:
        SandboxError: It cannot be opened.
    """
    with _opening:
        return _open(os.getpid())


@functools.cache
def _open(pid: int) -> str:
    # The start time makes the name this very process's: the reaper compares it.
    place = runtime.folder() / f"{pid}-{owner.start_time(pid)}{SUFFIX}"
    place.unlink(missing_ok=True)
    atexit.register(_close, pid, place)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(place))
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise SandboxError(
            f"other processes could not reach a sandbox of this one: {place}: {error}",
            cause="XDG_RUNTIME_DIR is too long for a socket's path (107 bytes), or full",
            hint="set XDG_RUNTIME_DIR to a short folder of your own",
        ) from error
    threading.Thread(target=_serve, args=(listener,), name="microsim-door", daemon=True).start()
    return str(place)


def _close(pid: int, place: Path) -> None:
    if os.getpid() == pid:  # a forked child ends without closing its parent's
        place.unlink(missing_ok=True)


def finish(timeout_s: float) -> None:
    """Wait until every visitor has its answer: this process is about to end."""
    deadline = time.monotonic() + timeout_s
    while _answering and time.monotonic() < deadline:
        time.sleep(0.005)


def reap() -> None:
    """Remove the doors of processes that are gone."""
    for place in runtime.folder().glob(f"*{SUFFIX}"):
        pid, _, started = place.stem.partition("-")
        if pid.isdigit() and str(owner.start_time(int(pid))) != started:
            place.unlink(missing_ok=True)


def _serve(listener: socket.socket) -> None:
    while True:
        try:
            visitor, _ = listener.accept()
        except OSError:  # no descriptor is free: the visitor waits, and the door stays open
            time.sleep(0.1)
            continue
        _, uid, _ = struct.unpack("3i", visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        try:
            if uid not in (os.geteuid(), 0):
                raise PermissionError(uid)
            threading.Thread(target=_Visit(visitor).run, name="microsim-visit", daemon=True).start()
        except (PermissionError, RuntimeError):  # or no thread can be started
            visitor.close()


class _Visit:
    """One connection; every request runs in a thread of its own."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._link = wire.SocketLink(sock)
        self._send_lock = threading.Lock()
        self._commands: set[tuple[Live, str]] = set()

    def run(self) -> None:
        with contextlib.suppress(wire.LinkClosed, wire.ProtocolError, OSError), self._sock:
            while True:
                frame = self._link.receive()
                threading.Thread(target=self._answer, args=(frame,), daemon=True).start()
        # Nobody waits for what the visitor had started.
        for sandbox, token in list(self._commands):
            with contextlib.suppress(MicrosimError):
                sandbox.call("exec.cancel", {"token": token}, timeout_s=10.0)

    def _answer(self, frame: wire.Frame) -> None:
        request = object()
        _answering.add(request)
        try:
            result, blobs = self._handle(frame)
            self._send({"id": frame.header["id"], "ok": result}, blobs)
        except MicrosimError as error:
            said = {"kind": type(error).__name__, "state": _plain(vars(error))}
            self._send({"id": frame.header["id"], "error": said})
        except Exception as error:
            said = {"kind": "SandboxError", "state": vars(MicrosimError(f"{type(error).__name__}: {error}"))}
            self._send({"id": frame.header.get("id"), "error": said})
        finally:
            _answering.discard(request)

    def _handle(self, frame: wire.Frame) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        args = frame.header["args"]
        sandbox = live.find(Store(Cache(Path(args["cache"]))), args["sandbox"])
        if sandbox is None:
            raise SandboxGoneError(f"sandbox {args['sandbox']} is not here any more")
        if frame.header["op"] != "ask":
            return CONTROLS[frame.header["op"]](sandbox, args), ()

        def forward(stream: str, data: bytes) -> None:
            self._send({"id": frame.header["id"], "event": stream}, (data,))

        command = (sandbox, str(args["args"].get("token")))
        self._commands.add(command)
        try:
            return sandbox.call(
                args["op"], args["args"], frame.blobs, timeout_s=args["timeout_s"], on_event=forward
            )  # fmt: skip
        finally:
            self._commands.discard(command)

    def _send(self, header: dict[str, Any], blobs: tuple[bytes, ...] = ()) -> None:
        with contextlib.suppress(OSError), self._send_lock:
            self._link.send(header, blobs)


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if isinstance(value, str | int | float | bool | None)}


def _plainly(verb: str) -> Callable[[Live, dict[str, Any]], dict[str, Any]]:
    def control(sandbox: Live, _: dict[str, Any]) -> dict[str, Any]:
        getattr(sandbox, verb)()
        return {}

    return control


CONTROLS: dict[str, Callable[[Live, dict[str, Any]], dict[str, Any]]] = {
    **{verb: _plainly(verb) for verb in ("pause", "resume", "hibernate", "kill")},
    "console": lambda sandbox, _: {"text": sandbox.console()},
    "snapshot": lambda sandbox, args: msgspec.to_builtins(sandbox.snapshot(args["name"], args["metadata"])),
    "link_fork_point": lambda sandbox, args: {
        "base": msgspec.to_builtins(sandbox.link_fork_point(Path(args["folder"])))
    },
}
