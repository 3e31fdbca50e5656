"""The results of a run on real guests: complete, as their schema says, and there however the run ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_microsim.results.file import read
from pytest_microsim.results.model import GroupResult, RolloutResult, RunResult
from pytest_microsim.results.schema import schema

Run = Callable[..., pytest.RunResult]

pytestmark = pytest.mark.timeout(300)

SUITE = """
import os
import pytest

@pytest.fixture
def broken():
    yield
    raise ValueError("broken while tidying up")

@pytest.mark.slow
@pytest.mark.seeds(range(4))
@pytest.mark.parametrize("gain", [1, 2])
def test_it(rollout, gain):
    episode = rollout.run("noise.py", max_steps=200)
    rollout.record("level", gain * rollout.seed)
    assert (gain, rollout.seed) != (2, 1), "one is bad"

@pytest.mark.microsim(repeat=2)
def test_twice(rollout):
    rollout.exec("echo hi")
    rollout.run("noise.py", max_steps=3)

def test_no_controller_can_do_this(rollout, broken):
    rollout.run("broken.py")

def test_skipped(rollout):
    pytest.skip("not today")

@pytest.mark.xfail(reason="known")
def test_expected(rollout):
    assert rollout.seed is None

def test_unfit(rollout, request):
    request.getfixturevalue("broken")

@pytest.mark.skipif("not hasattr(config, 'workerinput')", reason="nobody would be left")
@pytest.mark.seeds(range(2))
def test_lost(rollout):
    if rollout.seed == 1:
        os._exit(3)
"""
NOISE = """
import random
print("noise is on")

def act(observation):
    return random.uniform(-1, 1)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Path:
    pytester.makeini(
        "[pytest]\nmicrosim_world = cartpole\naddopts = -p no:randomly --strict-markers\nmarkers = slow: takes long\n"
    )
    pytester.makepyfile(test_it=SUITE)
    (pytester.path / "noise.py").write_text(NOISE)
    (pytester.path / "broken.py").write_text("def act(observation):\n    return 1 / 0\n")
    return pytester.path


def checked(path: Path) -> RunResult:
    jsonschema.validate(json.loads(path.read_text()), schema())
    return read(path)


def named(run: RunResult) -> dict[str, GroupResult]:
    return {group.name.partition("::")[2]: group for group in run.groups}


def single(group: GroupResult) -> RolloutResult:
    (rollout,) = group.rollouts
    return rollout


def what_a_seed_decides(run: RunResult) -> dict[str, list[Any]]:
    """Return of each group what has to be the same with workers and without."""
    return {
        group.key: [
            [
                (r.seed, r.run, r.outcome, r.metrics, r.fingerprint, [e.curves for e in r.episodes])
                for r in group.rollouts
            ],
            group.pass_rate,
            group.n_eff,
            group.verdicts,
        ]
        for group in run.groups
        if not group.name.endswith("test_lost")
    }


def test_results_are_complete_and_the_same_with_workers_and_without(suite: Path, run: Run) -> None:
    found: dict[int, RunResult] = {}
    for number in (0, 4):
        result = run(*(["-n", str(number)] if number else []), "--microsim-results", f"out/{number}.json", "--tb=no")
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines([f"results: out/{number}.json"])
        found[number] = checked(suite / "out" / f"{number}.json")
        assert (found[number].exit_status, found[number].workers) == (1, number or 1)
    assert what_a_seed_decides(found[0]) == what_a_seed_decides(found[4])

    groups = named(found[4])
    outcomes = {name: [rollout.outcome for rollout in group.rollouts] for name, group in groups.items()}
    assert outcomes == {
        "test_it[1]": ["passed"] * 4,
        "test_it[2]": ["passed", "failed", "passed", "passed"],
        "test_twice": ["passed", "passed"],
        "test_no_controller_can_do_this": ["failed"],
        "test_skipped": ["skipped"],
        "test_expected": ["skipped"],
        "test_unfit": ["error"],
        # What was lost with its worker is not made up.
        "test_lost": ["passed"],
    }
    group = groups["test_it[2]"]
    assert (group.key, group.location, group.tags) == ("test_it.py::test_it[2]", "test_it.py:9", ["slow"])
    assert (group.expected, group.n_eff, group.world) == (4, 4.0, "cartpole")
    assert group.environment["hash_seed"] == "derived from the seed"
    assert group.pass_rate is not None
    assert (group.pass_rate.passed, group.pass_rate.total) == (3, 4)
    failed = group.rollouts[1]
    assert failed.failure.startswith("AssertionError: one is bad\n")
    assert "--microsim-replay" in failed.replay
    (episode,) = failed.episodes
    assert (episode.seed, episode.stdout, episode.controller) == ("1", "noise is on\n", "noise.py")
    assert failed.metrics["level"] == 2.0
    names = [phase.name for phase in failed.phases if phase.name != "queue"]
    assert names == ["test", "fork", "episode"]
    assert all(0 < phase.start_s < found[4].duration_s for phase in failed.phases)
    assert failed.worker.startswith("gw")
    assert group.rollouts[0].episodes[0].stdout == ""
    curves = {curve.name: curve for curve in group.rollouts[0].episodes[0].curves}
    assert len(curves["reward"].steps) <= 64
    first, second = groups["test_twice"].rollouts
    assert (first.run, second.run, first.fingerprint) == (1, 2, second.fingerprint)
    assert [phase.name for phase in first.phases if phase.name != "queue"] == ["test", "fork", "exec", "episode"]
    crashed = single(groups["test_no_controller_can_do_this"])
    assert "ZeroDivisionError" in crashed.episodes[0].error
    assert crashed.failure.count("broken while tidying up") >= 1
    (world,) = found[4].worlds
    assert (world.name, world.digest) == ("cartpole", group.environment["digest"])
    assert {phase.name for phase in world.phases} == {"warm-up"}


def test_nobody_asks_and_nothing_large_is_carried(suite: Path, run: Run) -> None:
    (suite / "conftest.py").write_text(
        "import pytest\n\n"
        "def pytest_runtest_logreport(report):\n"
        "    result = getattr(report, 'microsim', {}).get('result')\n"
        "    for episode in result['episodes'] if result else ():\n"
        "        assert 'curves' not in episode and 'stdout' not in episode\n"
    )
    result = run("-k", "test_it and 2- and seed-0001 or test_twice", "-q", "--tb=no")
    result.assert_outcomes(passed=2, failed=1)
    assert not any(line.startswith(("results:", "worst seeds:")) for line in result.outlines)
    assert any(line.split()[:4] == ["test_it[2]", "1/4", "0", "0"] for line in result.outlines)
    result = run("--microsim-results", "test_it.py/r.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--microsim-results: nothing can be written in *test_it.py*"])


@pytest.mark.parametrize("workers", [0, 2], ids=["n0", "n2"])
def test_a_run_that_is_cut_short_leaves_what_it_has(suite: Path, run: Run, workers: int) -> None:
    if not workers:  # with workers, it depends on them how many more are run
        result = run("-x", "-k", "test_it and 2-", "--microsim-results", "x.json", "--tb=no")
        assert result.ret != 0
        (group,) = checked(suite / "x.json").groups
        assert [rollout.outcome for rollout in group.rollouts] == ["passed", "failed"]
        assert {verdict.outcome for verdict in group.verdicts} == {"not assessed"}

    (suite / "test_it.py").write_text(
        "import pytest, pathlib, time\n\n@pytest.mark.seeds(range(8))\ndef test_long(rollout):\n"
        "    if rollout.seed == 4:\n        pathlib.Path('here').touch()\n        time.sleep(60)\n"
    )
    words = [sys.executable, "-m", "pytest", *(["-n", str(workers)] if workers else []), "--microsim-results", "c.json"]
    process = subprocess.Popen(words, cwd=suite, env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (suite / "here").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == pytest.ExitCode.INTERRUPTED
    interrupted = checked(suite / "c.json")
    assert interrupted.exit_status == pytest.ExitCode.INTERRUPTED
    seeds = [rollout.seed for rollout in named(interrupted)["test_long"].rollouts]
    assert "4" not in seeds
    assert {"0", "1"} <= set(seeds)
