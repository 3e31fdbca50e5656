"""Run a command for the host: streamed output, a deadline, and no survivors."""

import os
import selectors
import subprocess
import time
from typing import Any, Callable, Dict, List, Optional

from microsim_guest import kernel, wire

MAX_PROCESSES = 4096
DRAIN_S = 5.0  # how long to wait for the end of the pipes after everything has been killed


def run(
    serial: int,
    argv: List[str],
    *,
    env: Dict[str, str],
    cwd: Optional[str],
    stdin: bytes,
    timeout_s: float,
    output_bytes: int,
    emit: Callable[[str, bytes], None],
) -> Dict[str, Any]:
    """Run ``argv`` in a control group of its own and stream its output through ``emit(stream, data)``.

    The command ends when its main process does or at the deadline; then everything it started is killed,
    also what has detached itself into other sessions, so nothing keeps writing or holds the pipes.

    Args:
        serial: Unique number.
        argv: The command.
        env: Its whole environment.
        cwd: Its working directory; None for the workspace.
        stdin: What it reads.
        timeout_s: Deadline in seconds.
        output_bytes: Bytes passed on of stdout, and as many of stderr; the rest is read and dropped.
        emit: Takes the output.

    Returns:
        ``exit_code`` (negative signal number when killed), ``timed_out``, ``duration_ms``, and ``dropped``,
        the number of bytes not passed on.
    """
    started = time.monotonic()
    group = kernel.ControlGroup("exec-{}".format(serial), pids_max=MAX_PROCESSES)
    try:
        process = subprocess.Popen(
            argv,
            env=env,
            cwd=cwd or "/workspace",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=group.enter,
        )
        with _Pipes(process, stdin, output_bytes, emit) as pipes:
            timed_out = not pipes.move_until_end(started + timeout_s)
            group.kill()
            pipes.drain(time.monotonic() + DRAIN_S)
        code = process.wait()
    finally:
        group.close()
    return {
        "exit_code": code,
        "timed_out": timed_out,
        "duration_ms": (time.monotonic() - started) * 1000.0,
        "dropped": pipes.dropped,
    }


class _Pipes:
    """Moves bytes between a process's three pipes and the host."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", stdin: bytes, limit: int, emit: Callable[[str, bytes], None]
    ) -> None:
        self.dropped = 0
        self._process = process
        self._pending = memoryview(stdin)
        self._room = {"stdout": limit, "stderr": limit}
        self._emit = emit
        self._selector = selectors.DefaultSelector()
        for name in ("stdin", "stdout", "stderr"):
            stream = getattr(process, name)
            os.set_blocking(stream.fileno(), False)
            event = selectors.EVENT_WRITE if name == "stdin" else selectors.EVENT_READ
            self._selector.register(stream, event, name)

    def __enter__(self) -> "_Pipes":
        return self

    def __exit__(self, *_: Any) -> None:
        for key in list(self._selector.get_map().values()):
            self._done(key)
        self._selector.close()

    def move_until_end(self, deadline: float) -> bool:
        """Move bytes until the main process ends; False when the deadline passes first."""
        while self._process.poll() is None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            if self._selector.get_map():
                self._move(min(remaining, 0.05))
            else:  # it closed its pipes: most often it is ending
                try:
                    self._process.wait(remaining)
                except subprocess.TimeoutExpired:
                    return False
        return True

    def drain(self, deadline: float) -> None:
        """Read what is left in the pipes once nobody writes any more."""
        while self._selector.get_map() and time.monotonic() < deadline:
            self._move(0.05)

    def _move(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            if key.data == "stdin":
                self._feed(key)
                continue
            data = os.read(key.fd, wire.CHUNK)
            if not data:
                self._done(key)
            passed_on = data[: self._room[key.data]]
            self._room[key.data] -= len(passed_on)
            self.dropped += len(data) - len(passed_on)
            if passed_on:
                self._emit(key.data, passed_on)

    def _feed(self, key: selectors.SelectorKey) -> None:
        try:
            self._pending = self._pending[os.write(key.fd, self._pending[: wire.CHUNK]) :]
        except BrokenPipeError:
            self._pending = self._pending[:0]
        if not self._pending:
            self._done(key)

    def _done(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        key.fileobj.close()  # type: ignore[union-attr]  # a pipe's file object, never a number
