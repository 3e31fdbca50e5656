"""Terminals in a guest: a real one to the command, bounded, and gone with whoever drives it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hosting import ON_ANY_ENGINE
from microsim_vm.errors import AgentError, CommandInterruptedError
from microsim_vm.machine import Machine
from microsim_vm.terminal import Terminal
from microsim_vm.world import WarmWorld

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def machine(cartpole: WarmWorld) -> Iterator[Machine]:
    with cartpole.fork(7) as fork:
        yield fork


class Screen:
    """Runs a terminal in a thread, and keeps what it shows."""

    def __init__(self, terminal: Terminal) -> None:
        self.shown = b""
        self.exit_code: int | None = None
        self._terminal = terminal
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.exit_code = self._terminal.run(self._show)

    def _show(self, data: bytes) -> None:
        self.shown += data

    def wait_for(self, text: bytes, timeout: float = 60.0) -> None:
        wait_until(lambda: text in self.shown, timeout, lambda: f"{text!r} is not in {self.shown!r}")

    def end(self) -> int | None:
        self._thread.join(60.0)
        assert not self._thread.is_alive()
        return self.exit_code


def wait_until(condition: Callable[[], bool], timeout: float, what: Callable[[], str]) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


def test_a_shell_on_a_terminal(machine: Machine) -> None:
    with machine.terminal(rows=33, columns=99, env={"TERM": "vt100"}) as terminal:
        terminal.write(b"stty size\r")  # before anybody looks
        screen = Screen(terminal)
        screen.wait_for(b"33 99\r\n")
        terminal.write(b"tty; echo $TERM:$HOME:$(pwd)\r")
        screen.wait_for(b"/dev/pts/")
        screen.wait_for(b"vt100:/root:/workspace\r\n")
        terminal.write(b"trap 'stty size' WINCH; echo trap$((0))\r")
        screen.wait_for(b"trap0\r\n")
        terminal.resize(50, 120)
        screen.wait_for(b"50 120\r\n")
        terminal.write(b"sleep 100\r")
        wait_until(lambda: machine.exec("grep -qx sleep /proc/[0-9]*/comm").exit_code == 0, 20, lambda: "no sleep")
        terminal.write(b"echo not run")
        terminal.write(b"\x03")
        terminal.write("echo ä$((40 + 2))\r".encode())
        screen.wait_for("ä42\r\n".encode())
        terminal.write(b"sleep 100\r")
        wait_until(lambda: machine.exec("grep -qx sleep /proc/[0-9]*/comm").exit_code == 0, 20, lambda: "no sleep")
        terminal.write(b"\x1a")
        screen.wait_for(b"Stopped")
        terminal.write(b"fg\r")
        wait_until(lambda: machine.exec("grep -q 'sleep) S' /proc/[0-9]*/stat").exit_code == 0, 20, lambda: "no fg")
        terminal.write(b"\x03")
        terminal.write(b"echo b$((40 + 3))\r")
        screen.wait_for(b"b43\r\n")
        terminal.write(b"exit 7\r")
        assert screen.end() == 7
        with pytest.raises(AgentError, match="this terminal has ended"):
            terminal.write(b"x")
        with pytest.raises(AgentError, match="this terminal has ended"):
            terminal.run(lambda _: None)


def test_a_command_on_a_terminal_as_another_user(machine: Machine, engine: str) -> None:
    shown: list[bytes] = []
    # gVisor's /dev/tty is there and cannot be opened.
    own = "/dev/tty" if engine == "qemu" else "$(tty)"
    script = f"test -t 0 && test -t 1 && id -un && echo x >{own}; exit 3"
    with machine.terminal(script, rows=24, columns=80, user="nobody") as terminal:
        assert terminal.run(shown.append) == 3
    assert b"".join(shown) == b"nobody\r\nx\r\n"
    with machine.terminal(["printf", "%s", "a b"], rows=24, columns=80) as terminal:
        assert terminal.run(shown.append) == 0
    assert shown[-1] == b"a b"
    with pytest.raises(AgentError, match="the guest has no user 'nosuchuser'"):
        machine.terminal(rows=24, columns=80, user="nosuchuser")
    with pytest.raises(AgentError, match="no-such-program"):
        machine.terminal(["no-such-program"], rows=24, columns=80)


def test_all_of_the_output_comes_through(machine: Machine) -> None:
    size = 0

    def count(data: bytes) -> None:
        nonlocal size
        size += len(data)

    with machine.terminal("head -c 3000000 /dev/zero | tr '\\0' x", rows=24, columns=80) as terminal:
        assert terminal.run(count) == 0
    assert size == 3_000_000


def test_a_slow_reader_slows_the_command_down(machine: Machine, engine: str) -> None:
    """Where the kernel is gVisor's, which takes all that a command prints, most of it is left out instead."""
    lines = 40 if engine == "qemu" else 200
    shown = bytearray()
    stalled = threading.Event()

    def stall(data: bytes) -> None:
        shown.extend(data)
        stalled.wait(90.0)

    script = f"for i in $(seq {lines}); do head -c 100000 /dev/zero; printf . >>n; done; exit 4"
    with machine.terminal(script, rows=24, columns=80) as terminal, ThreadPoolExecutor(1) as pool:
        ended = pool.submit(terminal.run, stall)
        try:
            wait_until(lambda: machine.filesystem.exists("/workspace/n"), 20, lambda: "nothing was printed")
            if engine == "qemu":
                time.sleep(0.5)
                before = machine.filesystem.read("/workspace/n")
                time.sleep(0.5)
                assert machine.filesystem.read("/workspace/n") == before, "it did not wait for us"
                assert len(before) < 10
            else:
                done = f"test $(stat -c %s n) = {lines}"
                wait_until(lambda: machine.exec(done).exit_code == 0, 60, lambda: "it does not end")
        finally:
            stalled.set()
        assert ended.result(30.0) == 4
    dropped = sum(map(int, re.findall(rb"\[\.\.\. (\d+) bytes left out", shown)))
    assert (dropped > 0) == (engine == "gvisor")
    assert shown.count(b"\0") + dropped == lines * 100_000


@ON_ANY_ENGINE
def test_input_that_nobody_reads_is_bounded(machine: Machine) -> None:
    terminal = machine.terminal("stty raw; echo set; exec sleep 60", rows=24, columns=80)
    screen = Screen(terminal)
    screen.wait_for(b"set")
    terminal.write(b"x" * 1_000_000)
    with pytest.raises(AgentError, match="that the command does not read"):
        terminal.write(b"x" * 500_000)
    terminal.close()
    terminal.close()
    assert screen.end() == -9


def test_closing_leaves_no_survivor(machine: Machine) -> None:
    script = "setsid sh -c 'trap \"\" TERM HUP; echo up; sleep 300' & trap '' HUP; sleep 300"
    for attached in (True, False):
        with machine.terminal(script, rows=24, columns=80) as terminal:
            screen = Screen(terminal) if attached else None
            if screen is not None:
                screen.wait_for(b"up")
        assert screen is None or screen.end() == -9
        assert machine.exec("grep -lx sleep /proc/[0-9]*/comm").stdout == ""
        deadline = time.monotonic() + 10.0
        while machine.exec("ls -d /sys/fs/cgroup/jobs/exec-*/ | wc -l").stdout != "1\n":
            assert time.monotonic() < deadline

    def refuse(_: bytes) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        machine.terminal(script, rows=24, columns=80).run(refuse)
    assert machine.exec("grep -lx sleep /proc/[0-9]*/comm").stdout == ""


@ON_ANY_ENGINE
def test_a_terminal_whose_guest_dies_is_interrupted(cartpole: WarmWorld) -> None:
    with cartpole.fork(1) as machine:
        terminal = machine.terminal("echo up; sleep 60", rows=24, columns=80)
        with pytest.raises(CommandInterruptedError, match="the terminal was interrupted"):
            terminal.run(lambda _: threading.Timer(0.2, machine.close).start())
