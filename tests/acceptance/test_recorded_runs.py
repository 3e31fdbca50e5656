"""Recorded actions and options in a suite: run, replayed, and where they are wrong."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]

pytestmark = pytest.mark.timeout(300)

SUITE = """
from pathlib import Path
import pytest
from pytest_microsim.trajectories.recordings import Recording

HERE = Path(__file__).parent
DRIVE = Recording.open(HERE / "drive.csv")

@pytest.mark.seeds(range(3))
def test_drive(rollout):
    episode = rollout.run(DRIVE, options={"start_spread": 0.01})
    assert (episode.limit, episode.steps) == ("recording", 3)
    assert max(map(abs, episode.trajectory["observation"][0])) < 0.01
    assert rollout.seed != 1, "one is bad"

def test_gap(rollout):
    rollout.run(Recording.open(HERE / "gap.csv"))

def test_option(rollout):
    rollout.run(DRIVE, options={"wheels": 3})
"""


def test_recorded_actions_and_options_are_part_of_a_replay(pytester: pytest.Pytester, run: Run, workers: int) -> None:
    pytester.makeini("[pytest]\naddopts = -p no:randomly\nmicrosim_world = cartpole\n")
    pytester.makepyfile(test_it=SUITE)
    drive = pytester.path / "drive.csv"
    drive.write_text("time,push\n0,0.5\n0.02,-0.5\n0.04,0\n")
    (pytester.path / "gap.csv").write_text("time,push\n0,1\n0.02,\n")
    result = run()
    result.assert_outcomes(passed=2, failed=3)
    said = result.stdout.str()
    assert re.search(r"RecordingError: \S+gap\.csv:3: '' is no number", said)
    assert "no option 'wheels'" in said
    assert re.search(r"^test_it\.py:\d+: RecordingError", said, re.MULTILINE), "it shows more than the test"
    if workers:
        return
    (again,) = [line for line in result.outlines if line.startswith("replay: pytest ") and "test_drive" in line]
    words = shlex.split(again)[2:]
    result = run(*words)
    assert "replay: bit by bit the episodes of that rollout" in result.stdout.str()
    drive.write_text("time,push\n0,0.5\n0.02,-0.5\n0.04,0.25\n")
    result = run(*words)
    assert "not the same as then: the controller, or what it was run with" in result.stdout.str()
    drive.write_text("time,push\n0,left\n")
    assert re.search(r"drive\.csv:2: 'left' is no number", run("--collect-only").stdout.str())
