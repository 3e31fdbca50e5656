"""The results file: written whole, read back as it was, and as its schema says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest
from results_samples import baseline_of, group_of, rollout_of, run_of

from pytest_microsim.errors import ResultsError
from pytest_microsim.results.file import encoded, read, write
from pytest_microsim.results.schema import schema

ROOT = Path(__file__).resolve().parents[2]
RUN = run_of(
    group_of(
        rollout_of(1),
        rollout_of(2**128 - 1, "failed", failure="it\n\nfailed", metrics={"level": None, "score": 0.1}),
        baseline=baseline_of("different", "worse"),
    )
)


@pytest.fixture(scope="module")
def generator(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("generate_schemas")


@pytest.mark.parametrize("name", ["results", "scenario"])
def test_the_published_schemas_are_up_to_date(generator: ModuleType, name: str) -> None:
    written = (ROOT / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8")
    assert written == generator.text_of(name), "run scripts/generate_schemas.py"
    jsonschema.Draft202012Validator.check_schema(json.loads(written))


def test_every_field_is_explained() -> None:
    obvious = {"EpisodeResult", "WorldResult", "Host", "SeedDifference", "GateResult", "Rate", "AskedRate"}
    unexplained = [
        f"{name}.{field}"
        for name, part in schema()["$defs"].items()
        for field, described in part["properties"].items()
        if name not in obvious and "description" not in described
    ]
    assert unexplained == []


def test_it_is_read_back_as_it_was_and_is_as_its_schema_says(tmp_path: Path) -> None:
    path = tmp_path / "new" / "r.json"
    write(path, RUN)
    assert read(path) == RUN
    document = json.loads(path.read_text())
    jsonschema.validate(document, schema())
    assert document["groups"][0]["rollouts"][1]["seed"] == str(2**128 - 1)
    assert os.listdir(path.parent) == ["r.json"]
    document["groups"][0]["rolouts"] = []
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema())


def test_paths_are_relative_to_the_file_where_they_lie_beside_it(tmp_path: Path) -> None:
    inside, outside = tmp_path / "out" / "a" / "x.mcap", tmp_path / "outside.pcap"
    files = {"trajectory": str(inside), "pcap": str(outside)}
    run = run_of(group_of(rollout_of(1, files=files)))
    path = tmp_path / "out" / "r.json"
    write(path, run)
    (written,) = json.loads(path.read_text())["groups"][0]["rollouts"]
    assert written["files"] == {"trajectory": "a/x.mcap", "pcap": str(outside)}
    assert read(path) == run
    assert run.groups[0].rollouts[0].files == files


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    write(path, RUN)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ResultsError, match=r"cannot be written to .*: No space left on device"):
        write(path, run_of())
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["r.json"]


def test_what_json_cannot_have_becomes_text() -> None:
    run = run_of(group_of(rollout_of(1, nodeid="a\udcff.py::test", parameters={"big": 2**70, "list": ["\ud800"]})))
    (rollout,) = json.loads(encoded(run))["groups"][0]["rollouts"]
    assert rollout["nodeid"] == "a\\udcff.py::test"
    assert rollout["parameters"] == {"big": str(2**70), "list": ["\\ud800"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no results file"),
        ("[]", "is no results file"),
        ('{"a": 1}', "is no results file"),
        ('{"schema_version": 2}', "is a results file of version 2, and this pytest-microsim reads 1"),
        ('{"schema_version": 1, "version": 7}', r"is no results file: .*version"),
        ("\udcff", "is no results file"),
    ],
)
def test_what_is_none_is_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ResultsError, match=message):
        read(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"cannot be read from .*: No such file"):
        read(tmp_path / "none.json")
