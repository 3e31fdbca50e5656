"""A dialogue between two guests, whose bytes the host carries over the agents' channels; this is one guest's end.

In the world's guest the end is a place for controllers as any other (:class:`Remote`), so that the world host cannot
tell it from a child of its own guest. In the controller's guest it stands for the world (:class:`Visit`).
"""

import contextlib
import json
import os
import select
import socket
import threading
from typing import Any, Callable, Dict, List, Tuple

from microsim_guest import place, wire

WINDOW = 1 << 20  # bytes sent to the host that the other guest has not taken yet; beyond that the sender has to wait
CONFIRM = WINDOW // 4  # bytes taken until the host is told

Emit = Callable[[str, bytes], None]

_lock = threading.Lock()
_open: Dict[str, "Pump"] = {}


class Pump:
    """Moves bytes between a socket of this guest and the host.

    Events are ``data`` (of the socket), ``taken`` (how many bytes of the other guest's the socket has taken), and
    ``end`` (of what the socket gives).

    Args:
        token: The dialogue's unique name, chosen by the host.
        sock: The socket; closed by :meth:`close`.
        emit: Takes the events.
    """

    def __init__(self, token: str, sock: socket.socket, emit: Emit) -> None:
        self._token = token
        self._sock = sock
        self._emit = emit
        self._lock = threading.Lock()
        self._pending = bytearray()
        self._unconfirmed = 0
        self._taken = 0
        self._ended = False  # the other guest says nothing more
        self._stopped = False
        sock.setblocking(False)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with _lock:
            _open[token] = self

    def input(self, data: bytes) -> None:
        """Take bytes of the other guest; the host sends no more than :data:`WINDOW` that were not taken yet."""
        with self._lock:
            if self._stopped:
                return
            self._pending += data
            self._write()
            if self._pending:
                self._wake()

    def end(self) -> None:
        """Note that the other guest has closed its end."""
        with self._lock:
            self._ended = True
            if not self._stopped:
                self._write()

    def confirm(self, size: int) -> None:
        """Note that the other guest has taken so many bytes."""
        with self._lock:
            self._unconfirmed -= size
            self._wake()

    def stop(self) -> None:
        """Let :meth:`run` return."""
        with self._lock:
            self._stopped = True
            self._wake()

    def run(self) -> None:
        """Move bytes until :meth:`stop`, then close the socket."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        reading = True
        while True:
            with self._lock:
                if self._stopped:
                    break
                wanted = select.POLLIN if reading and self._unconfirmed < WINDOW else 0
                wanted |= select.POLLOUT if self._pending else 0
            if wanted:
                poll.register(self._sock, wanted)
            ready = dict(poll.poll())
            if wanted:  # a socket that nothing is wanted of would still say that its other end is closed
                poll.unregister(self._sock)
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            events = ready.get(self._sock.fileno(), 0)
            if events & ~select.POLLIN:
                with self._lock:
                    self._write()
            if events & ~select.POLLOUT and wanted & select.POLLIN:
                reading = self._read()
        self._close()

    def _read(self) -> bool:
        """Pass some bytes on; return False at their end."""
        try:
            data = self._sock.recv(min(wire.CHUNK, WINDOW - self._unconfirmed))
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            self._emit("end", b"")
            return False
        with self._lock:
            self._unconfirmed += len(data)
        self._emit("data", data)
        return True

    def _write(self) -> None:
        """Let the socket take what it can; our lock is held."""
        try:
            while self._pending:
                size = self._sock.send(self._pending[: wire.CHUNK])
                del self._pending[:size]
                self._taken += size
        except BlockingIOError:
            pass
        except OSError:  # nobody reads it any more
            self._taken += len(self._pending)
            self._pending.clear()
        if self._taken >= CONFIRM:
            size, self._taken = self._taken, 0
            self._emit("taken", str(size).encode())
        if self._ended and not self._pending:
            with contextlib.suppress(OSError):  # the other end may be closed
                self._sock.shutdown(socket.SHUT_WR)

    def _wake(self) -> None:
        if self._wake_write >= 0:
            with contextlib.suppress(BlockingIOError):  # it is awake
                os.write(self._wake_write, b"x")

    def _close(self) -> None:
        with _lock:
            _open.pop(self._token, None)
        with self._lock:
            self._sock.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_write = -1


class Remote(place.Place):
    """Another guest, as a place for controllers. What runs there, and how it ended, the host knows without us.

    Args:
        emitters: By a dialogue's token, what takes its events; used up.
    """

    def __init__(self, emitters: Dict[str, Emit]) -> None:
        self._emitters = emitters

    def start(self, args: Dict[str, Any], program: bytes, link: socket.socket) -> None:
        """Ask the host for a controller with this seed."""
        emit = self._emitters.pop(args["relay"])
        self._pump = Pump(args["relay"], link, emit)
        emit("start", json.dumps({"seed": args["seed"]}).encode())
        self._thread = threading.Thread(target=self._pump.run, daemon=True)
        self._thread.start()

    def finish(self) -> Tuple[Dict[str, Any], List[bytes]]:
        """End the dialogue."""
        self._pump.stop()
        self._thread.join()
        return {}, []


class Visit:
    """A controller of this guest for another guest's world.

    Args:
        token: The dialogue's unique name, chosen by the host.
        emit: Takes its events.
    """

    def __init__(self, token: str, emit: Emit) -> None:
        ours, self._theirs = socket.socketpair()
        self._pump = Pump(token, ours, emit)

    def run(
        self, controllers: socket.socket, start: Dict[str, Any], program: bytes
    ) -> Tuple[Dict[str, Any], List[bytes]]:
        """Run the controller until the host says that its episode is over.

        Args:
            controllers: To the controller host; nobody else uses it meanwhile.
            start: See :meth:`microsim_guest.place.Place.start`.
            program: Likewise.

        Returns:
            See :meth:`microsim_guest.place.Place.finish`.

        Raises:
            OSError: The controller host is dead.
            wire.LinkClosed: Likewise.
        """
        try:
            with self._theirs:
                wire.send_command(controllers, b"S", start, [program], self._theirs)
        except OSError:
            self._pump.stop()
            raise
        finally:
            self._pump.run()
        wire.send_command(controllers, b"F", {})
        frame = wire.SocketLink(controllers).receive()
        return frame.header["ok"], list(frame.blobs)


def find(token: str) -> "Pump":
    """Return a dialogue that goes on.

    Raises:
        LookupError: It is over.
    """
    with _lock:
        return _open[token]
