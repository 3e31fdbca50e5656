"""What failed is kept on request: the microVM as it was when its test failed, to be woken by anybody."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from microsim_vm import Sandbox

pytestmark = pytest.mark.timeout(300)

Run = Callable[..., pytest.RunResult]
KEPT = re.compile(r"kept: microsim shell (sb-[0-9a-f]{12}) ")
SUITE = """
import pytest

@pytest.mark.seeds(range(4))
def test_even(rollout):
    rollout.exec(f"echo {rollout.seed} > note; sleep 1000 & echo $! > pid", check=True)
    rollout.reset()
    rollout.step(1)
    assert rollout.seed % 2 == 0
"""


@pytest.mark.parametrize("workers", [0, 2], ids=["n0", "n2"])
def test_failed_rollouts_go_on_where_they_were_and_passed_ones_are_gone(
    pytester: pytest.Pytester, run: Run, workers: int
) -> None:
    suite = pytester.makepyfile(SUITE)
    before = kept_of(suite)
    result = run("--microsim-world=cartpole", "--microsim-keep=failed")
    result.assert_outcomes(passed=2, failed=2)
    names = KEPT.findall(result.stdout.str())
    assert len(names) == 2
    try:
        assert kept_of(suite) - before == set(names)
        assert {note(name) for name in names} == {"1", "3"}
    finally:
        for sandbox in Sandbox.list():
            if sandbox.id in names:
                sandbox.kill()


def kept_of(suite: Path) -> set[str]:
    """Return the sandboxes that a file's tests have left; other tests make others at the same time."""
    return {each.id for each in Sandbox.list() if each.metadata.get("test", "").startswith(suite.name)}


def note(name: str) -> str:
    """Return what a kept rollout had written, if what it had started still runs."""
    with Sandbox.get(name) as sandbox:
        assert sandbox.status == "hibernated"
        assert sandbox.metadata["test"].endswith(f"test_even[seed-000{sandbox.metadata['seed']}]")
        written = sandbox.exec("kill -0 $(cat pid) && cat note", check=True).stdout.strip()
        sandbox.kill()
        return written


def test_nothing_is_kept_unasked(pytester: pytest.Pytester, run: Run) -> None:
    suite = pytester.makepyfile("def test_fails(rollout):\n    assert False\n")
    before = kept_of(suite)
    result = run("--microsim-world=cartpole")
    result.assert_outcomes(failed=1)
    assert "kept:" not in result.stdout.str()
    assert kept_of(suite) == before
