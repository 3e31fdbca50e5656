"""The agent's local socket: ``world.*`` requests from inside the guest, by root alone, in the same frames."""

import os
import socket
import threading
from typing import Any, Callable, Dict, List, Tuple

from microsim_guest import wire

PATH = "/run/microsim/agent.sock"
Ask = Callable[[str, Any, Tuple[bytes, ...]], wire.Frame]


class NotServed(wire.KnownError):
    """The operation is not for processes inside the guest."""

    kind = "request"


class RequestFailed(Exception):
    """The answer was an error.

    Attributes:
        kind: ``world``, ``controller`` and so on.
        details: The guest's traceback, or an empty string.
    """

    def __init__(self, error: Dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.kind = str(error["kind"])
        self.details = str(error.get("traceback", ""))


def listen(ask: Ask) -> None:
    """Open the socket and serve it in threads of its own.

    Args:
        ask: Makes one request of the world host and waits for its answer.
    """
    os.makedirs(os.path.dirname(PATH), mode=0o700, exist_ok=True)
    server = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)  # no moment at which others could connect
    try:
        server.bind(PATH)
    finally:
        os.umask(mask)
    server.listen(16)
    threading.Thread(target=_accept, args=(server, ask), daemon=True).start()


def _accept(server: socket.socket, ask: Ask) -> None:
    while True:
        connection = server.accept()[0]
        threading.Thread(target=_serve, args=(connection, ask), daemon=True).start()


def _serve(connection: socket.socket, ask: Ask) -> None:
    """Answer one client, one request at a time, until it hangs up: a client that does not read waits alone."""
    link = wire.SocketLink(connection)
    with connection:
        try:
            while True:
                frame = link.receive()
                answer = _answer(frame, ask)
                header = {key: value for key, value in answer.header.items() if key != "blobs"}
                link.send(dict(header, id=frame.header.get("id")), answer.blobs)
        except (wire.LinkClosed, wire.ProtocolError, OSError):
            return


def _answer(frame: wire.Frame, ask: Ask) -> wire.Frame:
    op = str(frame.header.get("op"))
    if op.startswith("world."):
        return ask(op, frame.header.get("args", {}), frame.blobs)
    error = NotServed("only world.* operations are served in the guest, not {!r}".format(op))
    return wire.Frame({"error": wire.error_header(error)}, ())


class Client:
    """The other end: a process in the guest that drives the world.

    Raises:
        OSError: Not root, or the agent is gone.
    """

    def __init__(self) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(PATH)
        self._link = wire.SocketLink(self._sock)

    def ask(self, op: str, args: Dict[str, Any], blobs: Tuple[bytes, ...] = ()) -> Tuple[Dict[str, Any], List[bytes]]:
        """Make a request and wait for its result and attachments.

        Raises:
            RequestFailed: The answer is an error.
            wire.LinkClosed: The agent is gone.
        """
        self._link.send({"id": 1, "op": op, "args": args}, blobs)
        answer = self._link.receive()
        if "error" in answer.header:
            raise RequestFailed(answer.header["error"])
        return answer.header["ok"], list(answer.blobs)
