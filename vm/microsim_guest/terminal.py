"""Terminals: a command on a pseudo-terminal of its own, driven by the host."""

import array
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional

from microsim_guest import accounts, commands, jobs, kernel, wire
from microsim_guest.foreground import Foreground

WINDOW = 256 * 1024  # bytes sent to the host and not yet confirmed; beyond that the command has to wait
MAX_INPUT = 1024 * 1024  # bytes typed and not yet read
IN_FLIGHT = 64 * 1024  # bytes that Linux may hold between a terminal's two sides, and does not count yet
MAX_UNREAD = 16 * 1024 * 1024  # bytes printed and not yet read, where the kernel lets a command print without end

ENDED = "this terminal has ended"

_open: Dict[str, "Terminal"] = {}


class Terminal:
    """A command with a controlling terminal, in a session and a control group of its own.

    Args:
        token: Its unique name, chosen by the host.
        argv: The command; None for a shell.
        env: The environment that all processes have.
        extra_env: What the caller adds to it.
        user: Name or number of the user it runs as; None for root.
        rows: Height in characters.
        columns: Width in characters.

    Raises:
        ValueError: The guest has no such user.
        OSError: The command cannot be started.
    """

    def __init__(
        self,
        token: str,
        argv: Optional[List[str]],
        *,
        env: Dict[str, str],
        extra_env: Dict[str, str],
        user: Optional[str],
        rows: int,
        columns: int,
    ) -> None:
        self._token = token
        account = accounts.find(user or "root")
        shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        self._lock = threading.Lock()
        self._attached = False
        self._pending = b""
        self._unconfirmed = 0
        self._job = jobs.Job(token)
        self._master, slave = pty.openpty()
        self._foreground = Foreground(self._master) if kernel.is_gvisor() else None

        def enter() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            if self._foreground is not None:
                self._foreground.attend()
            self._job.enter()
            account.become()

        try:
            _set_size(self._master, rows, columns)
            os.fchown(slave, account.uid, account.gid)
            self._process = subprocess.Popen(
                argv or [shell],
                env={**env, "TERM": "xterm-256color", "SHELL": shell, **account.env, **extra_env},
                cwd=commands.WORKSPACE,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
                preexec_fn=enter,
            )
        except BaseException:
            self._close_terminal()
            self._job.end([])
            raise
        finally:
            os.close(slave)
        self._job.started()
        os.set_blocking(self._master, False)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _open[token] = self

    def run(self, emit: Callable[[str, bytes], None]) -> Dict[str, Any]:
        """Pass the output on through ``emit("output", data)`` until the command ends; return its ``exit_code``."""
        with self._lock:
            if self._attached:
                raise ValueError("this terminal's output is being read already")
            self._attached = True
        try:
            readable = True
            while self._process.poll() is None:
                readable = self._move(emit, readable, 0.05)
            self._pass_on_what_is_there(emit)
        finally:
            code = self._finish()
        return {"exit_code": code}

    def input(self, data: bytes) -> None:
        """Type; the command need not read it at once.

        Raises:
            ValueError: It has left too much unread, or it has ended.
        """
        with self._in_use():
            if len(self._pending) + len(data) > MAX_INPUT:
                raise ValueError("more than {} bytes were typed that the command does not read".format(MAX_INPUT))
            self._pending += data
            self._wake()

    def resize(self, rows: int, columns: int) -> None:
        """Change the size; the command is told by SIGWINCH."""
        with self._in_use():
            _set_size(self._master, rows, columns)
            if self._foreground is not None:
                self._foreground.signal(signal.SIGWINCH)

    def confirm(self, size: int) -> None:
        """Note that the host has dealt with so many bytes of output."""
        with self._in_use():
            self._unconfirmed -= size
            self._wake()

    def close(self) -> None:
        """Kill the command and all it started."""
        self._job.kill()
        with self._lock:
            attached, self._attached = self._attached, True
        if not attached:
            self._finish()

    def _move(self, emit: Callable[[str, bytes], None], readable: bool, timeout: float) -> bool:
        reads = [self._wake_read]
        if readable and self._unconfirmed < WINDOW:
            reads.append(self._master)
        self._drop_what_is_too_much(emit)
        reads, writes, _ = select.select(reads, [self._master] if self._pending else [], [], timeout)
        if self._wake_read in reads:
            os.read(self._wake_read, 4096)
        if writes:
            self._write()
        return self._read(emit) is not None if self._master in reads else readable

    def _read(self, emit: Callable[[str, bytes], None]) -> Optional[int]:
        """Pass some output on, and return how much; None when nobody has the terminal open any more."""
        try:
            data = os.read(self._master, wire.CHUNK)
        except BlockingIOError:
            return 0
        except OSError:  # EIO: what a terminal has in place of an end
            return None
        with self._lock:
            self._unconfirmed += len(data)
        emit("output", data)
        return len(data)

    def _drop_what_is_too_much(self, emit: Callable[[str, bytes], None]) -> None:
        """Leave most of the output out where nobody takes it and the kernel (gVisor's) still takes more."""
        dropped = 0
        while _unread(self._master) > (MAX_UNREAD // 2 if dropped else MAX_UNREAD):
            dropped += len(os.read(self._master, wire.CHUNK))
        if dropped:
            emit("output", "\r\n[... {} bytes left out ...]\r\n".format(dropped).encode())

    def _pass_on_what_is_there(self, emit: Callable[[str, bytes], None]) -> None:
        """Pass on what is there now, and no more: something in the background may never stop writing."""
        left = max(_unread(self._master), IN_FLIGHT)
        while left > 0 and not self._job.cancelled:
            if self._unconfirmed >= WINDOW:
                self._move(emit, False, 0.05)
                continue
            size = self._read(emit)
            if not size:
                return
            left -= size

    def _write(self) -> None:
        with self._lock:
            text, number = self._pending[:4096], None
            try:
                if self._foreground is not None:
                    text, number = self._foreground.split(text)
                written = os.write(self._master, text) if text else 0
                self._pending = self._pending[written:]
                if self._foreground is not None and number is not None and written == len(text):
                    self._foreground.signal(number)
                    self._pending = self._pending[1:]
            except BlockingIOError:
                return
            except OSError:
                self._pending = b""

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"!")
        except BlockingIOError:
            return  # it has been woken often enough

    def _finish(self) -> int:
        if self._process.poll() is None:
            self._job.kill()
        code = self._process.wait()
        with self._lock:
            del _open[self._token]
            self._close_terminal()
            for fd in (self._wake_read, self._wake_write):
                os.close(fd)
        self._job.end([])
        return code

    def _close_terminal(self) -> None:
        if self._foreground is not None:
            self._foreground.close()
        os.close(self._master)

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep the descriptors open meanwhile: a number that has been closed may be somebody else's already."""
        with self._lock:
            if _open.get(self._token) is not self:
                raise ValueError(ENDED)
            yield


def _set_size(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _unread(fd: int) -> int:
    size = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, size)
    return size[0]


def find(token: str) -> Terminal:
    """Return an open terminal.

    Raises:
        ValueError: It has ended, or there never was one.
    """
    try:
        return _open[token]
    except KeyError:
        raise ValueError(ENDED) from None
