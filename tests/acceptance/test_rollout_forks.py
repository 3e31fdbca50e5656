"""A rollout forked in the middle of an episode: alternatives that start from the same moment."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest

pytestmark = pytest.mark.timeout(300)


def test_forks_of_a_rollout_continue_its_moment_and_end_with_the_test(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    pytester.makepyfile(
        """
        def test_it(rollout):
            rollout.reset()
            rollout.step(1)
            rollout.filesystem.write("/workspace/note", "shared past")
            left, right = rollout.fork(2)
            assert len({rollout.seed, left.seed, right.seed}) == 3
            assert left.filesystem.read("/workspace/note") == b"shared past"
            positions = {fork.step(1)[0][0] for fork in (rollout, left, right)}
            assert len(positions) == 1
            print("guests:", rollout.machine.pid, left.machine.pid, right.machine.pid)
        """
    )
    result = run("--microsim-world=cartpole", "-rP")
    result.assert_outcomes(passed=1)
    line = next(line for line in result.outlines if line.startswith("guests:"))
    assert not any(psutil.pid_exists(int(pid)) for pid in line.split()[1:])
