"""``microsim scenario``, and the JSON Schema that it prints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from mcap.writer import Writer
from microsim_vm.cli.main import main
from scenario_files import HEAD, write
from test_scenario_files import FULL

from pytest_microsim.scenarios.jsonschema import schema
from pytest_microsim.scenarios.reading import examine

REPOSITORY = Path(__file__).parents[2]


def validator() -> Any:
    jsonschema.Draft202012Validator.check_schema(schema())
    return jsonschema.Draft202012Validator(schema())


def test_the_published_schema_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenario", "schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    published = REPOSITORY / "schemas" / "scenario.schema.json"
    assert json.loads(published.read_text("utf-8")) == printed, "run scripts/generate_schemas.py"


def test_every_key_is_explained() -> None:
    written = schema()
    for part in (written, *written["$defs"].values()):
        assert part["description"]
        for name, field in part["properties"].items():
            assert len(field["description"]) > 10, name


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "example_tests").glob("*.scenario.yaml")), ids=lambda path: path.name
)
def test_the_schema_accepts_the_examples(path: Path) -> None:
    validator().validate(yaml.safe_load(path.read_text("utf-8")))


def documented() -> list[str]:
    pages = [REPOSITORY / "README.md", REPOSITORY / "docs" / "scenarios.md"]
    blocks = [block for page in pages for block in re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)]
    return [block for block in blocks if re.search(r"^(controller|recording): .*\n", block, re.MULTILINE)]


def write_drive(path: Path) -> None:
    """Write a recording of one command to drive."""
    with path.open("wb") as stream:
        writer = Writer(stream)
        writer.start()
        channel = writer.register_channel("/cmd_vel", "json", 0)
        writer.add_message(channel, log_time=0, data=b'{"linear": {"x": 1}, "angular": {"z": 0}}', publish_time=0)
        writer.finish()


@pytest.mark.parametrize("text", documented())
def test_scenarios_in_the_documentation_can_be_used(tmp_path: Path, text: str) -> None:
    for name in re.findall(r"(?:controller|file): ([\w/.]+)", text):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
        if name.endswith(".mcap"):
            write_drive(tmp_path / name)
    path = tmp_path / "dock.scenario.yaml"
    path.write_text(text)
    assert examine(path)[1] == []
    validator().validate(yaml.safe_load(text))


def test_the_guide_shows_the_example_as_it_is() -> None:
    assert (REPOSITORY / "example_tests" / "dock.scenario.yaml").read_text("utf-8") in documented()


def test_the_schema_accepts_all_that_a_file_may_say() -> None:
    validator().validate(yaml.safe_load(FULL))


@pytest.mark.parametrize(
    "text",
    [
        "seeds: 3\n",
        HEAD + "zzz: 1\n",
        HEAD + "recording: a.csv\n",
        "recording: {topic: cmd}\n",
        HEAD + "seeds: 0\n",
        HEAD + "seeds: []\n",
        HEAD + "variance: none\n",
        HEAD + "name: a b\n",
        HEAD + "tags: [a-b]\n",
        HEAD + "limits: {network: guest}\n",
        HEAD + "parameters: {x: {}}\n",
        HEAD + "parameters: {x: {value: 1, grid: [1]}}\n",
        HEAD + "parameters: {1x: {value: 1}}\n",
        HEAD + "parameters: {x: {uniform: [1, 2, 3]}}\n",
        HEAD + "expect: {metrics: {d: {}}}\n",
        HEAD + "expect: {metrics: {d: {less: 1}}}\n",
        HEAD + "pass_rate: {confidence: 0.9}\n",
        HEAD + "pass_rate: {at_least: 0.9, by: luck}\n",
    ],
)
def test_the_schema_refuses_what_the_reader_does(text: str) -> None:
    assert not validator().is_valid(yaml.safe_load(text))


def test_check_says_what_each_file_would_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a", HEAD + "world: cartpole\nseeds: 8\nrepeat: 2\nparameters: {pole_m: {grid: [1, 2]}}\n")
    write(
        tmp_path / "b", HEAD + "seeds: 20\npass_rate: {at_least: 0.9}\nexpect: {steps: {above: 3}}\n", "x.scenario.yaml"
    )
    write(tmp_path / ".hidden", "nonsense")
    (tmp_path / "folder.scenario.yaml").mkdir()
    assert main(["scenario", "check", str(tmp_path), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["scenarios"]
    assert first | {"file": ""} == {
        "file": "", "test": "dock", "world": "cartpole", "groups": 2, "seeds": 8, "rollouts": 32,
        "parameters": "pole_m grid", "expects": "-",
    }  # fmt: skip
    assert (second["world"], second["expects"]) == ("of the session", "steps, pass rate 0.9")
    assert main(["scenario", "check", str(tmp_path / "b"), "--world", "warehouse"]) == 0
    assert "x     warehouse" in capsys.readouterr().out


def test_check_reports_the_mistakes_of_all_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a", HEAD + "seeds: 0:4\nzzz: 1\n")
    write(tmp_path / "b", HEAD + "\nworld: cartpoel\n")
    write(tmp_path / "c", HEAD + "world: base\n")
    good = write(tmp_path / "d", HEAD + "world: ./here\n")
    (tmp_path / "d" / "here").mkdir()
    (tmp_path / "d" / "here" / "template.yaml").write_text('name: here\nworld: {factory: "world:make"}\n')
    (tmp_path / "d" / "here" / "world.py").write_text("def make(): ...\n")
    assert main(["scenario", "check", str(tmp_path)]) == 1
    out, errors = capsys.readouterr()
    assert str(good) in out
    for words in (
        f"{tmp_path}/a/dock.scenario.yaml:2: ", f"{tmp_path}/a/dock.scenario.yaml:3: unknown key 'zzz'",
        f"{tmp_path}/b/dock.scenario.yaml:3: world: ", 'did you mean "cartpole"?',
        f"{tmp_path}/c/dock.scenario.yaml:2: the template 'base' has no world",
        "3 of 4 scenario files cannot be used as written",
    ):  # fmt: skip
        assert words in errors, errors
    assert main(["scenario", "check", str(tmp_path), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["mistakes"]) == 4


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_check_of_nothing_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["scenario", "check", str(tmp_path / name)]) == 1
    assert str(tmp_path / name) in capsys.readouterr().err
