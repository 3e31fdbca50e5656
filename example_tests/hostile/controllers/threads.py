"""Starts threads until none can be started, at every step, and drives on."""

import threading
import time


def act(observation):
    try:
        for _ in range(10_000):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    except RuntimeError:
        pass
    return 0.0
