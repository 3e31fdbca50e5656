"""What gVisor's guests take of the host: all of it is watched, and nothing ends the watching but the guest's end."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from microsim_vm.engines import overuse

# Processes as runsc starts them: a first one, whose children are a kernel that holds the guest's memory in a file, and
# a file server. Words: MiB of the file, MiB of each one's own, processes below the kernel, what the kernel is called.
STARTED = r"""
import subprocess, sys
HELD = "held = bytearray(b'x') * (int(sys.argv[1]) << 20)\n"
KERNEL = "import os, subprocess, sys, time\n" + HELD + '''
file = os.memfd_create("runsc-memory")
os.write(file, bytes(int(sys.argv[2]) << 20))
below = [subprocess.Popen(["sleep", "60"]) for _ in range(int(sys.argv[3]))]
print("ready", flush=True)
time.sleep(60)
'''
file, own, gofer_own, below, name = sys.argv[1:]
children = [
    subprocess.Popen([name, "-c", KERNEL, own, file, below], executable=sys.executable),
    subprocess.Popen(["runsc-gofer", "-c", "import sys, time\n" + HELD + "time.sleep(60)", gofer_own],
                     executable=sys.executable),
]
children[0].wait()
"""
LIMIT_MIB = 16
SPARE_MIB = 64  # a Python of its own has some MiB, too

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overuse, "SPARE_MIB", SPARE_MIB)
    monkeypatch.setattr(overuse, "LOOK_S", 0.01)


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(file: int = 1, own: int = 1, gofer: int = 1, below: int = 0, name: str = overuse.KERNEL) -> Any:
        words = [sys.executable, "-c", STARTED, *map(str, (file, own, gofer, below)), name]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        os.killpg(process.pid, 9)
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


class End:
    """What is to end a guest: it keeps the reasons, and refuses as often as it is told to."""

    def __init__(self, refuse: int = 0) -> None:
        self.reasons: list[str] = []
        self._refuse = refuse
        self._called = threading.Event()

    def __call__(self, reason: str) -> bool:
        self.reasons.append(reason)
        acts = len(self.reasons) > self._refuse
        if acts:
            self._called.set()
        return acts

    def reason(self) -> str:
        assert self._called.wait(10), "it was not ended"
        return self.reasons[-1]


def test_a_guest_within_its_limits_is_left_alone(start: Start) -> None:
    end = End()
    overuse.watch(start(file=LIMIT_MIB, below=5).pid, LIMIT_MIB, end)
    time.sleep(1.0)
    assert end.reasons == []


@pytest.mark.parametrize("most", [{"file": 90}, {"own": 90}, {"gofer": 90}, {"file": 30, "own": 30, "gofer": 30}])
def test_all_that_it_takes_counts_together(most: dict[str, int], start: Start) -> None:
    end = End()
    overuse.watch(start(**most).pid, LIMIT_MIB, end)
    reason = end.reason()
    assert reason.startswith("the guest used ")
    assert reason.endswith(f" MiB of the host's memory, {LIMIT_MIB} MiB are its own and {SPARE_MIB} MiB gVisor's")


def test_processes_on_the_host_are_counted(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overuse, "SPARE_PROCESSES", 4)
    many, few = End(), End()
    overuse.watch(start(below=6).pid, 2, few)  # eight with the kernel and the file server
    overuse.watch(start(below=7).pid, 2, many)
    assert many.reason() == "the guest had 9 processes on the host, and 8 are the most"
    assert few.reasons == []


def test_an_end_that_was_refused_is_asked_for_again(start: Start) -> None:
    end = End(refuse=5)
    overuse.watch(start(file=90).pid, LIMIT_MIB, end)
    end.reason()
    time.sleep(0.3)
    assert len(end.reasons) == 6


def test_a_guest_whose_end_fails_stays_watched(start: Start) -> None:
    end = End()

    def failing(reason: str) -> bool:
        if not end.reasons:
            end.reasons.append("")
            raise OSError(errno.EMFILE, "too many open files")
        return end(reason)

    overuse.watch(start(file=90).pid, LIMIT_MIB, failing)
    assert end.reason().startswith("the guest used ")


@pytest.mark.parametrize("step", ["_find_processes", "_memory_files", "_own_bytes"])
def test_a_look_that_fails_is_followed_by_the_next(step: str, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failed = getattr(overuse, step), []

    def failing(*args: Any) -> Any:
        if len(failed) < 10:
            failed.append(step)
            raise OSError(errno.EMFILE, "too many open files")
        return real(*args)

    monkeypatch.setattr(overuse, step, failing)
    end = End()
    overuse.watch(start(file=90).pid, LIMIT_MIB, end)
    assert end.reason().startswith("the guest used ")
    assert len(failed) == 10


def test_a_guest_that_cannot_be_looked_at_is_ended(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(overuse, "BLIND", 20)
    monkeypatch.setattr(overuse, "_own_bytes", failing)
    end = End()
    overuse.watch(start().pid, LIMIT_MIB, end)
    assert "could not watch what the guest used: OSError: [Errno 24]" in end.reason()


def test_a_guest_whose_kernel_is_not_found_is_ended(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overuse, "BLIND", 20)
    end = End()
    overuse.watch(start(name="something-else").pid, LIMIT_MIB, end)
    assert "its kernel was not found, its memory was not found" in end.reason()


def test_a_thread_that_has_ended_is_started_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Thread(target=lambda: None)
    over.start()
    over.join()
    monkeypatch.setattr(overuse, "_watched", {})  # the one that runs finds nothing any more
    monkeypatch.setattr(overuse, "_changed", threading.Condition())
    monkeypatch.setattr(overuse, "_thread", over)
    monkeypatch.setattr(overuse, "_thread_of", os.getpid())
    end = End()
    overuse.watch(start(file=90).pid, LIMIT_MIB, end)
    end.reason()
