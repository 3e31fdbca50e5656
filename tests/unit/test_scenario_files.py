"""Scenario files: what they may say, and every mistake with its line."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenario_files import HEAD, mistakes, refused, scenario, write

from pytest_microsim.baselines.wishes import Tolerance, wishes_of
from pytest_microsim.errors import ScenarioError
from pytest_microsim.scenarios.collection import as_marked
from pytest_microsim.scenarios.reading import examine, read
from pytest_microsim.scenarios.spec import Baseline, Bound, PassRate, RecordingFile
from pytest_microsim.statistics.trends import Allowed

FULL = """\
name: dock-in-the-rain
description: All that a file may say
world: warehouse
controller: [drive.sh, --fast]
seeds: "0:64:2"
max_steps: 500
limits: {memory_mib: 64, step_deadline_s: 0.1, late: hold}
repeat: 2
variance: warn
deterministic: false
support: 100
min_effective_seeds: 8
strict: true
unchecked: [port]
parameters:
  friction: {uniform: [0.4, 1]}
  mass_kg: {log_uniform: [0.1, 10]}
  bias: {normal: {mean: 0, sd: 0.02, min: -0.1, max: 0.1}}
  pallets: {integers: [0, 8]}
  floor: {choice: [wood, "concrete", {rough: true}]}
  payload: {grid: [0, 2.5]}
  lights: {value: null}
parameters_seed: 7
expect:
  metrics:
    distance.to dock: {below: 0.25}
    collisions: {equals: 0}
    time_s: {between: [5, 50], at_most: 40}
  total_reward: {above: 1}
  steps: {at_least: 10}
  terminated: true
pass_rate: {at_least: 0.8, confidence: 0.9, by: bound}
better: {collisions: lower}
baseline:
  tolerance: {observation: 0.001, "*": {relative: 1.0e-6, until_s: 10}}
  steps: 2
  metrics: {time_s: 0.5, d: {relative: 0.01}}
  must: tolerance
  across: [cpu]
  columns: [observation, action]
tags: [smoke, night]
"""


def test_all_that_a_file_may_say(tmp_path: Path) -> None:
    path = write(tmp_path, FULL)
    (tmp_path / "drive.sh").write_text("#!/bin/sh\n")
    found = read(path)
    assert (found.name, found.seeds, found.path) == ("dock-in-the-rain", tuple(range(0, 64, 2)), path)
    assert found.limits == {"memory_mib": 64, "step_deadline_s": 0.1, "late": "hold"}
    document = found.document
    assert document.controller == ("drive.sh", "--fast")
    assert document.parameters["friction"].uniform == (0.4, 1.0)
    assert document.parameters["floor"].choice == ("wood", "concrete", {"rough": True})
    assert {name: "".join(parameter.written) for name, parameter in document.parameters.items()} == {
        "friction": "uniform", "mass_kg": "log_uniform", "bias": "normal", "pallets": "integers", "floor": "choice",
        "payload": "grid", "lights": "value",
    }  # fmt: skip
    assert document.parameters["lights"].value is None
    assert document.expect.metrics["time_s"] == Bound(between=(5.0, 50.0), at_most=40.0)
    assert document.expect.terminated is True
    assert document.pass_rate == PassRate(at_least=0.8, confidence=0.9, by="bound")
    assert (document.strict, document.deterministic, document.tags) == (True, False, ("smoke", "night"))
    assert found.line("expect.metrics.collisions") == 27
    assert found.line("expect.metrics.distance.to dock") == 26
    assert found.line("expect.metrics.unwritten") == 25
    assert found.line("nowhere") == 1


def test_what_a_file_says_of_its_baseline_is_what_a_marker_says(tmp_path: Path) -> None:
    (tmp_path / "drive.sh").write_text("#!/bin/sh\n")
    document = read(write(tmp_path, FULL)).document
    assert document.baseline is not None
    wishes = wishes_of(as_marked(document.baseline))
    assert wishes.tolerances.of("observation") == Tolerance(absolute=0.001)
    assert wishes.tolerances.of("state") == Tolerance(relative=1e-6, until_s=10.0)
    assert (wishes.tolerances.steps, wishes.must, wishes.across) == (2, "tolerance", ("cpu",))
    assert wishes.metrics == {"time_s": Allowed(0.5, 0.0), "d": Allowed(0.0, 0.01)}
    assert wishes.columns == ("action", "observation")
    assert wishes_of(as_marked(Baseline())) == wishes_of({})


def test_what_is_left_out(tmp_path: Path) -> None:
    found = scenario(tmp_path, "")
    assert (found.name, found.seeds, found.limits) == ("dock", (), {})
    assert (found.document.world, found.document.pass_rate, found.document.parameters) == (None, None, {})


@pytest.mark.parametrize(
    ("written", "seeds"),
    [("3", (0, 1, 2)), ('"2:5"', (2, 3, 4)), ('"1,9"', (1, 9)), ("[4, 2]", (4, 2)), ("[5]", (5,))],
)
def test_seeds_are_a_count_a_range_or_a_list(tmp_path: Path, written: str, seeds: tuple[int, ...]) -> None:
    assert scenario(tmp_path, f"seeds: {written}\n").seeds == seeds


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("world: 3.10\n", 2, ["'3.10' is read as a number", 'quote it: world: "3.10"']),
        ("world: no\n", 2, ["'no' is read as a boolean"]),
        ("world: a\nworld: b\n", 3, ["key 'world' is there twice, on lines 2 and 3"]),
        ("wrold: a\n", 2, ["unknown key 'wrold'", 'did you mean "world"?']),
        ("seeds: 0:64\n", 2, ["'0:64' is read as a base-60 number", 'quote it: seeds: "0:64"']),
        ("seeds: 0\n", 2, ["seeds must be a number of seeds from 1", "not 0"]),
        ("seeds: -3\n", 2, ["not -3"]),
        ("seeds: 3.0\n", 2, ["'3.0' is read as a number"]),
        ("seeds: []\n", 2, ["seeds is empty"]),
        ("seeds: [1, 2, 1]\n", 2, ["repeated seeds: 1"]),
        ("seeds: [true]\n", 2, ["seeds[0] must be a whole number", "not true"]),
        ('seeds: "many"\n', 2, ["'many' is not a list of seeds"]),
        ('seeds: "64"\n', 2, ['"64" would be the one seed 64', "write seeds: 64 for so many, or seeds: [64]"]),
        ("max_steps: 0\n", 2, ["max_steps must be a whole number, at least 1"]),
        ("max_steps: 0755\n", 2, ["not 0755"]),
        ("max_steps: 12:30:45\n", 2, ["not 12:30:45"]),
        ("repeat: 11\n", 2, ["repeat must be a number of runs from 1 to 10"]),
        ("variance: none\n", 2, ['variance is "none", and must be fail, warn or off']),
        ("strict: yes\n", 2, ["strict must be true or false, not yes"]),
        ('strict: "true"\n', 2, ["strict must be true or false", "without quotes"]),
        ("limits: {memory: 64}\n", 2, ["unknown key 'memory' in limits", '"memory_mib"']),
        ("limits: {network: guest}\n", 2, ["no limit 'network' here", "part of the world's image"]),
        ("limits:\n  memory_mib: 5\n", 3, ["limits.memory_mib must be a whole number of MiB"]),
        ("parameters: {1x: {value: 1}}\n", 2, ["must be a Python identifier"]),
        ("parameters: {x: 3}\n", 2, ["parameters.x must be a mapping, not 3"]),
        ("parameters:\n  x: {}\n", 3, ["parameter x has nothing", "exactly one of uniform"]),
        ("parameters:\n  x: {value: 1, grid: [1]}\n", 3, ["parameter x has grid and value"]),
        ("parameters:\n  x: {value: null, grid: [1]}\n", 3, ["parameter x has grid and value"]),
        (f"parameters:\n  x: {{choice: [1, {'[' * 20 + ']' * 20}]}}\n", 3, ["is nested more than 16 deep"]),
        ("parameters:\n  x: {uniform: [1]}\n", 3, ["parameters.x.uniform has 1 entries, and must be two numbers"]),
        ("parameters:\n  x: {uniform: [2, 1]}\n", 3, ["parameter x is drawn from 2 to 1"]),
        ("parameters:\n  x: {uniform: [1, 1]}\n", 3, ["parameter x is drawn from 1 to 1"]),
        ("parameters:\n  x: {uniform: [1, inf]}\n", 3, ["parameters.x.uniform[1] must be a number, not inf"]),
        ("parameters:\n  x: {uniform: [1, 1e999]}\n", 3, ["must be a number, not 1e999"]),
        ("parameters:\n  x: {log_uniform: [0, 1]}\n", 3, ["must be a number above 0, not 0"]),
        ("parameters:\n  x: {normal: {mean: 0}}\n", 3, ["parameters.x.normal has no sd"]),
        ("parameters:\n  x: {normal: {mean: 0, sd: 0}}\n", 3, ["sd must be a number above 0"]),
        ("parameters:\n  x: {normal: {mean: 0, sd: 1, min: 5}}\n", 3, ["leave 2.9e-07 of the normal"]),
        ("parameters:\n  x: {normal: {mean: 0, sd: 1, min: 1, max: 0}}\n", 3, ["min 1 and max 0"]),
        ("parameters:\n  x: {choice: []}\n", 3, ["parameters.x.choice is empty"]),
        ("parameters:\n  x: {choice: [no]}\n", 3, ["'no' is ambiguous"]),
        ("parameters:\n  x: {grid: [1, 1]}\n", 2, ["the grids have x=1 twice"]),
        ("expect: {metric: {}}\n", 2, ["unknown key 'metric' in expect", '"metrics"']),
        ("expect:\n  metrics:\n    d: {}\n", 4, ["nothing is expected of d", "below"]),
        ("expect:\n  metrics:\n    d: {less: 1}\n", 4, ["unknown key 'less' in expect.metrics.d"]),
        ("expect:\n  metrics:\n    d: {below: 1, above: 2}\n", 4, ["no number is what d is expected to be"]),
        ("expect:\n  steps: {below: 1, at_least: 1}\n", 3, ["no number is what steps"]),
        ("expect:\n  steps: {between: [3, 1]}\n", 3, ["no number is what steps"]),
        ("expect:\n  steps: {equals: 3, at_most: 2}\n", 3, ["no number is what steps"]),
        ("pass_rate: {at_least: 0.9}\n", 2, ["pass_rate is written, and seeds is not"]),
        ("seeds: 4\npass_rate: {at_least: 1.1}\n", 3, ["at_least must be a share"]),
        ("seeds: 4\npass_rate: {confidence: 0.9}\n", 3, ["pass_rate has no at_least"]),
        ("seeds: 4\npass_rate: {at_least: 0.9, by: luck}\n", 3, ["rate or bound"]),
        ("seeds: 58\npass_rate: {at_least: 0.95, by: bound}\n", 3, ["58 seeds cannot show", "takes 59 seeds"]),
        ("seeds: 4\npass_rate: {at_least: 1, by: bound}\n", 3, ["no number of seeds shows that all"]),
        ("better: {x: up}\n", 2, ['better.x is "up", and must be higher or lower']),
        ("baseline: {tolerances: {}}\n", 2, ["unknown key 'tolerances' in baseline", '"tolerance"']),
        ("baseline:\n  tolerance: {x: -1}\n", 3, ["must be a number, 0 or more"]),
        ("baseline:\n  tolerance: {x: {abs: 1}}\n", 3, ["unknown key 'abs' in baseline.tolerance.x"]),
        ("strict: true\nvariance: off\n", 3, ["'off' is read as a boolean"]),
        ('strict: true\nvariance: "off"\n', 2, ["strict contradicts variance"]),
        ("min_effective_seeds: 4\ndeterministic: true\n", 2, ["min_effective_seeds contradicts deterministic"]),
        ("tags: [a b]\n", 2, ["tags[0]", "letters, digits and _"]),
        ("tags: [a, a]\n", 2, ["tag a is there twice"]),
        ("tags: [xfail]\n", 2, ["tag xfail is a mark that means something else"]),
        ("name: a b\n", 2, ["'a b' is no name of a test"]),
        ("name: setup_module\n", 2, ["means something else to pytest"]),
        ("x: &a 1\n", 2, ["anchor &a"]),
        ("x: !!python/object:os.system 1\n", 2, ["tag"]),
    ],
)
def test_a_mistake_is_reported_with_its_line(tmp_path: Path, text: str, line: int, words: list[str]) -> None:
    refused(tmp_path, HEAD + text, line, *words)


@pytest.mark.parametrize(
    ("controller", "words"),
    [
        ("nowhere.py", ["there is no controller", "relative to the scenario's file"]),
        ("drive.py --fast", ["there is no controller", "is a list"]),
        ("broken.py", ["broken.py:1: the controller does not compile"]),
        ("text.txt", ["the controller is no program"]),
        ("[]", ["controller is empty"]),
        ("[drive.sh, 3]", ["'3' is read as a number"]),
    ],
)
def test_a_controller_that_cannot_be_used(tmp_path: Path, controller: str, words: list[str]) -> None:
    (tmp_path / "broken.py").write_text("def act(:\n")
    (tmp_path / "text.txt").write_text("some text\n")
    (tmp_path / "drive.sh").write_text("#!/bin/sh\n")
    refused(tmp_path, f"controller: {controller}\n", 1, *words)


def test_a_scenario_is_driven_by_one_thing(tmp_path: Path) -> None:
    refused(tmp_path, "seeds: 4\n", 1, "the scenario has neither a controller nor a recording")
    refused(tmp_path, HEAD + "recording: drive.py\n", 2, "the scenario has a controller and a recording")


@pytest.mark.parametrize(
    ("recording", "words"),
    [
        ("nowhere.mcap", ["there is no recording", "relative to the scenario's file"]),
        ("/run.mcap", ["holds on one machine only"]),
        ("{topic: cmd}", ["recording has no file"]),
        ("{file: run.csv, time_unit: h}", ["recording.time_unit", "must be s, ms, us or ns"]),
        ("{file: run.csv, rate: 3}", ["unknown key 'rate' in recording"]),
        ("{file: run.csv, field: []}", ["recording.field is empty"]),
        ("[run.csv]", ["recording"]),
        ("{file: run.csv, field: pull}", ["run.csv has no column 'pull', but 'time', 'push'"]),
        ("{file: run.csv, by: step, hold: linear}", ["nothing between two rows"]),
        ("{file: run.csv, topic: /cmd}", ["run.csv is a table, and has no topic '/cmd'"]),
    ],
)
def test_a_recording_that_cannot_be_used(tmp_path: Path, recording: str, words: list[str]) -> None:
    (tmp_path / "run.csv").write_text("time,push\n0,1\n")
    refused(tmp_path, f"recording: {recording}\n", 1, *words)


def test_a_recording_is_a_path_or_how_to_read_it(tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text("time,push\n0,1\n")
    assert read(write(tmp_path, "recording: run.csv\n")).document.recording == "run.csv"
    found = read(write(tmp_path, "recording: {file: run.csv, field: push, by: step}\n")).document.recording
    assert found == RecordingFile(file="run.csv", field="push", by="step")
    (tmp_path / "run.csv").write_text("time,v,w\n0,1,2\n")
    two = read(write(tmp_path, "recording: {file: run.csv, field: [v, w]}\n")).document.recording
    assert two == RecordingFile(file="run.csv", field=("v", "w"))


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a folder" / "mit Umläuten"
    path = write(folder, HEAD)
    monkeypatch.chdir(folder)
    assert read(Path(path.name)).path == path
    monkeypatch.chdir(tmp_path)
    assert read(path.relative_to(tmp_path)).path == path


def test_every_mistake_of_a_file_is_reported_in_the_order_of_its_lines(tmp_path: Path) -> None:
    text = HEAD + "seeds: 0:4\nworld: no\nparameters:\n  x: {}\n  y: {uniform: [2, 1]}\ntags: [a, a]\nzzz: 1\n"
    errors = mistakes(tmp_path, text)
    assert [int(error.what.split(":")[1]) for error in errors] == [2, 3, 5, 6, 7, 8]
    with pytest.raises(ScenarioError) as raised:
        read(tmp_path / "dock.scenario.yaml")
    assert str(raised.value) == "\n".join(map(str, errors))


def test_the_name_of_a_file_may_be_no_name_of_a_test(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, "my dock.scenario.yaml")
    with pytest.raises(ScenarioError, match=r":1: the file's name: 'my dock' is no name of a test"):
        read(path)
    path.write_text(HEAD + "name: my-dock\n")
    assert read(path).name == "my-dock"


def test_too_many_points_of_grids(tmp_path: Path) -> None:
    values = list(range(40))
    refused(
        tmp_path, f"{HEAD}parameters:\n  x: {{grid: {values}}}\n  y: {{grid: {values}}}\n", 2, "more than 1000 groups"
    )
    text = f"{HEAD}seeds: 3000\nparameters:\n  x: {{grid: {values}}}\n"
    refused(tmp_path, text, 3, "40 groups of 3000 seeds are more than 100000 tests")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    found, (error,) = examine(tmp_path / "none.scenario.yaml")
    assert found is None
    assert "cannot be read" in str(error)


KEYS = st.sampled_from([*FULL.replace(":", " ").split(), "x"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(string.printable, max_size=8), KEYS)
TREES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(document=st.dictionaries(KEYS, TREES, max_size=6))
def test_any_document_is_read_or_refused_with_lines(tmp_path: Path, document: dict[str, Any]) -> None:
    import yaml

    path = write(tmp_path, yaml.safe_dump(document, allow_unicode=True))
    found, errors = examine(path)
    assert (found is None) == bool(errors)
    for error in errors:
        assert error.what.startswith(f"{path}:") or f"{path}:" in str(error)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.binary(max_size=60), at=st.integers(0, len(FULL)))
def test_any_damage_to_a_file_is_read_or_refused(tmp_path: Path, data: bytes, at: int) -> None:
    path = write(tmp_path, "")
    path.write_bytes(FULL.encode()[:at] + data + FULL.encode()[at + len(data) :])
    found, errors = examine(path)
    assert (found is None) == bool(errors)
