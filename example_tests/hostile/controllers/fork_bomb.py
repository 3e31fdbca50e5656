"""Forks as fast as it can, at every step, and drives on."""

import os
import time


def act(observation):
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        try:
            if os.fork() == 0:
                time.sleep(60)
        except OSError:
            pass
    return 0.0
