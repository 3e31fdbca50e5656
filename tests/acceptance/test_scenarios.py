"""Scenario files as tests: on real guests, with and without workers."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

Run = Callable[..., pytest.RunResult]

POLE = """\
description: The pole stays up
controller: controllers/balance.py
seeds: 4
max_steps: 60
parameters:
  gust_n: {uniform: [0.1, 0.4]}
expect:
  metrics:
    balanced_steps: {equals: 60}
tags: [smoke]
"""
TOPPLE = """\
controller: controllers/topple.py
seeds: "0:4"
max_steps: 60
expect:
  metrics: {balanced_steps: {at_least: 12}}
pass_rate: {at_least: 0.5}
"""
GRID = """\
controller: controllers/balance.py
seeds: [3, 7]
max_steps: 40
parameters:
  pole_m: {grid: [0.8, 1.6]}
  gust_n: {uniform: [0.1, 0.4]}
expect:
  steps: {at_most: 40}
  metrics:
    max_angle: {below: 0.0001}
"""
RECORDED = """\
recording: {file: pushes.csv, by: step}
seeds: 2
max_steps: 9
expect:
  steps: {equals: 9}
  terminated: false
"""
TYPO = """\
recording: {file: pushes.csv, by: step}
expect:
  metrics: {swings: {below: 1}}
"""
CRASH = """\
controller: [controllers/crash.sh, "3"]
seeds: 2
max_steps: 20
variance: warn
pass_rate: {at_least: 0.01}
"""
WRONG = """\
controller: controllers/balance.py
seeds: 2
parameters:
  pole_length: {value: 2}
pass_rate: {at_least: 0.5}
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, controllers: Path) -> Path:
    """Write the scenarios; what a scenario file says of marks has to be known to ``--strict-markers``."""
    folder = pytester.path
    for name, text in {
        "pole": POLE,
        "topple": TOPPLE,
        "grid": GRID,
        "recorded": RECORDED,
        "crash": CRASH,
        "wrong": WRONG,
        "typo": TYPO,
    }.items():
        (folder / f"{name}.scenario.yaml").write_text(text)
    (controllers / "crash.sh").write_text("#!/bin/sh\nread line && exit $1\n")
    (controllers / "crash.sh").chmod(0o755)
    (folder / "pushes.csv").write_text("push\n" + "0\n1\n" * 6)
    pytester.makeini("[pytest]\nmicrosim_world = cartpole\naddopts = --strict-markers --strict-config -rA\n")
    return folder


@pytest.mark.timeout(300)
def test_scenarios_run_as_tests(suite: Path, run: Run, workers: int) -> None:
    result = run("--microsim-results=results.json", "--junit-xml=junit.xml")
    text = result.stdout.str()
    # Four seeds stay up, two follow the recording; six missed and are no failures; five failed, two for their
    # world and one for a metric that it has not, and two pass rates.
    result.assert_outcomes(passed=6, xfailed=6, failed=9)
    assert result.ret == 1
    result.stdout.fnmatch_lines_random(
        [
            "PASSED pole.scenario.yaml::pole[[]seed-0003[]]",
            "XFAIL topple.scenario.yaml::topple[[]seed-0000[]] - topple.scenario.yaml:5: balanced_steps is *, and has "
            "to be at least 12",
            "FAILED grid.scenario.yaml::grid[[]pole_m=0.8-seed-0003[]] - Failed: grid.scenario.yaml:10: max_angle is "
            "*, and has to be below 0.0001*",
            "parameters: pole_m=0.8, gust_n=0.*",
            "XFAIL crash.scenario.yaml::crash[[]seed-0001[]] - crash.scenario.yaml:1: *",
            "wrong.scenario.yaml:3: *the cart-pole has no option 'pole_length'*",
            "*topple: pass rate*",
            "pass rate: 0 of 4 seeds passed (0.0000; 0.95 confidence interval 0.0000 to 0.6024), asked for: 0.5*",
            "  likely cause: what the scenario expects was missed by seeds 0, 1, 2, 3",
            "  next step: replay one of them: pytest 'topple.scenario.yaml::topple[[]seed-0000[]]' *microsim-replay *",
        ]
    )
    (typo,) = [line for line in text.splitlines() if "the world has no metric" in line and line.startswith("FAILED")]
    assert "::typo - Failed: " in typo
    assert typo.count(".yaml:") == 2, "its line is said once"
    # A failure is the scenario's own: no line of the plugin, and none of the guest but where the world raised.
    assert "pytest_microsim/" not in text
    assert "entries are hidden" not in text

    groups = {group["key"]: group for group in json.loads((suite / "results.json").read_text())["groups"]}
    assert list(groups) == [
        "crash.scenario.yaml::crash", "grid.scenario.yaml::grid[pole_m=0.8]", "grid.scenario.yaml::grid[pole_m=1.6]",
        "pole.scenario.yaml::pole", "recorded.scenario.yaml::recorded", "topple.scenario.yaml::topple",
        "typo.scenario.yaml::typo", "wrong.scenario.yaml::wrong",
    ]  # fmt: skip
    pole, topple = groups["pole.scenario.yaml::pole"], groups["topple.scenario.yaml::topple"]
    assert (pole["scenario"], pole["tags"], pole["location"]) == (
        "pole.scenario.yaml", ["smoke"], "pole.scenario.yaml:1",
    )  # fmt: skip
    assert topple["asked_rate"] == {"at_least": 0.5, "confidence": 0.95, "by": "rate"}
    assert [rollout["outcome"] for rollout in topple["rollouts"]] == ["missed"] * 4
    assert "balanced_steps is" in topple["rollouts"][0]["failure"]
    verdicts = {verdict["gate"]: verdict["outcome"] for verdict in topple["verdicts"]}
    assert (verdicts["pass rate"], verdicts["T2 fingerprint"]) == ("failed", "passed")
    assert [v["outcome"] for v in groups["wrong.scenario.yaml::wrong"]["verdicts"] if v["gate"] == "pass rate"] == [
        "not assessed"
    ]
    drawn = [rollout["parameters"]["gust_n"] for rollout in pole["rollouts"]]
    assert len(set(drawn)) == 4
    assert all(0.1 <= gust <= 0.4 for gust in drawn)
    assert [rollout["episodes"][0]["options"] for rollout in pole["rollouts"]] == [{"gust_n": gust} for gust in drawn]
    # The points of a grid have the same draws, and other episodes.
    short, long = (groups[f"grid.scenario.yaml::grid[pole_m={length}]"]["rollouts"] for length in (0.8, 1.6))
    assert [each["parameters"]["gust_n"] for each in short] == [each["parameters"]["gust_n"] for each in long]
    assert not {each["fingerprint"] for each in short} & {each["fingerprint"] for each in long}

    cases = ElementTree.parse(suite / "junit.xml").getroot().iter("testcase")
    junit = {case.get("name"): [child.tag for child in case if child.tag != "properties"] for case in cases}
    assert junit["pole[seed-0000]"] == []
    assert junit["topple[seed-0000]"] == ["skipped"]
    assert junit["grid[pole_m=1.6-seed-0007]"] == junit["topple[pass-rate]"] == ["failure"]


@pytest.mark.timeout(300)
def test_pytests_own_ways_of_choosing_and_repeating(suite: Path, run: Run) -> None:
    for name in ("wrong", "typo"):
        (suite / f"{name}.scenario.yaml").unlink()
    result = run("-m", "smoke", "--microsim-repeat=2", "--microsim-seeds=5:7", "--collect-only", "-q")
    assert re.findall(r"::pole\[(.*)\]", result.stdout.str()) == [
        "seed-0005", "seed-0005-run2", "seed-0006", "seed-0006-run2",
    ]  # fmt: skip
    assert "4/24 tests collected (20 deselected)" in result.stdout.str()

    # One seed of a rate says nothing of it; it is not assessed, and the seed that missed is no failure.
    result = run("topple.scenario.yaml", "-k", "seed-0002", "--microsim-results=one.json")
    result.assert_outcomes(xfailed=1, deselected=3)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*not assessed: topple.scenario.yaml::topple*"])

    # With --runxfail each fails on its own, and --lf chooses just that one again.
    (rollout,) = json.loads((suite / "one.json").read_text())["groups"][0]["rollouts"]
    result = run(*shlex.split(rollout["replay"])[1:], "--runxfail")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*bit by bit the episodes of that rollout*"])
    result = run("--lf", "--collect-only", "-q")
    assert re.findall(r"::(.*)", result.stdout.str()) == ["topple[seed-0002]"]


def test_mistakes_are_reported_at_collection(suite: Path, run: Run, workers: int) -> None:
    (suite / "topple.scenario.yaml").write_text(TOPPLE.replace("at_least: 0.5", "at_least: 0.5, by: bound"))
    (suite / "pole.scenario.yaml").write_text(POLE.replace("seeds: 4", "seeds: 0:4") + "zzz: 1\n")
    (suite / "grid.scenario.yaml").write_text(GRID + "world: cartpoel\n")
    (suite / "wrong.scenario.yaml").write_text(WRONG + "tags: [timeout]\n")
    (suite / "text.scenario.yaml").write_text("just text\n")
    result = run()
    text = result.stdout.str()
    assert result.ret in (1, 2)
    assert "INTERNALERROR" not in text + result.stderr.str()
    for words in (
        "pole.scenario.yaml:3: '0:4' is read as a base-60 number", "pole.scenario.yaml:11: unknown key 'zzz'",
        "topple.scenario.yaml:6: 4 seeds cannot show a pass rate of 0.5", "it takes 5 seeds or more",
        "cartpoel", "the marker at " + str(suite / "grid.scenario.yaml") + ":11",
        "wrong.scenario.yaml:6: tag 'timeout' is a mark that changes how a test is run",
        "text.scenario.yaml:1: the file is not a mapping",
    ):  # fmt: skip
        assert words in text, text


def test_which_files_are_scenarios_can_be_chosen(suite: Path, pytester: pytest.Pytester) -> None:
    (suite / "pole.test.yaml").write_text(POLE)
    pytester.makeini("[pytest]\nmicrosim_world = cartpole\nmicrosim_scenarios = *.test.yaml\n")
    result = pytester.runpytest_inprocess("--collect-only", "-q")
    assert result.stdout.str().count("::") == 4
    result.stdout.fnmatch_lines(["pole.test.yaml::pole[[]seed-0000[]]"])
    pytester.makeini("[pytest]\nmicrosim_world = cartpole\nmicrosim_scenarios =\n")
    assert pytester.runpytest_inprocess("--collect-only").ret == pytest.ExitCode.NO_TESTS_COLLECTED
