"""Leaves a mark everywhere, and looks for marks of an earlier episode."""

import contextlib
import os
import sys
import time

PLACES = ("mark", "/tmp/mark", "/dev/shm/mark", "/var/tmp/mark", "/workspace/mark")
print("FOUND", [place for place in PLACES if os.path.exists(place)], "mark" in sys.modules)
for place in PLACES:
    with contextlib.suppress(OSError):
        open(place, "w").close()
sys.modules["mark"] = sys
if os.fork() == 0:
    os.setsid()
    time.sleep(600)


def act(observation):
    return 0.0
