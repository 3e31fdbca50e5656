"""The processes of gVisor's guests: what the end of each means, what a guest may take, and that none is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hosting import Place, wait_for
from microsim_vm import Sandbox, owner, runtime
from microsim_vm.engines import overuse
from microsim_vm.errors import CommandInterruptedError, MicrosimError, SandboxStateError

pytestmark = [pytest.mark.timeout(180), pytest.mark.parametrize("engine", ["gvisor"], indirect=True)]

GUESTS = 6
# The agent sees to the guest's limits, and somebody who may do everything in the guest can stop it.
GREED = "kill -STOP $PPID; head -c 1G /dev/zero >/dev/shm/large; sleep 60"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Place:
    return Place.warm(tmp_path_factory.mktemp("gvisor"), engine)


@pytest.fixture(scope="module")
def bystander(place: Place) -> Iterator[Sandbox]:
    """A sandbox that nothing must happen to."""
    with place.create() as sandbox:
        yield sandbox


def head_of(sandbox: Sandbox) -> psutil.Process:
    return psutil.Process(sandbox.refresh()._record.pid)


def one_of(sandbox: Sandbox, role: str) -> psutil.Process:
    """Return one of a sandbox's processes: "head", "sandbox" (its kernel), or "gofer" (its file server)."""
    head = head_of(sandbox)
    if role == "head":
        return head
    (found,) = (child for child in head.children() if child.cmdline()[0] == f"runsc-{role}")
    return found


def whole_tree(sandbox: Sandbox) -> list[psutil.Process]:
    head = head_of(sandbox)
    return [head, *head.children(recursive=True)]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.parametrize("role", ["head", "sandbox", "gofer"])
def test_the_end_of_each_process_is_the_end_of_the_guest(place: Place, bystander: Sandbox, role: str) -> None:
    sandbox = place.create()
    processes = whole_tree(sandbox)
    victim = one_of(sandbox, role)
    ended: list[float] = []
    caught: list[MicrosimError] = []

    def work() -> None:
        try:
            sandbox.exec("while :; do cat /etc/passwd /usr/bin/python3 >/dev/null; sleep 0.1; done")
        except MicrosimError as error:
            caught.append(error)
        ended.append(time.monotonic())

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(1.0)
    killed = time.monotonic()
    victim.send_signal(signal.SIGKILL)
    thread.join(60)
    assert ended
    assert ended[0] - killed < 10
    assert isinstance(caught[0], CommandInterruptedError)
    wait_for(lambda: sandbox.status == "crashed", "it is noticed")
    for request in (lambda: sandbox.exec("true"), sandbox.fork, sandbox.snapshot, sandbox.hibernate):
        with pytest.raises(SandboxStateError, match="has crashed"):
            request()
    sandbox.logs()
    sandbox.kill()
    assert sandbox.status == "dead"
    wait_for(lambda: not alive(processes), "the end of its processes")
    assert bystander.exec("echo well").stdout == "well\n"


def test_a_paused_guest_that_is_killed_does_not_go_on(place: Place, bystander: Sandbox) -> None:
    sandbox = place.create()
    sandbox.pause()
    os.kill(head_of(sandbox).pid, signal.SIGKILL)
    with pytest.raises(MicrosimError):
        sandbox.resume()
    sandbox.kill()
    assert sandbox.status == "dead"
    assert bystander.exec("echo well").stdout == "well\n"


def test_a_guest_that_takes_more_than_its_memory_is_ended_and_says_so(place: Place, bystander: Sandbox) -> None:
    """Nobody in it keeps it from that, so that only the host can see to it."""
    with place.create() as sandbox:
        with pytest.raises(CommandInterruptedError):
            sandbox.exec(GREED)
        wait_for(lambda: sandbox.status == "crashed", "its end")
        said = sandbox.logs()
        assert "microsim: killed: the guest used" in said
        assert f"{sandbox.memory_mib} MiB are its own and {overuse.SPARE_MIB} MiB gVisor's" in said
    assert bystander.exec("echo well").stdout == "well\n"


def test_a_guest_with_too_many_processes_is_ended_and_says_so(place: Place, bystander: Sandbox) -> None:
    """Somebody who may do everything in the guest can leave the control group that counts them."""
    with place.create() as sandbox:
        with pytest.raises(CommandInterruptedError):
            sandbox.exec("echo 0 >/sys/fs/cgroup/cgroup.procs; while :; do sleep 600 & done", timeout_seconds=100)
        wait_for(lambda: sandbox.status == "crashed", "its end")
        assert re.search(r"microsim: killed: the guest had \d+ processes on the host", sandbox.logs())
    assert bystander.exec("echo well").stdout == "well\n"


def test_a_guest_is_watched_after_it_was_copied_too(place: Place) -> None:
    with place.create() as sandbox:
        sandbox.fork().kill()
        with pytest.raises(CommandInterruptedError):
            sandbox.exec(GREED)
        wait_for(lambda: sandbox.status == "crashed", "its end")


def test_a_sandbox_killed_while_it_is_copied_is_not_started_again(place: Place, bystander: Sandbox) -> None:
    for delay_s in (0.0, 0.05, 0.1, 0.2, 0.3, 0.4):
        sandbox = place.create()
        ended: list[MicrosimError | None] = []

        def copy(sandbox: Sandbox = sandbox, ended: list[MicrosimError | None] = ended) -> None:
            try:
                sandbox.fork().kill()
                ended.append(None)
            except MicrosimError as error:
                ended.append(error)

        thread = threading.Thread(target=copy)
        thread.start()
        time.sleep(delay_s)
        sandbox.kill()
        thread.join(60)
        assert len(ended) == 1
    own = [child for child in psutil.Process().children() if "runsc" in child.name()]
    assert own == [head_of(bystander)]


def counts() -> dict[str, int]:
    process, here = psutil.Process(), owner.Process.current()
    return {
        "processes": len(process.children(recursive=True)),
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "folders": sum(owner.read(each) == here for each in runtime.folder().glob(f"{runtime.GVISOR}*")),
        "mounts": Path("/proc/mounts").read_text().count(runtime.GVISOR),
    }


def test_half_a_dozen_guests_in_a_row_leave_nothing(place: Place, bystander: Sandbox) -> None:
    def one() -> None:
        with place.create() as sandbox:
            sandbox.exec("echo", check=True)
            sandbox.fork().kill()
            sandbox.hibernate()
            sandbox.exec("echo", check=True)

    one()  # what a process makes once: its spawner, its watchers, its door
    before = counts()
    for _ in range(GUESTS // 3):  # each is three guests, one after the other
        one()
    with contextlib.suppress(AssertionError):
        wait_for(lambda: counts() == before, "the end of all", period_s=0.1)
    assert counts() == before
    assert bystander.exec("echo well").stdout == "well\n"
