"""Ignores SIGTERM, and leaves a process behind that has detached itself in every way there is."""

import os
import signal
import time

for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            with open("heartbeat", "a") as file:
                file.write("alive\n")
            time.sleep(0.01)
    os._exit(0)


def act(observation):
    return 0.0
