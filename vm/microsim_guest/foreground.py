"""What a terminal does for those in its foreground, where the kernel's terminals do not: gVisor's."""

import os
import signal
import termios
from typing import Optional, Tuple

# Which of a terminal's control characters mean which signal.
MEANINGS = ((termios.VINTR, signal.SIGINT), (termios.VQUIT, signal.SIGQUIT), (termios.VSUSP, signal.SIGTSTP))


class Foreground:
    """Sends signals to a terminal's foreground.

    Only a process of the terminal's own session is told who that is. So one is started there that does nothing else;
    it ends after :meth:`close`.

    Args:
        master: The terminal, from its other side.
    """

    def __init__(self, master: int) -> None:
        self._master = master
        self._numbers, self._send = os.pipe()

    def attend(self) -> None:
        """Start that process; to be called in the session's first one, whose standard input is the terminal.

        It is nobody's child, so that nobody waits for it, and still the agent's user, whom no signal is refused.
        """
        child = os.fork()
        if child != 0:
            os.waitpid(child, 0)
            return
        if os.fork() == 0:
            _serve(self._numbers)
        os._exit(0)

    def signal(self, number: int) -> None:
        """Send a signal to all in the foreground."""
        os.write(self._send, bytes([number]))

    def split(self, typed: bytes) -> Tuple[bytes, Optional[int]]:
        """Return what was typed before the first character that means a signal now, and that signal."""
        flags, characters = termios.tcgetattr(self._master)[3::3]
        if flags & termios.ISIG:
            for place in range(len(typed)):
                for index, number in MEANINGS:
                    if typed[place : place + 1] == characters[index] != b"\0":
                        return typed[:place], number
        return typed, None

    def close(self) -> None:
        """Let the process end."""
        for fd in (self._numbers, self._send):
            os.close(fd)


def _serve(numbers: int) -> None:
    """Be the process in the session; never returns."""
    try:
        os.setpgid(0, 0)
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in (0, numbers):
                try:
                    os.close(int(name))
                except OSError:
                    continue  # the descriptor of the listing itself
        while True:
            number = os.read(numbers, 1)
            if not number:
                return
            try:
                os.killpg(os.tcgetpgrp(0), number[0])
            except OSError:
                continue  # there is nobody any more
    finally:
        os._exit(0)
