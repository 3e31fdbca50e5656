"""Whatever breaks in one rollout, its test fails with what happened, and the next ones of the same session pass."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping

import psutil
import pytest

pytestmark = pytest.mark.timeout(300)

Run = Callable[..., pytest.RunResult]
ENGINES = [
    "qemu",
    pytest.param(
        "gvisor",
        marks=pytest.mark.skipif(
            shutil.which("runsc") is None or os.geteuid() != 0, reason="gVisor's guests need runsc, and root"
        ),
    ),
]

# Each test does to its guest, from the host or from inside, what its name says.
FAULTS = r"""
    import ctypes
    import os
    import re
    import signal
    import socket
    import threading
    import time
    from pathlib import Path

    import pytest
    from microsim_guest import wire
    from microsim_vm.machine import Machine

    ENGINE = os.environ["FAULTS_ENGINE"]
    PIDFD_GETFD = 438
    SLOW = "import time\ndef act(observation):\n    time.sleep({})\n    return 0\n"
    STARVE = {
        # The kernel looks for a victim at once, and is told which.
        "qemu": "echo 1000 >/proc/$PPID/oom_score_adj; echo f >/proc/sysrq-trigger; sleep 60",
        "gvisor": "kill -STOP $(grep -l 'microsim[_]guest' /proc/[0-9]*/cmdline | cut -d/ -f3); "
        "exec cat /dev/zero >/dev/shm/fill",
    }
    DIE = {"qemu": "echo c >/proc/sysrq-trigger; sleep 60", "gvisor": "kill -9 1; sleep 60"}

    def kill(machine):
        os.kill(machine.pid, signal.SIGKILL)
        os.waitid(os.P_PID, machine.pid, os.WEXITED | os.WNOWAIT)

    def engines_end(machine):
        # The engine's own descriptor of the agent's channel, to write to it what the guest would.
        words = Path(f"/proc/{machine.pid}/cmdline").read_bytes().split(b"\0")
        named = [int(re.search(rb"fd=(\d+)", word)[1]) for word in words if word.startswith(b"socket,id=agent")]
        libc = ctypes.CDLL(None, use_errno=True)
        pidfd = os.pidfd_open(machine.pid)
        found = libc.syscall(PIDFD_GETFD, pidfd, named[0] if named else 0, 0)
        os.close(pidfd)
        assert found >= 0, os.strerror(ctypes.get_errno())
        return socket.socket(fileno=found)

    @pytest.fixture
    def killed_at_its_start(monkeypatch):
        real = Machine.adopt

        def adopt(self, *arguments, **named):
            kill(self)
            real(self, *arguments, **named)

        monkeypatch.setattr(Machine, "adopt", adopt)

    def test_mid_fork(killed_at_its_start, rollout):
        pass

    def test_mid_step(rollout):
        rollout.reset()
        rollout.step(1)
        kill(rollout.machine)
        rollout.step(1)

    def test_mid_episode(rollout):
        Path("slow.py").write_text(SLOW.format(60))
        threading.Timer(0.7, kill, [rollout.machine]).start()
        rollout.run("slow.py")

    def test_mid_read(rollout, monkeypatch):
        rollout.exec("head -c 20000000 /dev/zero >/tmp/large", check=True)
        real, seen = wire.SocketLink._read, 0

        def read(self, size, deadline):
            nonlocal seen
            data = real(self, size, deadline)
            seen += len(data)
            if seen > 1_000_000:
                monkeypatch.undo()
                kill(rollout.machine)
            return data

        monkeypatch.setattr(wire.SocketLink, "_read", read)
        rollout.filesystem.read("/tmp/large")

    def test_mid_output(rollout):
        printed = []

        def take(text):
            printed.append(text)
            if len(printed) == 1:
                kill(rollout.machine)

        try:
            rollout.machine.exec_stream("echo first words; exec sleep 60", on_stdout=take)
        finally:
            assert printed == ["first words\n"]

    def test_well_between(rollout):
        assert rollout.exec("echo well").stdout == "well\n"

    def test_agent_killed(rollout):
        rollout.exec("kill -9 $PPID; sleep 60")

    def test_guest_dies(rollout):
        rollout.exec(DIE[ENGINE])

    def test_out_of_memory(rollout):
        rollout.exec(STARVE[ENGINE])

    def test_garbage(rollout):
        with engines_end(rollout.machine) as channel:
            channel.sendall(b"no frame at all")
            rollout.exec("sleep 60")

    def test_cut_off(rollout):
        with engines_end(rollout.machine) as channel:
            channel.sendall(wire.encode({"id": "a long answer", "ok": {}}, [bytes(100)])[:60])
            channel.shutdown(socket.SHUT_WR)
            rollout.exec("sleep 60")

    def test_answers_of_nobodys_requests_are_dropped(rollout):
        with engines_end(rollout.machine) as channel:
            channel.sendall(wire.encode({"id": "unknown", "ok": {}}, [bytes(100)]) + wire.encode({"event": 1}))
            assert rollout.exec("echo well").stdout == "well\n"

    def test_clock_jumps(rollout, monkeypatch):
        now, now_ns, jump = time.time, time.time_ns, 10 * 365 * 86400
        monkeypatch.setattr(time, "time", lambda: now() + jump)
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() + jump * 10**9)
        if ENGINE == "qemu":
            rollout.exec("date -s 2040-01-01", check=True)  # and the guest's own, which gVisor lets nobody set
        Path("slow.py").write_text(SLOW.format(0.05))
        episode = rollout.run("slow.py", max_steps=3, timeout_seconds=60)
        assert episode.steps == 3 and 100 < episode.wall_ms < 30_000
        jump = -jump
        result = rollout.exec("sleep 60", timeout_seconds=0.3)
        assert result.timed_out and 250 < result.duration_ms < 10_000

    def test_well_at_the_end(rollout):
        Path("fast.py").write_text(SLOW.format(0))
        assert rollout.run("fast.py", max_steps=2).steps == 2
"""
ENDED = "likely cause: its engine's process ended: "
KERNEL_LOG = "next step: look for the engine (qemu or runsc) in the host's kernel log"
CONSOLE = "next step: see the end of the guest's console"
MEMORY = "next step: raise machine.memory_mib"
LOST = "the link to the guest was lost during "
# What the user reads of each, in this order: what happened, the likely cause, the next step.
SAYS: dict[str, list[str]] = {
    "test_mid_fork": ["the guest for cartpole seed ", " did not start: " + LOST + "'adopt'", ENDED, KERNEL_LOG],
    "test_mid_step": ["ChannelClosedError: " + LOST + "'world.step'", ENDED, KERNEL_LOG],
    "test_mid_episode": ["ChannelClosedError: " + LOST + "'world.episode'", ENDED, KERNEL_LOG],
    "test_mid_read": ["ChannelClosedError: " + LOST + "'files.read', in the middle of a frame", ENDED, KERNEL_LOG],
    "test_mid_output": ["CommandInterruptedError: ", "exec sleep 60' was interrupted: " + LOST, ENDED, KERNEL_LOG],
    "test_agent_killed": ["CommandInterruptedError: ", "likely cause: the agent in the guest was killed", CONSOLE],
    "test_garbage": ["CommandInterruptedError: ", "likely cause: what came from the guest is no answer (not a frame: ",
                     "next step: do not trust what this guest has said before"],
    "test_cut_off": ["CommandInterruptedError: ", LOST + "'exec', in the middle of a frame",
                     "likely cause: the channel was closed while the guest's engine ran on", CONSOLE],
}  # fmt: skip
OF_AN_ENGINE = {
    "qemu": {
        "test_guest_dies": ["likely cause: the guest's kernel panicked: sysrq triggered crash", CONSOLE],
        "test_out_of_memory": ["likely cause: the guest ran out of memory, and its kernel killed ", MEMORY],
    },
    "gvisor": {
        "test_guest_dies": [ENDED + "the guest ended itself", KERNEL_LOG],
        "test_out_of_memory": ["likely cause: the guest used ", "MiB of the host's memory", MEMORY],
    },
}


def reports(output: str) -> Mapping[str, str]:
    """Return what is shown of each failure, by the test's name."""
    parts = re.split(r"^_{3,} (?:ERROR at setup of )?(\w+) _{3,}$", output, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_faults_of_every_kind_in_one_session(
    pytester: pytest.Pytester, run: Run, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULTS_ENGINE", engine)
    pytester.makepyfile(FAULTS)
    result = run("--microsim-world=cartpole", f"--microsim-engine={engine}", "--durations=20")
    result.assert_outcomes(passed=4, failed=9, errors=1)
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    shown = reports(result.stdout.str())
    expected = {**SAYS, **OF_AN_ENGINE[engine]}
    assert set(shown) == set(expected)
    for name, words in expected.items():
        assert re.search(".*".join(map(re.escape, words)), shown[name], re.DOTALL), f"{words}:\n{shown[name]}"


WORKER = """
    import os
    import signal
    from pathlib import Path

    import pytest

    @pytest.mark.seeds(range(6))
    def test_it(rollout):
        rollout.reset()
        if rollout.seed == 2 and not Path("killed").exists():
            Path("killed").write_text(str(rollout.machine.pid))
            os.kill(os.getpid(), signal.SIGKILL)

    def test_well(rollout):
        assert rollout.exec("echo well").stdout == "well\\n"
"""


def test_a_worker_that_is_killed_takes_its_guests_along_and_no_others(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(WORKER)
    result = run("--microsim-world=cartpole", "-n", "2")
    result.assert_outcomes(passed=6, failed=1)
    text = result.stdout.str()
    assert re.search(r"worker 'gw\d' crashed while running '\S+::test_it\[seed-0002\]'", text)
    assert "INTERNALERROR" not in text
    assert "gates: 1 not assessed" in result.outlines
    killed = int((pytester.path / "killed").read_text())
    assert not psutil.pid_exists(killed) or psutil.Process(killed).status() == psutil.STATUS_ZOMBIE
