"""While one rollout runs, the fork of the next one is started."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest

pytestmark = pytest.mark.timeout(300)


def test_the_next_rollouts_fork_is_started_while_one_runs(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult], workers: int
) -> None:
    pytester.makepyfile(
        """
        import os, time
        import pytest

        @pytest.mark.seeds(range(8))
        def test_it(rollout):
            assert rollout.exec("echo $EPISODE_SEED").stdout == f"{rollout.seed}\\n"
            time.sleep(1)
            print("FORK", rollout.machine.id, "ahead" if "fork.resume" in rollout.machine.timings else "on demand")

        def test_without_a_world():
            pass
        """
    )
    result = run("--microsim-world=cartpole", "-rP")
    result.assert_outcomes(passed=9)
    forks = [line.split(maxsplit=2) for line in result.outlines if line.startswith("FORK")]
    assert len({name for _, name, _ in forks}) == 8
    assert [how for _, _, how in forks].count("on demand") == max(1, workers)


def test_no_fork_is_started_for_a_test_that_needs_none(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    pytester.makepyfile(
        """
        import psutil

        def test_it(rollout):
            rollout.exec("true")

        def test_without_a_world():
            names = [child.name() for child in psutil.Process().children(recursive=True)]
            assert not [name for name in names if "qemu" in name or "runsc" in name]

        def test_another(rollout):
            rollout.exec("true")
            print("GUEST", rollout.machine.pid)
        """
    )
    result = run("--microsim-world=cartpole", "-rP")
    result.assert_outcomes(passed=3)
    (pid,) = [int(line.split()[1]) for line in result.outlines if line.startswith("GUEST")]
    assert not psutil.pid_exists(pid)
