"""A small synchronous QMP client.

qemu.qmp, the asyncio one, costs an event loop and a thread per guest; on the path of a fork, where QMP is five
short exchanges, this one costs under a millisecond.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from microsim_vm.errors import EngineError


class Qmp:
    """One QMP session over a connected socket.

    Args:
        sock: Our end of the monitor's socket; owned by this object from here on.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""
        self._lock = threading.Lock()
        self._events: deque[dict[str, Any]] = deque(maxlen=256)
        self._ids = itertools.count(1)

    def negotiate(self, timeout_s: float) -> None:
        """Wait for the greeting and leave negotiation mode."""
        self._message(time.monotonic() + timeout_s)
        self.command("qmp_capabilities", timeout_s=timeout_s)

    def command(
        self, name: str, *, timeout_s: float = 10.0, descriptors: Sequence[int] = (), **arguments: Any
    ) -> Any:  # fmt: skip
        """Run one command, which may take descriptors, and return its result.

        Raises:
            EngineError: QEMU refused it, did not answer in time, or died.
        """
        deadline = time.monotonic() + timeout_s
        number = next(self._ids)
        named = {key.replace("_", "-"): value for key, value in arguments.items()}
        request = {"execute": name, "id": number, **({"arguments": named} if named else {})}
        with self._lock:
            try:
                self._sock.settimeout(max(0.001, deadline - time.monotonic()))
                data = json.dumps(request).encode()
                sent = socket.send_fds(self._sock, [data], descriptors) if descriptors else 0
                self._sock.sendall(data[sent:])
            except TimeoutError:
                raise EngineError(f"QEMU did not take {name} on its monitor in time") from None
            except OSError as error:
                raise EngineError(f"QEMU is gone: {name} could not be sent ({error.strerror})") from None
            while True:
                message = self._message(deadline)
                if "event" in message:
                    self._events.append(message)
                elif message.get("id", number) != number:
                    continue  # the late answer to a command that was given up
                elif "error" in message:
                    raise EngineError(f"QEMU refused {name}: {message['error'].get('desc', message['error'])}")
                elif "return" in message:
                    return message["return"]

    def wait_event(self, *names: str, timeout_s: float) -> dict[str, Any]:
        """Return the next event of one of these names, past ones included.

        Raises:
            EngineError: It did not come in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            event = self._events.popleft() if self._events else self._message(deadline)
            if event.get("event") in names:
                return event

    def close(self) -> None:
        """Close the session."""
        self._sock.close()

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            try:
                self._sock.settimeout(max(0.001, deadline - time.monotonic()))
                data = self._sock.recv(65536)
            except TimeoutError:
                raise EngineError("QEMU did not answer on its monitor in time") from None
            except OSError as error:
                raise EngineError(f"QEMU is gone: {error.strerror}") from None
            if not data:
                raise EngineError("QEMU ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message
