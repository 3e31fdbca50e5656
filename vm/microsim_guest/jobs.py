"""Jobs: what the host starts in the guest, each in a control group of its own.

A job is killed as a whole, by its group, however its processes have detached themselves. What still runs when
its main process has ended by itself is left alone, and only looked after until it is gone: unless it ran into the
limit of processes, for what a fork bomb leaves behind would take the guest's time for good.
"""

import collections
import os
import select
import threading
import time
from typing import Deque, Dict, List

from microsim_guest import controlgroup, groups, kernel, wire

# Bounds of all jobs together, so that a fork bomb leaves the agent and the world memory, and time, to live on.
GROUP = "jobs"
WINDOW = 4 << 20  # bytes of output sent to the host and not yet confirmed; beyond that the command has to wait
RESERVED_BYTES = 48 << 20
BYTES_PER_PROCESS = 1 << 20  # as many processes and threads as the guest has MiB
LOOK_MS = 250  # between two looks at a group in the background whose kernel says nothing when it is empty
PAUSE_S = 0.01  # between two looks at what the background prints: a flood of it must not cost the world its time

_lock = threading.Lock()
_running: Dict[str, "Job"] = {}
_confirmed = True  # the host says how much output it has taken
# The cancellation of a command may overtake its start, which has a thread of its own.
_overtaking: Deque[str] = collections.deque(maxlen=64)


def prepare() -> None:
    """Make the group that all jobs are in; before the first one."""
    group = groups.create(GROUP, memory_max=max(kernel.memory_bytes() - RESERVED_BYTES, RESERVED_BYTES))
    group.delegate()


def send_unconfirmed() -> None:
    """Let no command wait for the host: nothing is heard from it while this machine runs."""
    global _confirmed
    _confirmed = False


def _max_processes() -> int:
    return kernel.memory_bytes() // BYTES_PER_PROCESS


class Job:
    """The control group of one command.

    Args:
        token: The command's unique name, chosen by the host: letters and digits.

    Raises:
        ValueError: The token is none, or it is in use.
    """

    def __init__(self, token: str) -> None:
        if not token.isalnum():
            raise ValueError("{!r} is no name for a command".format(token))
        self._token = token
        self._cancelled = False
        self._flow = threading.Condition()
        self._unconfirmed = 0
        with _lock:
            if token in _running:
                raise ValueError("a command called {} is running".format(token))
            self._group = groups.create(GROUP + "/exec-" + token, pids_max=_max_processes())
            _running[token] = self
            self._cancelled = token in _overtaking

    def enter(self) -> None:
        """Move the calling process in; what it starts stays in."""
        self._group.enter()

    def started(self) -> None:
        """Say that the main process is in; it is killed at once where it was cancelled meanwhile."""
        if self._cancelled:
            self._group.kill()

    def kill(self) -> None:
        """Kill all there is of it."""
        self._cancelled = True
        self._group.kill()

    @property
    def cancelled(self) -> bool:
        """It was killed, or is about to be."""
        return self._cancelled

    def sent(self, size: int) -> None:
        """Note that so many bytes of output are on their way to the host."""
        with self._flow:
            self._unconfirmed += size

    def confirmed(self, size: int) -> None:
        """Note that the host has dealt with so many."""
        with self._flow:
            self._unconfirmed -= size
            self._flow.notify_all()

    def may_send(self, timeout: float) -> bool:
        """Wait until the host has dealt with enough of the output to be sent more."""
        if not _confirmed:
            return True
        with self._flow:
            return self._flow.wait_for(lambda: self._unconfirmed < WINDOW, timeout)

    def limits_hit(self) -> List[str]:
        """Return which limits it ran into: "processes", or "memory" (the guest's own)."""
        events = self._group.events()
        return [
            name
            for name, event in (("processes", controlgroup.PIDS_MAX), ("memory", controlgroup.OOM_KILL))
            if events[event]
        ]

    def end(self, pipes: List[int]) -> None:
        """Give the job up: its main process has ended. What it left in the background runs on.

        Args:
            pipes: Descriptors that the rest may still write to. They are read, so that nobody there is killed
                for writing to a pipe without a reader, and closed at their end; what is read is dropped.
        """
        with _lock:
            del _running[self._token]
        self._end_bomb()
        if pipes or not self._group.remove():
            threading.Thread(target=self._look_after, args=(pipes,), daemon=True).start()

    def _end_bomb(self) -> None:
        if self._group.events()[controlgroup.PIDS_MAX]:
            self._group.kill()

    def _look_after(self, pipes: List[int]) -> None:
        notices = self._group.notices()
        poll = select.poll()
        for notice in notices:
            poll.register(notice, select.POLLPRI)
        for fd in pipes:
            poll.register(fd, select.POLLIN)
        waiting = set(pipes)
        while self._group.populated() or waiting:
            for fd, _ in poll.poll(None if notices else LOOK_MS):
                if fd in waiting and not _read_some(fd):
                    poll.unregister(fd)
                    waiting.remove(fd)
                    os.close(fd)
            self._end_bomb()
            time.sleep(PAUSE_S)
        for notice in notices:
            os.close(notice)
        while not self._group.remove():  # the last of its processes is still being taken down
            time.sleep(0.01)


def _read_some(fd: int) -> bool:
    try:
        return bool(os.read(fd, wire.CHUNK))
    except BlockingIOError:
        return True


def confirm(token: str, size: int) -> None:
    """Note that the host has dealt with so many bytes of a command's output; it may have ended by itself."""
    with _lock:
        job = _running.get(token)
    if job is not None:
        job.confirmed(size)


def cancel(token: str) -> None:
    """Kill a command, also one that is only about to start; one that has ended is none of our business."""
    with _lock:
        job = _running.get(token)
        if job is None:
            _overtaking.append(token)
    if job is not None:
        job.kill()
