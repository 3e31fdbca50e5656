"""Whatever is written in a template, it is loaded or refused with a line: no other error, no hang, no file touched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from microsim_vm.errors import TemplateError, TemplateNotFoundError
from microsim_vm.templates import find_template, load_template, search_path
from microsim_vm.templates.spec import Document, Template

REPOSITORY = Path(__file__).parents[3]
SHIPPED = sorted(path.read_text() for path in (REPOSITORY / "templates").glob("*/template.yaml"))
KEYS = [*Document.__struct_fields__, "suite", "packages", "requirements", "without", "vcpus", "memory_mib", "factory",
        "gymnasium", "kwargs", "command", "readiness", "template", "source", "target", "mode", "wall_time_s",
        "nmae"]  # fmt: skip
PIECES = [
    *(
        "{",
        "}",
        "[",
        "]",
        ": ",
        "- ",
        "\n",
        "\n  ",
        "\t",
        "#",
        "&a",
        "*a",
        "!!python/name:os",
        "|",
        ">",
        "'",
        '"',
        "%",
        "---",
    ),
    *("~", "null", "no", "0o17", "1e999", ".inf", "-1", "../..", "/etc/passwd", "\x00", "\u2028", "\ud7ff", "\ufeff"),
    *(f"{key}: " for key in KEYS),
]


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


SCALARS = (
    st.text(max_size=12)
    | st.integers()
    | st.floats()
    | st.booleans()
    | st.none()
    | st.sampled_from(
        ["world:make", "gym:CartPole-v1", "numpy==2.0", "../x", "./t", "island", "egress", "a:1", "10.0.0.0/8:80"]
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fuzz") / "t"
    made.mkdir()
    (made / "world.py").write_text("def make():\n    return object()\n")
    return made


def check(folder: Path, data: bytes) -> Template | None:
    """Load bytes as a template; return it, or None where they are refused as they should be."""
    path = folder / "template.yaml"
    path.write_bytes(data)
    before = sorted(folder.parent.rglob("*"))
    template, refusal = None, ""
    try:
        template = load_template(path, search_path([folder.parent], REPOSITORY))
        template.canonical()
        list(template.input_files())
    except TemplateNotFoundError:
        return None
    except TemplateError as error:
        template, refusal = None, str(error)
    assert template is not None or re.match(r"/\S+/template\.yaml:\d+: ", refusal), refusal
    assert len(refusal) < 20000
    assert sorted(folder.parent.rglob("*")) == before
    return template


@given(
    st.binary(max_size=120)
    | st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=25).map("".join).map(_encoded)
)
@example(b"a: " + b"[" * 5000)
@example(b"name: t\nextends: t\n")
@example(b"name: t\nextends: ./\n")
@example(b"? " * 3000)
@example(b"\xff\xfe" + "name: t".encode("utf-16-le"))
def test_bytes_are_a_template_or_refused(folder: Path, data: bytes) -> None:
    check(folder, data)


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6))
@example({"world": {"factory": "world:make"}, "base": {"packages": ["python3"] * 2}})
def test_values_are_a_template_or_refused(folder: Path, values: dict[str, Any]) -> None:
    check(
        folder, yaml.safe_dump({"name": "t", "world": {"factory": "world:make"}, **values}, allow_unicode=True).encode()
    )


@given(st.sampled_from(SHIPPED), st.data())
def test_a_shipped_template_with_a_slip_is_a_template_or_refused(folder: Path, text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 8)))
        text = text[:start] + data.draw(st.sampled_from(PIECES) | st.text(max_size=3)) + text[end:]
    check(folder, _encoded(text))


def test_what_the_fuzzers_start_from_is_accepted(folder: Path) -> None:
    for text in SHIPPED:
        name = yaml.safe_load(text)["name"]
        assert find_template(name, search_path([], REPOSITORY)).name == name
    assert check(folder, b'name: t\nworld: {factory: "world:make"}\n') is not None
