"""Values that YAML would guess wrong: text fields refuse them, number fields take nothing but numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from microsim_vm.templates import load_template
from microsim_vm.templates.yaml import Scalar
from templating import refused, write

AMBIGUOUS = [
    ("no", "a boolean"),
    ("on", "a boolean"),
    ("yes", "a boolean"),
    ("OFF", "a boolean"),
    ("true", "a boolean"),
    ("3.10", "a number"),
    ("12", "a number"),
    ("1e3", "a number"),
    ("0x1F", "a number"),
    ("1_000", "a number"),
    (".inf", "a number"),
    ("52:54:00:12:34:56", "a base-60 number"),
    ("12:30:45", "a base-60 number"),
    ("08:00:27:12:34:99", "a base-60 number"),
    ("0755", "an octal number"),
    ("0o17", "an octal number"),
    ("2026-01-02", "a date"),
    ("2026-01-02T03:04:05Z", "a date"),
    ("null", "null"),
    ("~", "null"),
    ("=", "a merge key"),
]


@pytest.mark.parametrize(("written", "reading"), AMBIGUOUS)
def test_a_text_field_asks_for_quotes(tmp_path: Path, written: str, reading: str):
    path = write(tmp_path / "t", f"env:\n  VALUE: {written}\n")
    refused(path, 3, repr(written), reading, "env.VALUE", f'quote it: VALUE: "{written}"')


@pytest.mark.parametrize(("written", "reading"), AMBIGUOUS)
def test_quoted_it_is_kept_to_the_letter(tmp_path: Path, written: str, reading: str):
    path = write(tmp_path / "t", f'env: {{VALUE: "{written}"}}\n')
    template = load_template(path)
    assert template.env == {"VALUE": written}
    assert json.loads(template.canonical())["env"] == {"VALUE": written}


@pytest.mark.parametrize("written", ["3.10.2", "52:54:00:ab:34:56", "none", "y", "x86_64", "/bin/no", "1.2.3.4", "a b"])
def test_what_can_only_be_text_needs_no_quotes(tmp_path: Path, written: str):
    assert load_template(write(tmp_path / "t", f"env: {{VALUE: {written}}}\n")).env == {"VALUE": written}


def test_ambiguous_text_in_a_list_and_as_a_name_and_as_a_key(tmp_path: Path):
    refused(write(tmp_path / "a", "base:\n  packages:\n    - python3\n    - on\n"), 5, 'quote it: - "on"')
    refused(write(tmp_path / "on", "name: on\n"), 1, "a boolean", 'quote it: name: "on"')
    assert load_template(write(tmp_path / "on", 'name: "on"\n')).name == "on"
    refused(write(tmp_path / "b", "env:\n  on: a\n"), 3, "key 'on'", 'quote it: "on":')
    refused(write(tmp_path / "c", "network: no\n"), 2, "a boolean", 'network: "no"')


def test_an_empty_value_is_refused(tmp_path: Path):
    refused(write(tmp_path / "t", "description:\nenv: {}\n"), 2, "empty value", "null", 'description: ""')
    refused(write(tmp_path / "u", "machine: {vcpus: }\n"), 2, "machine.vcpus", "not nothing")
    refused(write(tmp_path / "v", "machine:\n"), 2, "machine must be a mapping, not nothing")


def test_a_file_mode_is_quoted_octal_text(tmp_path: Path):
    (tmp_path / "data").write_text("x")
    entry = "files:\n  - source: ../data\n    target: /opt/data\n    mode: {}\n"
    refused(write(tmp_path / "a", entry.format("0755")), 5, "an octal number", 'mode: "0755"')
    refused(write(tmp_path / "b", entry.format('"755"')), 5, "files[0].mode", '"0755"')
    refused(write(tmp_path / "c", entry.format('"4755"')), 5, "files[0].mode", '"0755"')
    template = load_template(write(tmp_path / "d", entry.format('"0750"')))
    assert template.files[0].mode == "0750"
    assert [file.mode for file in template.input_files() if file.label == "files/opt/data"] == [0o750]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ('"2"', ["remove the quotes: vcpus: 2"]),
        ("two", ["not two"]),
        ("true", ["not true"]),
        ("yes", ["not yes"]),
        ("1.0", ["not 1.0"]),
        ("0x2", ["decimal"]),
        ("010", ["decimal"]),
        ("1:30", ["decimal"]),
        ("0", ["1 to 64"]),
        ("65", ["1 to 64"]),
        ("-1", ["1 to 64"]),
        ("9" * 5000, ["1 to 64"]),
        ("[1]", ["a list"]),
        ("{a: b}", ["a mapping"]),
    ],
)
def test_a_whole_number_field_takes_whole_numbers_in_range(tmp_path: Path, written: str, words: list[str]):
    refused(write(tmp_path / "t", f"machine:\n  vcpus: {written}\n"), 3, "machine.vcpus must be", *words)


@pytest.mark.parametrize("written", ["0", "-1", ".inf", ".nan", "1e999", "true", '"60"', "1:30", "1_0", "soon"])
def test_a_time_out_takes_positive_finite_numbers(tmp_path: Path, written: str):
    refused(write(tmp_path / "t", f"warmup_timeout_s: {written}\n"), 2, "warmup_timeout_s must be seconds")


def test_numbers_arrive_as_their_own_type(tmp_path: Path):
    template = load_template(
        write(tmp_path / "t", "warmup_timeout_s: 60\nmachine: {vcpus: 2}\ncontroller: {wall_time_s: 1.5e1}\n")
    )
    assert (template.warmup_timeout_s, type(template.warmup_timeout_s)) == (60.0, float)
    assert (template.machine.vcpus, type(template.machine.vcpus)) == (2, int)
    assert template.controller.wall_time_s == 15.0


def test_keyword_arguments_have_the_types_of_json(tmp_path: Path):
    text = """\
        world:
          factory: world:make
          kwargs: {a: 1, b: 3.10, c: true, d: null, e: text, f: "no", g: [1, {h: -2e3}], i: "0755"}
        """
    template = load_template(write(tmp_path / "t", text))
    assert template.world is not None
    kwargs = {
        "a": 1,
        "b": 3.1,
        "c": True,
        "d": None,
        "e": "text",
        "f": "no",
        "g": [1, {"h": -2000.0}],
        "i": "0755",
    }
    assert template.world.kwargs == kwargs
    assert template.world.kwargs["a"] is not True
    assert json.loads(template.canonical())["world"]["kwargs"] == kwargs


@pytest.mark.parametrize(
    "written",
    ["no", "on", "True", "0755", "1:30", "0x1f", "+5", ".5", "1_0", "~", "", ".nan", "1e999", "2026-01-02"],
)
def test_keyword_arguments_refuse_what_readers_disagree_about(tmp_path: Path, written: str):
    path = write(tmp_path / "t", f"world:\n  factory: world:make\n  kwargs:\n    a: {written}\n")
    refused(path, 5, "world.kwargs.a", "ambiguous", f"quote the text: {json.dumps(written)}")


def test_keyword_arguments_refuse_integers_of_more_than_64_bits(tmp_path: Path):
    for digits in ("9" * 19, "9" * 5000):
        path = write(tmp_path / "t", f"world:\n  factory: world:make\n  kwargs: {{a: {digits}}}\n")
        refused(path, 4, "world.kwargs.a")


def test_keyword_arguments_have_names_that_python_takes(tmp_path: Path):
    path = write(tmp_path / "t", "world:\n  factory: world:make\n  kwargs: {a-b: 1}\n")
    refused(path, 4, "world.kwargs", "Python identifier")


def test_quoting_escapes_what_needs_it():
    assert Scalar('a"b', True, Path("f"), 1).quoted == '"a\\"b"'
