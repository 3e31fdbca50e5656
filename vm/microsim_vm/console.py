"""This terminal, joined to one in a guest: keys in, screen out, sizes kept equal."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from microsim_vm.errors import MicrosimError

if TYPE_CHECKING:
    from microsim_vm.guest import Guest
    from microsim_vm.terminal import Terminal

PIECE = 16384
PASSED_ON = ("TERM", "COLORTERM", "LANG")  # what a program needs to know of the terminal


def attach(guest: Guest, command: Sequence[str] | None, *, user: str | None, env: Mapping[str, str]) -> int:
    """Run a command, or a shell, on this terminal until it ends, and leave the terminal as it was.

    Args:
        guest: Where.
        command: Its words; None for a shell.
        user: Another user of the guest.
        env: Additional environment.

    Returns:
        The exit code; negative signal number when it was killed.

    Raises:
        AgentError: It could not be started, or the guest was lost.
    """
    rows, columns = _size()
    known = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    terminal = guest.terminal(command, rows=rows, columns=columns, user=user, env={**known, **env})
    with terminal, _raw(), _typing(terminal):
        return terminal.run(_show)


def _show(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _size() -> tuple[int, int]:
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return rows or 24, columns or 80


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Let every key through as it is, Ctrl-C too."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setraw(keyboard, termios.TCSADRAIN)  # what was typed already is for the shell
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _typing(terminal: Terminal) -> Iterator[None]:
    """Pass on keys and sizes, in a thread of its own."""
    reading, writing = os.pipe()

    def resized(number: int, frame: FrameType | None) -> None:
        os.write(writing, b"s")

    # The handler may interrupt this thread in the middle of a request, so another one makes the next.
    before = signal.signal(signal.SIGWINCH, resized)
    thread = threading.Thread(target=_pass_on, args=(terminal, reading), name="microsim-keys", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
        os.close(writing)
        thread.join()
        os.close(reading)


def _pass_on(terminal: Terminal, orders: int) -> None:
    keyboard = sys.stdin.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(keyboard, selectors.EVENT_READ)
        selector.register(orders, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if orders in ready:
                if not os.read(orders, PIECE):
                    return
                with contextlib.suppress(MicrosimError, OSError):  # it may be ending
                    terminal.resize(*_size())
            if keyboard in ready:
                try:
                    data = os.read(keyboard, PIECE)
                except OSError:
                    data = b""
                if not data:  # the terminal that we are on is gone
                    terminal.close()
                    selector.unregister(keyboard)
                    continue
                with contextlib.suppress(MicrosimError):  # it may be ending
                    terminal.write(data)
