"""Worlds made of processes: start the commands, wait until each says it is ready, keep their output."""

import os
import subprocess
import time
from typing import Any, Dict, List

from microsim_guest import capture, wire

OUTPUT_BYTES = 256 * 1024
READINESS_PERIOD = 0.25


class NotReady(wire.KnownError):
    """A process ended before it was ready, or was not ready in time."""

    kind = "world"


class Running:
    """One started process of a world."""

    def __init__(self, spec: Dict[str, Any], env: Dict[str, str]) -> None:
        self.name = spec["name"]
        write_end, self.output = capture.pipe_to(OUTPUT_BYTES)
        self._process = subprocess.Popen(
            argv(spec["command"]), env=env, cwd="/workspace", stdin=subprocess.DEVNULL,
            stdout=write_end, stderr=write_end, start_new_session=True,
        )  # fmt: skip
        os.close(write_end)

    def wait_ready(self, readiness: Any, env: Dict[str, str], deadline: float) -> None:
        """Poll the readiness command until it exits with 0.

        Raises:
            NotReady: The process ended first, or the deadline passed; carries the output's tail.
        """
        while readiness:
            code = self._process.poll()
            if code is not None:
                self.output.finish()  # what it wrote last may still be under way
                raise NotReady("process {!r} ended with {} before it was ready; its output:\n{}".format(
                    self.name, code, self._tail()))  # fmt: skip
            remaining = deadline - time.monotonic()
            try:
                if remaining <= 0:
                    raise subprocess.TimeoutExpired("readiness", 0)
                check = subprocess.run(
                    argv(readiness), env=env, cwd="/workspace", stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=remaining,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise NotReady("process {!r} was not ready in time; its output:\n{}".format(
                    self.name, self._tail())) from None  # fmt: skip
            if check.returncode == 0:
                return
            time.sleep(READINESS_PERIOD)

    def _tail(self) -> str:
        return self.output.so_far()[-8000:].decode("utf-8", "backslashreplace")


def argv(command: Any) -> List[str]:
    """Return a command as an argument list; a plain string goes through the shell."""
    return ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)


def start_all(specs: List[Dict[str, Any]], env: Dict[str, str], timeout_s: float) -> List[Running]:
    """Start every process in order, each after the one before it is ready."""
    deadline = time.monotonic() + timeout_s
    started = []
    for spec in specs:
        running = Running(spec, env)
        running.wait_ready(spec.get("readiness"), env, deadline)
        started.append(running)
    return started
