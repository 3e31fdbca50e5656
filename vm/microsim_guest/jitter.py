"""A schedule for each number: who runs when, and for how long, as a stream of random numbers says.

A deterministic machine's kernel would let the same threads take turns in the same way in each run. This process is
started before the machine is saved. In a fork it is told a number; from then on it wakes at times drawn from it, takes
the processor from whoever has it, and changes how long the kernel lets a thread run and whom it prefers. Nothing else
of the machine depends on the number.

While nobody else has anything to do it wakes less and less often: most of what a sleep costs is waking it.
"""

import contextlib
import os
import random
import subprocess
import sys
import time
from typing import Iterator, List, Tuple

from microsim_guest import config, controlgroup, kernel

READY = b"ready\n"
SPIN = 60000  # rounds of a loop, most of them, before the first job: some milliseconds
SHORTEST_S, LONGEST_S = 50e-6, 10e-3  # between two changes
SLOWEST = 8  # how many times as long that becomes, by and by, while nobody else does anything
IDLE_NS = 100000  # doing less than that is doing nothing
DEBUG = "/run/microsim-debug"
# What the kernel has of these: how long a thread runs at least, and how far behind one has to be to displace another.
KNOBS = (
    ("min_granularity_ns", 50000, 8000000), ("latency_ns", 100000, 24000000),
    ("wakeup_granularity_ns", 1, 4000000), ("base_slice_ns", 100000, 8000000),
)  # fmt: skip
NICEST = 15
PREFERENCES = 0.05  # share of changes that also change whom the kernel prefers


class Jitter:
    """The process, as the agent sees it, and the one that keeps the processor from being idle."""

    def __init__(self) -> None:
        self._idler = _started("microsim_guest.idler")
        self._process = _started("microsim_guest.jitter", str(self._idler.pid))

    def begin(self, schedule: int) -> None:
        """Follow a schedule from here on."""
        assert self._process.stdin is not None
        for _ in range(random.Random("spin {}".format(schedule)).randrange(SPIN)):
            pass
        self._process.stdin.write(b"%d\n" % schedule)
        self._process.stdin.flush()


def _started(module: str, *words: str) -> "subprocess.Popen[bytes]":
    """Start a process, and wait until it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        env=dict(os.environ, PYTHONPATH=config.GUEST_FOLDER),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    if process.stdout.readline() != READY:
        raise RuntimeError("{} did not start".format(module))
    return process


def _open_knobs() -> List[Tuple[int, int, int]]:
    """Open the scheduler's settings, and let it end a thread's turn in the middle of a tick."""
    kernel.mount("debugfs", DEBUG, "debugfs")
    folder = os.path.join(DEBUG, "sched")
    with open(os.path.join(folder, "features"), "w") as features:
        features.write("HRTICK")
    found = []
    for name, least, most in KNOBS:
        with contextlib.suppress(FileNotFoundError):
            found.append((os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CLOEXEC), least, most))
    kernel.detach(DEBUG)
    return found


def _threads() -> Iterator[int]:
    """Yield all threads of commands and controllers."""
    for folder in _groups(controlgroup.ROOT):
        for group in (folder, *_groups(folder)):
            with contextlib.suppress(OSError):  # it may have gone
                threads = os.open(os.path.join(group, "cgroup.threads"), os.O_RDONLY)
                try:
                    yield from map(int, os.read(threads, 65536).split())
                finally:
                    os.close(threads)


def _groups(folder: str) -> List[str]:
    """Return the groups in a group; its files have a dot in their names, and ours have none."""
    with contextlib.suppress(OSError):
        return [os.path.join(folder, name) for name in os.listdir(folder) if "." not in name]
    return []


def _follow(schedule: int, knobs: List[Tuple[int, int, int]], idler: int) -> None:
    draw = random.Random(schedule)
    factor = 1
    while True:
        began, idle = time.monotonic_ns(), time.clock_gettime_ns(idler)
        time.sleep(factor * SHORTEST_S * (LONGEST_S / SHORTEST_S) ** draw.random())
        others = time.monotonic_ns() - began - (time.clock_gettime_ns(idler) - idle)
        factor = 1 if others > IDLE_NS else min(2 * factor, SLOWEST)
        knob, least, most = draw.choice(knobs)
        os.write(knob, b"%d" % int(least * (most / least) ** draw.random()))
        if draw.random() < PREFERENCES:
            for thread in _threads():
                with contextlib.suppress(OSError):  # it may have ended
                    os.setpriority(os.PRIO_PROCESS, thread, draw.randint(0, NICEST))


def _clock(process: int) -> int:
    """Return the number of the clock that tells how long a process has had the processor (clock_getcpuclockid(3))."""
    return ~process << 3 | 2


def main() -> None:
    """Get ready, and follow the schedule that is asked for."""
    knobs = _open_knobs()
    kernel.set_oom_score(kernel.OOM_AGENT)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    idler = _clock(int(sys.argv[1]))
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    line = sys.stdin.buffer.readline()
    if line:
        _follow(int(line), knobs, idler)


if __name__ == "__main__":
    main()
