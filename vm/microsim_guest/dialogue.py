"""How the world host and a controller talk: frames with this project's own child, lines of JSON with any program.

Both are the world's side, which believes nothing: what arrives is bounded in size and in time, and read as data.

The line protocol, version 1. The program reads lines from its standard input and writes lines to its standard output,
each one JSON object in UTF-8 that ends with a newline. For each step it is sent

    {"protocol": 1, "step": 0, "seed": 123, "observation": [0.1, 0.2]}

(``protocol`` and ``seed``, the controller's own seed or null, with step 0 alone) and answers, when it likes,

    {"action": [0.5]}

An array is a list, or lists in a list; a number that is none (NaN, infinite) arrives as null. At the episode's end
its standard input ends. What it says unasked, or otherwise, ends the episode as its failure.
"""

import json
import math
import os
import random
import socket
from typing import Any, Dict, List, Optional

from microsim_guest import codec, wire

MAX_ACTION = 16 * 1024 * 1024  # of numbers in arrays, which take no more memory than bytes
# What is text may become fifty times as much memory, of a guest that may have little.
MAX_TEXT = 256 * 1024
SHOWN = 80  # characters of a bad line that are repeated
PROTOCOL = 1


class Broken(Exception):
    """The controller said something that is no answer; the text says what."""


class Dialogue:
    """One controller's end of the conversation.

    Args:
        sock: To the controller.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def greet(self, deadline: float) -> Dict[str, Any]:
        """Wait until the controller is ready; return what it said."""
        return {}

    def ask(self, observation: Any, step: int, deadline: float) -> None:
        """Send an observation. What a deadline leaves of it is sent by :meth:`flush`.

        Raises:
            socket.timeout: It is not taken in time.
        """
        raise NotImplementedError

    def flush(self, deadline: float) -> None:
        """Send what is left of the last observation.

        Raises:
            socket.timeout: It is not taken in time.
        """
        raise NotImplementedError

    def answer(self, deadline: float) -> Dict[str, Any]:
        """Wait for an answer: "action", or "error". After a timeout it can be waited for again.

        Raises:
            socket.timeout: It did not come in time.
            wire.LinkClosed: The controller has closed its end.
            Broken: It is none.
        """
        raise NotImplementedError

    def spoke(self) -> bool:
        """Tell whether there is something to read although nothing was asked, where only looking can tell."""
        return False


class Frames(Dialogue):
    """With :mod:`microsim_guest.controller`, which has loaded the user's Python file.

    Each question has a number that cannot be foreseen, and its answer repeats it: what is sent unasked has none.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._link = wire.SocketLink(sock, max_blobs=MAX_ACTION, read_ahead=True, max_header=MAX_TEXT)
        self._numbers = random.Random(os.urandom(16))
        self._asked = 0

    def greet(self, deadline: float) -> Dict[str, Any]:
        """Wait until the file has been loaded, or has failed to."""
        return self.answer(deadline)

    def ask(self, observation: Any, step: int, deadline: float) -> None:
        """Send an observation as a frame."""
        blobs: List[bytes] = []
        self._asked = self._numbers.getrandbits(63)
        self._link.send({"asked": self._asked, "observation": codec.pack(observation, blobs)}, blobs, deadline)

    def flush(self, deadline: float) -> None:
        """Send the rest of a frame."""
        self._link.flush(deadline)

    def answer(self, deadline: float) -> Dict[str, Any]:
        """Wait for a frame."""
        try:
            frame = self._link.receive(deadline)
            if isinstance(frame.header.get("error"), dict):
                return {"error": frame.header["error"]}
            if frame.header.get("asked", 0) != self._asked:
                raise Broken("it answered before it was asked")
            return {"action": codec.unpack(frame.header.get("action"), frame.blobs)}
        except (wire.ProtocolError, ValueError) as error:
            raise Broken("it wrote to the framework's link: {}".format(error)) from None


class Lines(Dialogue):
    """With any program.

    Args:
        sock: Its standard input and output.
        seed: The controller's.
    """

    def __init__(self, sock: socket.socket, seed: Optional[int]) -> None:
        super().__init__(sock)
        self._seed = seed
        self._link = wire.SocketLink(sock, read_ahead=True)

    def ask(self, observation: Any, step: int, deadline: float) -> None:
        """Send an observation as a line."""
        message = {"step": step, "observation": plain(observation)}
        if step == 0:
            message = dict({"protocol": PROTOCOL}, **message, seed=self._seed)
        self._link.send_bytes(json.dumps(message, separators=(",", ":")).encode() + b"\n", deadline)

    def flush(self, deadline: float) -> None:
        """Send the rest of a line."""
        self._link.flush(deadline)

    def answer(self, deadline: float) -> Dict[str, Any]:
        """Wait for a line."""
        try:
            line = self._link.receive_line(MAX_TEXT, deadline)
        except wire.ProtocolError as error:
            raise Broken(str(error)) from None
        try:
            message = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise Broken("its line is no JSON in UTF-8 ({}): {}".format(type(error).__name__, _shown(line))) from None
        if not isinstance(message, dict) or "action" not in message:
            raise Broken('its line is no object with an "action": {}'.format(_shown(line)))
        return {"action": message["action"]}

    def spoke(self) -> bool:
        """Tell whether anything was said unasked."""
        if self._link.unread:
            return True
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False


def plain(value: Any) -> Any:
    """Return an observation as what JSON has: lists for arrays, null for numbers that are none."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    return repr(value)[:200]


def _shown(line: bytes) -> str:
    text = repr(line[:SHOWN].decode("utf-8", "backslashreplace"))
    return text if len(line) <= SHOWN else "{} and {} bytes more".format(text, len(line) - SHOWN)
