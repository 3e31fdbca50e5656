"""``extends``: how parent and child combine, where paths lead, and chains that lead nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from microsim_vm.errors import TemplateError
from microsim_vm.templates import load_template
from templating import refused, write


def test_mappings_merge_and_lists_replace(tmp_path: Path):
    write(
        tmp_path / "base",
        """\
        description: the parent
        base: {packages: [python3, libgl1]}
        python: {requirements: ["numpy==2.4.6"]}
        env: {A: parent, B: parent}
        machine: {vcpus: 2, memory_mib: 1024}
        world: {factory: world:make, kwargs: {a: 1, deep: {x: 1, y: 2}}}
        """,
    )
    path = write(
        tmp_path / "child",
        """\
        extends: ../base
        python: {requirements: ["mujoco==3.3.0"]}
        env: {B: child, C: child}
        machine: {memory_mib: 2048}
        world: {kwargs: {b: 2, deep: {y: 3}}}
        """,
    )
    template = load_template(path)
    assert template.name == "child"
    assert template.description == ""
    assert template.base.packages == ("python3", "libgl1")
    assert template.python.requirements == ("mujoco==3.3.0",)
    assert template.env == {"A": "parent", "B": "child", "C": "child"}
    assert (template.machine.vcpus, template.machine.memory_mib) == (2, 2048)
    assert template.world is not None
    assert template.world.factory == "world:make"
    assert template.world.kwargs == {"a": 1, "b": 2, "deep": {"x": 1, "y": 3}}
    assert template.world_folders == (tmp_path / "base", tmp_path / "child")


def test_a_world_of_the_other_kind_replaces_the_parents(tmp_path: Path):
    write(tmp_path / "base", "world: {factory: world:make, kwargs: {a: 1}}\n")
    path = write(
        tmp_path / "child",
        'extends: ../base\nworld: {gymnasium: Pendulum-v1}\npython: {requirements: ["gymnasium==1.2.0"]}\n',
    )
    world = load_template(path).world
    assert world is not None
    assert (world.factory, world.gymnasium, world.kwargs) == (None, "Pendulum-v1", {})


def test_world_folders_are_layered_and_the_childs_files_win(tmp_path: Path):
    parent = write(tmp_path / "base", "world: {factory: world:make}\n").parent
    (parent / "robot.xml").write_text("parent")
    (parent / "dock.xml").write_text("parent")
    child = write(tmp_path / "child", "extends: ../base\n", world=False).parent
    (child / "robot.xml").write_text("child")
    files = list(load_template(child).input_files())
    assert [file.label for file in files] == ["world/dock.xml", "world/robot.xml", "world/world.py"]
    assert [file.path.parent for file in files] == [parent, child, parent]


def test_each_path_is_relative_to_the_file_that_wrote_it(tmp_path: Path):
    base = write(tmp_path / "shared/base", "files: [{source: ./disk, target: /opt/disk}]\n").parent
    (base / "disk").write_text("the parent's")
    path = write(tmp_path / "templates/child", "extends: ../../shared/base\n")
    (path.parent / "disk").write_text("the child's")
    found = {file.label: file.path.read_text() for file in load_template(path).input_files()}
    assert found["files/opt/disk"] == "the parent's"


def test_a_mistake_in_the_parent_names_the_parents_file_and_who_extends_it(tmp_path: Path):
    base = write(tmp_path / "base", "env: {A: b}\nmachine: {vcpu: 1}\n")
    path = write(tmp_path / "child", "extends: ../base\nmachine: {vcpus: 2}\n")
    refused(path, 3, "unknown key 'vcpu'", f"extended by: {path} -> {base}", file=base)


def test_a_list_that_the_child_replaces_is_checked_all_the_same(tmp_path: Path):
    base = write(tmp_path / "base", "python: {requirements: [numpy]}\n")
    path = write(tmp_path / "child", 'extends: ../base\npython: {requirements: ["numpy==2.4.6"]}\n')
    refused(path, 2, "not pinned", file=base)


def test_a_file_that_is_no_template_lends_its_keys_but_not_its_folder(tmp_path: Path):
    (tmp_path / "limits.yaml").write_text("controller: {memory_mib: 64}\n")
    path = write(tmp_path / "child", "extends: ../limits.yaml\n")
    template = load_template(path)
    assert template.controller.memory_mib == 64
    assert template.world_folders == (path.parent,)


def test_a_circle_shows_the_chain(tmp_path: Path):
    a = write(tmp_path / "a", "extends: ../b\n")
    b = write(tmp_path / "b", "extends: ../c\n")
    c = write(tmp_path / "c", "env: {}\nextends: ../a\n")
    refused(a, 3, "circle", f"{a} -> {b} -> {c} -> {a}", "remove one", file=c)


def test_a_template_cannot_extend_itself(tmp_path: Path):
    path = write(tmp_path / "a", "extends: ../a\n")
    refused(path, 2, "circle", f"{path} -> {path}")


def test_a_circle_through_a_link_is_found(tmp_path: Path):
    path = write(tmp_path / "a", "extends: ../b\n")
    (tmp_path / "b").symlink_to("a")
    refused(path, 2, "circle")


def test_a_missing_parent_shows_the_chain(tmp_path: Path):
    path = write(tmp_path / "a", "extends: ../b\n")
    b = write(tmp_path / "b", "extends: ../nowhere\n")
    missing = tmp_path / "nowhere"
    refused(path, 2, "no file", str(missing), f"{path} -> {b} -> {missing}", "relative to the file", file=b)


def test_a_missing_parent_by_name_lists_those_there_are(tmp_path: Path):
    path = write(tmp_path / "child", "extends: bass\n")
    write(tmp_path / "base", "")
    refused(path, 2, "no template 'bass'", 'did you mean "base"?', str(tmp_path / "base"), f"{path} -> bass")


def test_a_template_may_extend_the_one_that_it_hides(tmp_path: Path):
    shipped = write(tmp_path / "shipped/arm", "env: {A: shipped}\n").parent
    own = write(tmp_path / "own/arm", "extends: arm\nenv: {B: own}\n").parent
    template = load_template(own, [tmp_path / "own", tmp_path / "shipped"])
    assert template.env == {"A": "shipped", "B": "own"}
    assert template.world_folders == (shipped, own)


@pytest.mark.parametrize("written", ["/srv/base", "~/base", "Base", "a b"])
def test_extends_takes_names_and_relative_paths(tmp_path: Path, written: str):
    path = write(tmp_path / "child", f'extends: "{written}"\n')
    error = refused(path, 2, "extends")
    assert "relative to this file" in error.hint or "write" in error.hint


def _same_everywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> set[tuple[bytes, tuple[tuple[str, bytes, int], ...]]]:
    """Load one template from several working directories, by several spellings of its path."""
    seen = set()
    for directory in (folder.parent.parent, folder, folder.parent, Path("/")):
        monkeypatch.chdir(directory)
        for path in (folder, Path(os.path.relpath(folder)), Path(os.path.relpath(folder)) / "template.yaml"):
            template = load_template(path)
            files = tuple((label, path.read_bytes(), mode) for label, path, mode in template.input_files())
            seen.add((template.canonical(), files))
    return seen


def test_working_directory_and_place_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    results = set()
    for place in ("plain", "with space and accént"):
        root = tmp_path / place / "templates"
        base = write(root / "base", "files: [{source: ./disk, target: /opt/disk}]\nworld: {factory: world:make}\n")
        (base.parent / "disk").mkdir()
        (base.parent / "disk/a").write_text("a")
        (base.parent / "disk/ä b").write_text("b")
        child = write(root / "child", "extends: ../base\nenv: {A: b}\n", world=False)
        results |= _same_everywhere(child.parent, monkeypatch)
    assert len(results) == 1
    canonical, files = results.pop()
    assert str(tmp_path).encode() not in canonical
    assert [label for label, _, _ in files] == [
        "files/opt/disk/a",
        "files/opt/disk/ä b",
        "world/disk/a",
        "world/disk/ä b",
        "world/world.py",
    ]


def test_canonical_has_what_the_image_depends_on_and_nothing_else(tmp_path: Path):
    def canonical(text: str) -> bytes:
        return load_template(write(tmp_path / "t", text)).canonical()

    (tmp_path / "a").write_text("x")
    plain = canonical("")
    for text in (
        "description: words\n",
        "machine: {vcpus: 2, memory_mib: 1024}\n",
        "warmup_timeout_s: 5\n",
        "controller: {memory_mib: 64}\n",
        'network: egress\negress: ["example.org:443"]\n',
        "publish: [80]\n",
        "kernel: {package: linux-image-cloud-amd64}\n",
    ):
        assert canonical(text) == plain, text
    changed = {
        canonical(text)
        for text in (
            "env: {A: b}\n",
            "env: {A: c}\n",
            "network: none\n",
            "base: {packages: [libgl1]}\n",
            'python: {requirements: ["numpy==2.4.6"]}\n',
            "kernel: {package: linux-image-amd64}\n",
            "world: {factory: world:make}\n",
            "world: {factory: world:make, kwargs: {a: 1}}\n",
            "world: {factory: world:make, kwargs: {a: 1.0}}\n",
            "processes: [{name: a, command: b, readiness: c}]\n",
            "files: [{source: ../a, target: /opt/a}]\n",
            'files: [{source: ../a, target: /opt/a, mode: "0755"}]\n',
        )
    }
    assert len(changed) == 12
    assert plain not in changed


def test_canonical_does_not_depend_on_the_order_of_keys(tmp_path: Path):
    one = load_template(write(tmp_path / "t", "env: {A: a, B: b}\nbase: {suite: bookworm}\n")).canonical()
    two = load_template(write(tmp_path / "t", "base: {suite: bookworm}\nenv: {B: b, A: a}\n")).canonical()
    assert one == two


def test_only_a_template_yaml_can_be_loaded(tmp_path: Path):
    (tmp_path / "other.yaml").write_text("name: other\n")
    with pytest.raises(TemplateError, match=r"called template\.yaml"):
        load_template(tmp_path / "other.yaml")
