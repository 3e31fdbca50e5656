"""YAML that is refused before the schema is asked: syntax, and parts of the language that are left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from microsim_vm.templates.yaml import MAX_BYTES, Scalar, read
from templating import refused, write


def raw(tmp_path: Path, data: bytes | str) -> Path:
    path = tmp_path / "t" / "template.yaml"
    path.parent.mkdir()
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def test_a_duplicate_key_is_refused_with_both_lines(tmp_path: Path):
    path = write(tmp_path / "t", "machine:\n  memory_mib: 256\n  vcpus: 1\n  memory_mib: 512\n")
    refused(path, 5, "'memory_mib'", "twice", "lines 3 and 5", "keep one")


def test_a_duplicate_is_found_whatever_its_quotes_and_at_the_top(tmp_path: Path):
    path = write(tmp_path / "t", 'env: {}\n"env": {A: b}\n')
    refused(path, 3, "'env'", "lines 2 and 3")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("env: &a {A: b}\n", 2, ["anchor &a", "remove"]),
        ("description: *a\n", 2, ["alias *a", "write the value out"]),
        ("description: !!str 5\n", 2, ["tag", "remove it"]),
        ("description: !!python/object/apply:os.system [echo]\n", 2, ["tag", "remove it"]),
        ("description: ! 5\n", 2, ["tag"]),
        ("env:\n  <<: {A: b}\n", 3, ["'<<'", "merge key"]),
        ("---\nname: u\n", 2, ["second document", "one document per file"]),
        ("? [a, b]\n: c\n", 2, ["key that is not text"]),
        ("env:\n\tA: b\n", 3, ["a tab", "use spaces"]),
        ("env:\tb\n", 2, ["a tab", "use spaces"]),
        ("env: {A: b\n", 3, ["not valid YAML"]),
        ("description: 'a\n\nmachine: {}\n", 5, ["not valid YAML", "end of stream"]),
        ("description: a: b\n", 2, ["not valid YAML", "quote"]),
        ("description: @home\n", 2, ["not valid YAML", "quote"]),
        ("base:\n  packages: [python3]\n suite: bookworm\n", 4, ["not valid YAML"]),
        ('description: "\\UFFFFFFFF"\n', 2, ["not valid YAML"]),
        ('description: "a\\0b"\n', 2, ["null character", "escape"]),
        ('description: "\\ud800"\n', 2, ["surrogate", "escape"]),
        ("description: a\x07b\n", 2, ["U+0007", "escape"]),
    ],
)
def test_other_yaml_is_refused_with_its_line(tmp_path: Path, text: str, line: int, words: list[str]):
    refused(write(tmp_path / "t", text), line, *words)


def test_a_directive_is_refused(tmp_path: Path):
    refused(raw(tmp_path, "%YAML 1.1\n---\nname: t\n"), 1, "directive", "%")


def test_a_bomb_of_aliases_is_refused_at_its_first_anchor(tmp_path: Path):
    lines = ["world:", "  factory: world:make", "  kwargs:", "    a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"    {b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    refused(write(tmp_path / "t", "\n".join(lines)), 5, "anchor &a")


def test_deep_nesting_is_refused(tmp_path: Path):
    refused(write(tmp_path / "t", "files: " + "[" * 5000), 2, "nesting deeper than 32")


@pytest.mark.parametrize(
    ("data", "line", "word"),
    [
        (b"", 1, "empty"),
        (b"# only a comment\n", 1, "empty"),
        (b"- a\n- b\n", 1, "not a mapping"),
        (b"\n\njust text\n", 3, "not a mapping"),
        (b"name: t\ndescription: \xff\n", 2, "not valid UTF-8"),
        ("name: t\n".encode("utf-16"), 1, "not valid UTF-8"),
        (b"name: t\n#" + b"x" * MAX_BYTES, 1, "larger than 1 MiB"),
    ],
)
def test_a_file_that_cannot_be_a_template(tmp_path: Path, data: bytes, line: int, word: str):
    refused(raw(tmp_path, data), line, word)


def test_a_pipe_in_place_of_the_file_does_not_hang(tmp_path: Path):
    (tmp_path / "t").mkdir()
    os.mkfifo(tmp_path / "t/template.yaml")
    refused(tmp_path / "t/template.yaml", 1, "not a regular file")


def test_a_missing_file_is_refused(tmp_path: Path):
    refused(tmp_path / "template.yaml", 1, "No such file")


def test_text_is_kept_as_written_and_lines_are_known(tmp_path: Path):
    path = raw(tmp_path, "\ufeffa: 3.10\nb: '3.10'\n\nc: |\n  x\n")
    node = read(path)
    assert node.values["a"] == Scalar("3.10", True, path, 1)
    assert node.values["b"] == Scalar("3.10", False, path, 2)
    assert isinstance(node.values["c"], Scalar)
    assert (node.values["c"].text, node.values["c"].line) == ("x\n", 4)
