"""Ctrl-C, time limits and -x end a run quickly, with no microVM left and no new one started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.timeout(600)

Run = Callable[..., pytest.RunResult]
WORLD = "--microsim-world=cartpole"
ENDED_WITHIN_S = 30

BUSY = """
    from pathlib import Path

    import pytest

    @pytest.mark.seeds(range(6))
    def test_it(rollout):
        Path(f"guest-{rollout.machine.pid}").touch()
        rollout.exec("sleep 600", timeout_seconds=600)
"""


def guests(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("guest-")) for path in folder.glob("guest-*")]


def running(pid: int) -> bool:
    """Tell whether a process still runs; one that is dead and not yet waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def started(pytester: pytest.Pytester, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run pytest in a process group of its own, as a terminal does; all of it is dead at the end."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    process = subprocess.Popen(
        command,
        cwd=pytester.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)


def wait_for(condition: Callable[[], object], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.02)


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("interrupts", [1, 2])
def test_ctrl_c_during_rollouts(pytester: pytest.Pytester, workers: int, interrupts: int) -> None:
    pytester.makepyfile(BUSY)
    with started(pytester, WORLD, *(["-n", "2"] if workers else [])) as process:
        wait_for(lambda: len(guests(pytester.path)) == (workers or 1), 120)
        live = guests(pytester.path)
        assert all(map(running, live))
        begin = time.monotonic()
        for _ in range(interrupts):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.1)
        output, _ = process.communicate(timeout=60)
        assert time.monotonic() - begin < ENDED_WITHIN_S, output
    assert process.returncode not in (0, None), output
    assert guests(pytester.path) == live, "something was started after the stop"
    wait_for(lambda: not any(map(running, live)), ENDED_WITHIN_S)
    if interrupts == 1:
        assert "0 of 6 seeds finished an episode" in output or "of 6 seeds ran" in output


@pytest.mark.usefixtures("run")
def test_ctrl_c_while_a_world_is_warmed(pytester: pytest.Pytester, workers: int, cold_cache: Path) -> None:
    pytester.makepyfile(BUSY)

    def qemus() -> list[int]:
        return [
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if any(str(cold_cache) in word for word in process.info["cmdline"] or [])
            and "qemu" in (process.info["cmdline"] or [""])[0]
        ]

    # No trial of KVM, which is over in a moment: what is seen is the world's own guest.
    engine = ("--microsim-engine=qemu", "--microsim-accel=tcg", f"--microsim-cache-dir={cold_cache}")
    with started(pytester, WORLD, *engine, *(["-n", "2"] if workers else [])) as process:
        wait_for(qemus, 120)
        begin = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert time.monotonic() - begin < ENDED_WITHIN_S, output
    assert process.returncode not in (0, None)
    assert guests(pytester.path) == []
    wait_for(lambda: not qemus(), ENDED_WITHIN_S)


@pytest.mark.usefixtures("run")
def test_a_test_over_its_time_limit_takes_its_guest_with_it(pytester: pytest.Pytester) -> None:
    # The thread method of pytest-timeout ends the process on the spot: no fixture is torn down.
    pytester.makepyfile(BUSY)
    with started(pytester, WORLD, "--timeout=5", "--timeout-method=thread") as process:
        output, _ = process.communicate(timeout=200)
    assert process.returncode == 1, output
    live = guests(pytester.path)
    assert len(live) == 1, output
    wait_for(lambda: not any(map(running, live)), ENDED_WITHIN_S)


def test_stopping_at_the_first_failure_starts_nothing_more(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makeconftest(
        """
        import os
        from pathlib import Path

        def pytest_runtest_logreport(report):
            if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
                Path("failed").touch()
        """
    )
    pytester.makepyfile(
        """
        from pathlib import Path

        import pytest

        @pytest.mark.seeds(range(40))
        def test_it(rollout):
            Path(f"guest-{rollout.machine.pid}").touch()
            assert rollout.seed != 1
        """
    )
    result = run(WORLD, "-x", "-n", "4")
    assert result.ret != 0
    live = guests(pytester.path)
    # Each other worker may be at one when it hears of it; what xdist has given it besides is not begun.
    failed = (pytester.path / "failed").stat().st_mtime
    late = [path for path in pytester.path.glob("guest-*") if path.stat().st_mtime > failed]
    assert len(late) <= 2 * 3
    assert not any(map(running, live))
    assert "not assessed: " in result.stdout.str()
