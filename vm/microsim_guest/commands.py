"""Run a command for the host: streamed output, a deadline, and no survivors."""

import os
import selectors
import subprocess
import time
from typing import Any, Callable, Dict, List, Optional

from microsim_guest import kernel, wire

MAX_PROCESSES = 4096


def run(
    serial: int,
    argv: List[str],
    *,
    env: Dict[str, str],
    cwd: Optional[str],
    stdin: bytes,
    timeout_s: float,
    emit: Callable[[str, bytes], None],
) -> Dict[str, Any]:
    """Run ``argv`` in a control group of its own and stream its output through ``emit(stream, data)``.

    The command ends when its main process does or at the deadline; then everything it started is killed,
    also what has detached itself into other sessions, so nothing keeps writing or holds the pipes.

    Returns:
        ``exit_code`` (negative signal number when killed), ``timed_out``, ``duration_ms``.
    """
    started = time.monotonic()
    deadline = started + timeout_s
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
        timed_out = not _pump(process, stdin, deadline, emit)
        if timed_out:
            group.kill()
        code = process.wait()
    finally:
        group.close()
    return {
        "exit_code": code,
        "timed_out": timed_out,
        "duration_ms": (time.monotonic() - started) * 1000.0,
    }


def _pump(
    process: "subprocess.Popen[bytes]", stdin: bytes, deadline: float, emit: Callable[[str, bytes], None]
) -> bool:
    """Move bytes until the main process ends; False when the deadline passes first."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    pending = memoryview(stdin)
    with selectors.DefaultSelector() as selector:
        for stream, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, name)
        if pending:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE, "stdin")
        else:
            process.stdin.close()
        ended = False
        while True:
            # A grandchild may keep the pipes open: once the main process is gone, take what is there and stop.
            remaining = deadline - time.monotonic()
            if remaining <= 0 and not ended:
                return False
            ready = selector.select(0 if ended else min(remaining, 0.05))
            progressed = False
            for key, _ in ready:
                if key.data == "stdin":
                    try:
                        pending = pending[os.write(key.fd, pending[: wire.CHUNK]) :]
                    except BrokenPipeError:
                        pending = pending[:0]
                    if not pending:
                        selector.unregister(key.fileobj)
                        process.stdin.close()
                    continue
                data = os.read(key.fd, wire.CHUNK)
                if data:
                    emit(key.data, data)
                    progressed = True
                else:
                    selector.unregister(key.fileobj)
            if ended and (not progressed or time.monotonic() > deadline):
                return True
            ended = ended or process.poll() is not None
