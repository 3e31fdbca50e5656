"""Commands of other packages: found by entry point, and no package can break the others' commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from microsim_vm.cli import further
from microsim_vm.cli.common import Parser
from microsim_vm.cli.main import main
from microsim_vm.cli.main import parser as full
from microsim_vm.cli.output import Output
from microsim_vm.errors import MissingToolError

GOOD = """
from microsim_vm.cli.common import command
def add(commands):
    command(commands, "{name}", lambda args, output: 7, "Do something.")
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def point(name: str, module: str) -> EntryPoint:
    return EntryPoint(name, module, further.GROUP)


def added(*points: EntryPoint) -> argparse.ArgumentParser:
    top = Parser(prog="microsim")
    commands: Any = top.add_subparsers(dest="command")
    further.add_each(commands, points)
    return top


def test_a_module_adds_its_command(modules: Path) -> None:
    (modules / "further_good.py").write_text(GOOD.format(name="good"))
    args = added(point("good", "further_good"), point("good", "further_good")).parse_args(["good"])
    assert args.run(args, Output()) == 7


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import microsim_no_such_module", "ModuleNotFoundError: No module named 'microsim_no_such_module'"),
        ("def add(: pass", "SyntaxError"),
        ("", "has no attribute 'add'"),
        ("def add(commands): raise ValueError('wrong')", "ValueError: wrong"),
    ],
    ids=["import", "syntax", "no-add", "raises"],
)
def test_a_broken_one_is_said_when_it_is_run(code: str, why: str, modules: Path) -> None:
    (modules / "further_bad.py").write_text(code)
    (modules / "further_good.py").write_text(GOOD.format(name="good"))
    top = added(point("bad", "further_bad"), point("good", "further_good"))
    assert "not usable" in top.format_help()
    for words in ([], ["a.json", "-o", "out.html"], ["--json"], ["-o", "out.html", "a.json"]):
        args = top.parse_args(["bad", *words])
        with pytest.raises(MissingToolError, match="pip install --force-reinstall further_bad") as error:
            args.run(args, Output())
        assert why in error.value.what
        assert "further_bad" in error.value.what
    assert top.parse_args(["good"]).run(args, Output()) == 7


def test_a_name_that_is_taken_is_left_to_its_first_owner(modules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("further_one", "further_two"):
        (modules / f"{name}.py").write_text(GOOD.format(name="same"))
    args = added(point("same", "further_one"), point("same", "further_two")).parse_args(["same"])
    assert args.run(args, Output()) == 7
    assert capsys.readouterr().err == "microsim: further_two brings a second command same; it is left out\n"


def test_the_plugin_adds_its_own_commands() -> None:
    assert "report" in full().format_help()


def test_a_broken_command_ends_with_status_1_and_leaves_the_others(
    modules: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (modules / "further_bad.py").write_text("import microsim_no_such_module")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point("bad", "further_bad")])
    assert main(["bad", "--flag", "word"]) == 1
    assert "microsim: the command bad cannot be loaded from further_bad" in capsys.readouterr().err
    assert main(["completion", "bash"]) == 0
