"""A child of this process that does for it what it cannot do itself, and is asked over a socket."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Sequence

from microsim_vm import spawn

TIMEOUT_S = 30.0


class Companion:
    """The child; its standard input is the other end of the socket.

    Args:
        argv: What it is started with.

    Attributes:
        owner: The process that it belongs to: a fork of that one has to start its own.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self.owner = os.getpid()
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.settimeout(TIMEOUT_S)
        with theirs:
            self._process = spawn.child(argv, stdin=theirs.fileno())
        self._turn = threading.Lock()

    def alive(self) -> bool:
        """Tell whether it is this process's own, and runs."""
        return self.owner == os.getpid() and self._process.poll() is None

    def leave(self) -> None:
        """End it; what it has made or started stays."""
        self._link.close()
        if self.owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        elif self._process.stderr is not None:
            self._process.stderr.close()

    def _last_words(self) -> str:
        """End it where it has not ended, and return what it said on standard error."""
        said = b""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.kill()
            _, said = self._process.communicate(timeout=5)
        return said.decode("utf-8", "replace")[-2000:]
