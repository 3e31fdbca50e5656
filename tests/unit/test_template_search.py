"""Finding templates by name: the order of the folders, what is listed, and names that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from microsim_vm.errors import TemplateError, TemplateNotFoundError
from microsim_vm.templates import (
    find_template,
    list_templates,
    load_template,
    search_path,
    shipped_templates_dir,
)
from templating import write

SHIPPED = sorted(path.parent.name for path in shipped_templates_dir().glob("*/template.yaml"))


def test_explicit_folders_come_first_then_the_projects_then_the_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    search = search_path([Path("mine"), tmp_path / "mine", tmp_path / "yours"], tmp_path)
    assert search == [tmp_path / "mine", tmp_path / "yours", tmp_path / "templates", shipped_templates_dir()]


def test_the_first_match_wins(tmp_path: Path):
    for place in ("one", "two"):
        write(tmp_path / place / "arm", f"env: {{PLACE: {place}}}\n")
    write(tmp_path / "two/leg", "")
    search = [tmp_path / "one", tmp_path / "two"]
    assert find_template("arm", search).env == {"PLACE": "one"}
    assert [(found.name, found.folder) for found in list_templates(search)] == [
        ("arm", tmp_path / "one/arm"),
        ("leg", tmp_path / "two/leg"),
    ]


def test_a_name_that_is_not_there_lists_those_that_are(tmp_path: Path):
    write(tmp_path / "a/warehouse", "")
    write(tmp_path / "b/arm", "")
    (tmp_path / "a/notes").mkdir()
    search = [tmp_path / "a", tmp_path / "b", tmp_path / "missing"]
    with pytest.raises(TemplateNotFoundError) as caught:
        find_template("warehose", search)
    message = str(caught.value)
    assert "no template 'warehose'" in message
    assert 'did you mean "warehouse"?' in message
    assert f"warehouse: {tmp_path}/a/warehouse" in message
    assert f"arm: {tmp_path}/b/arm" in message
    assert f"searched {tmp_path}/missing: no such folder" in message
    assert "notes" not in message


def test_a_search_folder_that_is_a_template_itself_is_pointed_out(tmp_path: Path):
    folder = write(tmp_path / "arm", "").parent
    with pytest.raises(TemplateNotFoundError, match="is a template itself: search the folder above it"):
        find_template("arm", [folder])


@pytest.mark.parametrize("name", ["", "..", ".", "Arm", "a b", "../x", "/nowhere", "arm\n"])
def test_odd_names_are_not_found_rather_than_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    write(tmp_path / "t/arm", "")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(TemplateNotFoundError):
        find_template(name, [tmp_path / "t"])


def test_a_path_is_loaded_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write(tmp_path / "arm", "").parent
    monkeypatch.chdir(tmp_path)
    for spelling in ("./arm", str(folder), folder, Path("arm"), "arm/template.yaml"):
        assert find_template(spelling, []).path == folder / "template.yaml"


def test_a_broken_template_elsewhere_does_no_harm(tmp_path: Path):
    write(tmp_path / "broken", "machine: [\n")
    write(tmp_path / "good", "")
    assert find_template("good", [tmp_path]).name == "good"
    assert [found.name for found in list_templates([tmp_path])] == ["broken", "good"]
    with pytest.raises(TemplateError, match=r"broken/template\.yaml:3: not valid YAML"):
        find_template("broken", [tmp_path])


def test_templates_are_shipped():
    assert {"cartpole", "pendulum", "warehouse"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_each_shipped_template_loads(name: str, tmp_path: Path):
    template = find_template(name, search_path([], tmp_path))
    assert template.name == name
    assert template.description
    assert template.canonical() == load_template(shipped_templates_dir() / name).canonical()
    assert all(path.is_file() for _, path, _ in template.input_files())
