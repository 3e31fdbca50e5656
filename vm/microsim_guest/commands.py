"""Run a command for the host: streamed output, a deadline, and no survivors of it."""

import array
import fcntl
import os
import selectors
import subprocess
import termios
import time
from typing import Any, Callable, Dict, List, Optional

from microsim_guest import accounts, jobs, wire

WORKSPACE = "/workspace"
DRAIN_S = 1.0  # how long to wait for the end of the pipes after everything has been killed


def run(
    token: str,
    argv: List[str],
    *,
    env: Dict[str, str],
    extra_env: Dict[str, str],
    cwd: Optional[str],
    user: Optional[str],
    stdin: bytes,
    timeout_s: float,
    output_bytes: int,
    emit: Callable[[str, bytes], None],
) -> Dict[str, Any]:
    """Run ``argv`` in a control group of its own and stream its output through ``emit(stream, data)``.

    The command ends when its main process does: what it left in the background runs on (a fork bomb excepted), and what
    that prints is dropped. At the deadline everything it started is killed, also what has detached itself into
    other sessions.

    Args:
        token: The command's unique name, for :func:`microsim_guest.jobs.cancel`.
        argv: The command.
        env: The environment that all processes have.
        extra_env: What the caller adds to it.
        cwd: Its working directory; None for the workspace.
        user: Name or number of the user it runs as; None for root.
        stdin: What it reads.
        timeout_s: Deadline in seconds.
        output_bytes: Bytes passed on of stdout, and as many of stderr; the rest is read and dropped.
        emit: Takes the output.

    Returns:
        ``exit_code`` (negative signal number when killed), ``timed_out``, ``duration_ms``, ``dropped``, the
        number of bytes not passed on, and ``limits_hit``, the names of limits that it ran into.

    Raises:
        ValueError: The guest has no such user.
        OSError: The command cannot be started.
    """
    started = time.monotonic()
    account = accounts.find(user) if user is not None else None
    job = jobs.Job(token)

    def enter() -> None:
        job.enter()
        if account is not None:
            account.become()

    pipes = None
    try:
        process = subprocess.Popen(
            argv,
            env={**env, **(account.env if account is not None else {}), **extra_env},
            cwd=cwd or WORKSPACE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=enter,
        )
        pipes = _Pipes(process, job, stdin, output_bytes, emit)
        try:
            job.started()
            timed_out = not pipes.move_until_end(started + timeout_s)
            if timed_out:
                job.kill()
                pipes.drain(time.monotonic() + DRAIN_S)
            else:
                pipes.take_what_is_there()
        except BaseException:  # the host cannot be reached: nobody would ever end it
            job.kill()
            raise
        code = process.wait()
        limits_hit = job.limits_hit()
    finally:
        job.end(pipes.hand_over() if pipes is not None else [])
    return {
        "exit_code": code,
        "timed_out": timed_out,
        "duration_ms": (time.monotonic() - started) * 1000.0,
        "dropped": pipes.dropped,
        "limits_hit": limits_hit,
    }


class _Pipes:
    """Moves bytes between a process's three pipes and the host."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        job: jobs.Job,
        stdin: bytes,
        limit: int,
        emit: Callable[[str, bytes], None],
    ) -> None:
        self.dropped = 0
        self._process = process
        self._job = job
        self._pending = memoryview(stdin)
        self._room = {"stdout": limit, "stderr": limit}
        self._emit = emit
        self._selector = selectors.DefaultSelector()
        for name in ("stdin", "stdout", "stderr"):
            stream = getattr(process, name)
            fd = os.dup(stream.fileno())
            stream.close()
            os.set_blocking(fd, False)
            event = selectors.EVENT_WRITE if name == "stdin" else selectors.EVENT_READ
            self._selector.register(fd, event, name)

    def move_until_end(self, deadline: float) -> bool:
        """Move bytes until the main process ends; False when the deadline passes first."""
        while self._process.poll() is None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            if not self._job.may_send(min(remaining, 0.05)):
                continue
            if self._selector.get_map():
                self._move(min(remaining, 0.05))
            else:  # it closed its pipes: most often it is ending
                try:
                    self._process.wait(remaining)
                except subprocess.TimeoutExpired:
                    return False
        return True

    def take_what_is_there(self) -> None:
        """Read what is in the pipes now, and no more: something in the background may never stop writing."""
        for key in list(self._selector.get_map().values()):
            if key.data == "stdin":
                continue
            size = array.array("i", [0])
            fcntl.ioctl(key.fd, termios.FIONREAD, size)
            while size[0] > 0:
                data = os.read(key.fd, min(size[0], wire.CHUNK))
                size[0] -= len(data)
                self._pass_on(key.data, data)

    def drain(self, deadline: float) -> None:
        """Read to the end of the pipes, once nobody writes any more."""
        while self._selector.get_map() and time.monotonic() < deadline:
            self._move(0.05)

    def hand_over(self) -> List[int]:
        """Close all but the outputs that somebody still holds, and return those."""
        held = []
        for key in list(self._selector.get_map().values()):
            if key.data == "stdin":
                self._done(key)
            else:
                held.append(key.fd)
        self._selector.close()
        return [fd for fd in held if not _at_its_end(fd)]

    def _move(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            if key.data == "stdin":
                self._feed(key)
                continue
            data = os.read(key.fd, wire.CHUNK)
            if data:
                self._pass_on(key.data, data)
            else:
                self._done(key)

    def _pass_on(self, stream: str, data: bytes) -> None:
        passed_on = data[: self._room[stream]]
        self._room[stream] -= len(passed_on)
        self.dropped += len(data) - len(passed_on)
        if passed_on:
            self._job.sent(len(passed_on))
            self._emit(stream, passed_on)

    def _feed(self, key: selectors.SelectorKey) -> None:
        try:
            self._pending = self._pending[os.write(key.fd, self._pending[: wire.CHUNK]) :]
        except BrokenPipeError:
            self._pending = self._pending[:0]
        if not self._pending:
            self._done(key)

    def _done(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fd)
        os.close(key.fd)


def _at_its_end(fd: int) -> bool:
    """Tell whether nobody holds the other end of an output any more, and close it then."""
    try:
        ended = not os.read(fd, wire.CHUNK)
    except BlockingIOError:
        ended = False
    if ended:
        os.close(fd)
    return ended
