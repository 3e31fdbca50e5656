"""Terminals: a command on a pseudo-terminal of its own, driven by the host."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional

from microsim_guest import accounts, commands, jobs, wire

WINDOW = 256 * 1024  # bytes sent to the host and not yet confirmed; beyond that the command has to wait
MAX_INPUT = 1024 * 1024  # bytes typed and not yet read

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

        def enter() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
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
            os.close(self._master)
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
            for _ in range(16):  # what is there; something in the background may never stop writing
                readable = readable and self._read(emit)
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
        reads, writes, _ = select.select(reads, [self._master] if self._pending else [], [], timeout)
        if self._wake_read in reads:
            os.read(self._wake_read, 4096)
        if writes:
            self._write()
        return self._read(emit) if self._master in reads else readable

    def _read(self, emit: Callable[[str, bytes], None]) -> bool:
        """Pass some output on; False when nobody has the terminal open any more."""
        try:
            data = os.read(self._master, wire.CHUNK)
        except BlockingIOError:
            return True
        except OSError:  # EIO: what a terminal has in place of an end
            return False
        with self._lock:
            self._unconfirmed += len(data)
        emit("output", data)
        return True

    def _write(self) -> None:
        with self._lock:
            try:
                self._pending = self._pending[os.write(self._master, self._pending[:4096]) :]
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
            for fd in (self._master, self._wake_read, self._wake_write):
                os.close(fd)
        self._job.end([])
        return code

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep the descriptors open meanwhile: a number that has been closed may be somebody else's already."""
        with self._lock:
            if _open.get(self._token) is not self:
                raise ValueError(ENDED)
            yield


def _set_size(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def find(token: str) -> Terminal:
    """Return an open terminal.

    Raises:
        ValueError: It has ended, or there never was one.
    """
    try:
        return _open[token]
    except KeyError:
        raise ValueError(ENDED) from None
