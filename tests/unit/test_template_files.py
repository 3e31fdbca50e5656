"""The files that go into the image: which, under which label, and those that are refused."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from microsim_vm.errors import TemplateError
from microsim_vm.templates import load_template
from templating import WORLD, refused, write


def labels(folder: Path) -> list[str]:
    return [label for label, _, _ in load_template(folder).input_files()]


def test_the_folder_is_the_world_without_what_tools_leave_there(tmp_path: Path):
    folder = write(tmp_path / "t", "").parent
    for name in (
        "meshes/shelf.obj", "meshes/.keep", "lib/template.yaml", ".hidden",
        "template.lock", "__pycache__/world.cpython-311.pyc", "lib/__pycache__/a.pyc", "old.pyc", ".git/HEAD",
        ".world.py.swp", "world.py~", ".#world.py", "#world.py#", ".DS_Store", ".idea/x", ".pytest_cache/y",
    ):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / "empty").mkdir()
    assert labels(folder) == [
        "world/.hidden",
        "world/lib/template.yaml",
        "world/meshes/.keep",
        "world/meshes/shelf.obj",
        "world/world.py",
    ]


def test_labels_and_places_in_the_guest(tmp_path: Path):
    folder = write(
        tmp_path / "t",
        """\
        files:
          - {source: ../map.yaml, target: /opt/maps/office.yaml}
          - {source: ../tools, target: /opt/tools}
        """,
    ).parent
    (tmp_path / "map.yaml").write_text("map")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/run").write_text("#!/bin/sh\n")
    (tmp_path / "tools/run").chmod(0o700)
    template = load_template(folder)
    assert [entry.label for entry in template.files] == ["files/opt/maps/office.yaml", "files/opt/tools"]
    assert [(template.target_of(label), path.name, mode) for label, path, mode in template.input_files()] == [
        ("/opt/maps/office.yaml", "map.yaml", 0o644),
        ("/opt/tools/run", "run", 0o755),
        ("/opt/microsim/world/world.py", "world.py", 0o644),
    ]


def test_the_umask_does_not_reach_the_image(tmp_path: Path):
    folder = write(tmp_path / "t", "").parent
    modes = set()
    for mode in (0o600, 0o644, 0o664):
        (folder / "world.py").chmod(mode)
        modes.add(next(load_template(folder).input_files()).mode)
    assert modes == {0o644}


def test_a_link_inside_the_folder_is_the_file_it_leads_to(tmp_path: Path):
    folder = write(tmp_path / "t", "").parent
    (folder / "again.py").symlink_to("world.py")
    files = {label: path.read_text() for label, path, _ in load_template(folder).input_files()}
    assert files == {"world/again.py": WORLD, "world/world.py": WORLD}


def test_a_template_folder_that_is_a_link_works(tmp_path: Path):
    write(tmp_path / "elsewhere/t", "")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/t").symlink_to("../elsewhere/t")
    assert labels(tmp_path / "templates/t") == ["world/world.py"]


@pytest.mark.parametrize(
    ("leads_to", "words"),
    [
        ("../secret", ["leaves its folder", "../secret", "copy the file into the folder"]),
        ("/etc/passwd", ["leaves its folder", "/etc/passwd"]),
        ("nowhere", ["leads nowhere"]),
        ("link", ["leads nowhere"]),
        ("assets", ["leads to a folder", "real folder"]),
        (".", ["leads to a folder"]),
    ],
)
def test_other_links_are_refused(tmp_path: Path, leads_to: str, words: list[str]):
    path = write(tmp_path / "t", "")
    (tmp_path / "secret").write_text("x")
    (path.parent / "assets").mkdir()
    (path.parent / "link").symlink_to(leads_to)
    refused(path, 1, str(path.parent / "link"), *words)


def test_pipes_and_sockets_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "t", "")
    os.mkfifo(path.parent / "pipe")
    refused(path, 1, "not a regular file", "remove it")
    (path.parent / "pipe").unlink()
    monkeypatch.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        refused(path, 1, "not a regular file")


def test_names_that_are_not_printable_are_refused(tmp_path: Path):
    path = write(tmp_path / "t", "")
    (path.parent / "a\nb").write_text("")
    refused(path, 1, "not printable", "rename")
    (path.parent / "a\nb").unlink()
    (Path(os.fsdecode(os.fsencode(path.parent) + b"/\xff"))).write_text("")
    refused(path, 1, "not printable", "rename")


def test_a_folder_of_far_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("microsim_vm.templates.inputs.MAX_FILES", 3)
    path = write(tmp_path / "t", "")
    for name in "abc":
        (path.parent / name).write_text("")
    refused(path, 1, "more than 3 files", "keep only the world")


def test_files_are_read_anew_and_a_file_that_changed_its_kind_is_refused_late(tmp_path: Path):
    template = load_template(write(tmp_path / "t", ""))
    (tmp_path / "t/more.py").write_text("")
    assert [label for label, _, _ in template.input_files()] == ["world/more.py", "world/world.py"]
    (tmp_path / "t/link").symlink_to("/etc/passwd")
    with pytest.raises(TemplateError, match="leaves its folder"):
        list(template.input_files())


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{source: ./missing, target: /opt/a}", ["missing", "No such file", "relative to the file"]),
        ("{source: /etc/passwd, target: /opt/a}", ["'/etc/passwd'", "relative to this file"]),
        ('{source: "~/a", target: /opt/a}', ["one machine only", "relative to this file"]),
        ('{source: "", target: /opt/a}', ["relative to this file"]),
        ("{source: ./world.py, target: opt/a}", ["'opt/a'", "absolute path"]),
        ("{source: ./world.py, target: /}", ["absolute path"]),
        ('{source: ./world.py, target: "/opt/a\\nb"}', ["absolute path"]),
        ("{source: ./world.py, target: /opt/../etc/a}", ["shortest form", 'write "/etc/a"']),
        ("{source: ./world.py, target: //opt/a}", ["shortest form", 'write "/opt/a"']),
        ("{source: ./world.py, target: /opt/a/}", ["shortest form", 'write "/opt/a"']),
        ("{source: ./world.py, target: /opt/microsim/guest/x}", ["the guest uses itself", "/opt/data"]),
        ("{source: ./world.py, target: /opt/venv}", ["the guest uses itself"]),
        ("{source: ./world.py, target: /run/x}", ["the guest uses itself"]),
        ("{source: ./world.py, target: /bin/tool}", ["a link in Debian", 'write "/usr/bin/tool"']),
        ("{source: ./pipe, target: /opt/a}", ["not a regular file"]),
        ('{source: ./folder, target: /opt/a, mode: "0755"}', ["for a single file", "leave mode out"]),
        ("{source: ./links, target: /opt/a}", ["leaves its folder"]),
    ],
)
def test_an_entry_that_cannot_be_copied_is_refused_with_its_line(tmp_path: Path, entry: str, words: list[str]):
    path = write(tmp_path / "t", f"files:\n  - {{source: ./world.py, target: /opt/first}}\n  - {entry}\n")
    here = path.parent
    (here / "folder").mkdir()
    if "pipe" in entry:
        os.mkfifo(here / "pipe")
    if "links" in entry:
        (here / "links").mkdir()
        (here / "links/out").symlink_to("../world.py")
    refused(path, 4, *words)


def test_two_entries_cannot_write_one_place(tmp_path: Path):
    entries = "files:\n  - {{source: ./world.py, target: /opt/a}}\n  - {{source: ./world.py, target: {}}}\n"
    refused(write(tmp_path / "t", entries.format("/opt/a")), 3, "/opt/a", "two entries", "another target")
    refused(write(tmp_path / "t", entries.format("/opt/a/b")), 3, "/opt/a", "a file and a folder", "rename")
