"""``microsim scenario``: scenario files, looked at without running anything."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output, table

if TYPE_CHECKING:
    from microsim_vm.cli.common import Commands

    from pytest_microsim.errors import ScenarioError
    from pytest_microsim.scenarios.spec import Scenario


def add(commands: Commands) -> None:
    """Add the commands."""
    group = commands.add_parser(
        "scenario", help="check scenario files, and print their schema", allow_abbrev=False,
        description="Check scenario files, which pytest collects as tests, and print their schema.",
    )  # fmt: skip
    verbs = group.add_subparsers(title="commands", required=True, metavar="COMMAND")
    check = command(verbs, "check", run_check, "Say what is wrong with scenario files, and what each would run.")
    check.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="a scenario file, or a folder with some in it or below it"
    )
    check.add_argument("--world", metavar="NAME", help="the world of those that name none, as --microsim-world")
    check.add_argument(
        "--templates", action="append", type=Path, default=[], metavar="DIR",
        help="a directory of templates, searched before ./templates and the shipped ones (may be repeated)",
    )  # fmt: skip
    command(verbs, "schema", run_schema, "Print the JSON Schema of scenario files, for editors.")


def run_check(args: argparse.Namespace, output: Output) -> int:
    """Read all files, and report on each."""
    from pytest_microsim.scenarios.reading import examine

    files = _files(args.paths)
    rows: list[dict[str, Any]] = []
    mistakes: list[ScenarioError] = []
    for path in files:
        scenario, found = examine(path)
        if scenario is not None:
            found = _world_mistakes(scenario, args)
        if scenario is None or found:
            mistakes += found
        else:
            rows.append(_facts(scenario, path, args.world))
    for mistake in mistakes:
        output.progress(str(mistake))
    header = ("FILE", "TEST", "WORLD", "GROUPS", "SEEDS", "ROLLOUTS", "PARAMETERS", "EXPECTS")
    lines = [[str(row[key.lower()]) for key in header] for row in rows]
    document = {"scenarios": rows, "mistakes": [{"message": each.what, "hint": each.hint} for each in mistakes]}
    output.result(document, table(header, lines) if rows else "")
    if mistakes:
        wrong = len(files) - len(rows)
        output.error(f"{wrong} of {len(files)} scenario files cannot be used as written")
    return 1 if mistakes else 0


def run_schema(args: argparse.Namespace, output: Output) -> int:
    """Print the schema."""
    import json

    from pytest_microsim.scenarios.jsonschema import schema

    document = schema()
    output.result(document, json.dumps(document, indent=2, ensure_ascii=False))
    return 0


def _files(paths: list[Path]) -> list[Path]:
    """Return the files that are meant, each once.

    Raises:
        ScenarioError: There is no such path, or no scenario in a folder.
    """
    from pytest_microsim.errors import ScenarioError
    from pytest_microsim.scenarios.spec import SUFFIX

    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            found = [each for each in sorted(path.rglob(f"*{SUFFIX}")) if each.is_file() and not _hidden(each, path)]
            if not found:
                raise ScenarioError(f"{path}: no file in this folder is called *{SUFFIX}")
            files.update(dict.fromkeys(found))
        elif path.exists():
            files[path] = None
        else:
            raise ScenarioError(f"{path}: there is no such file or folder")
    return list(files)


def _hidden(path: Path, top: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(top).parts)


def _world_mistakes(scenario: Scenario, args: argparse.Namespace) -> list[ScenarioError]:
    """Return what keeps a scenario's world from being used."""
    from microsim_vm.errors import MicrosimError
    from microsim_vm.templates import find_template, search_path

    from pytest_microsim.errors import ScenarioError
    from pytest_microsim.settings import located

    written = scenario.document.world
    world = args.world if written is None else located(written, scenario.path.parent)
    if world is None:
        return []
    place = f"{scenario.path}:{scenario.line('world')}"
    try:
        template = find_template(world, search_path(args.templates, Path.cwd()))
    except MicrosimError as error:
        return [ScenarioError(f"{place}: world: {error.what}", hint=error.hint, details=error.details)]
    if template.has_world:
        return []
    return [ScenarioError(f"{place}: the template {template.name!r} has no world of its own", hint="choose another")]


def _facts(scenario: Scenario, path: Path, world: str | None) -> dict[str, Any]:
    """Return what a scenario would run."""
    from pytest_microsim.scenarios.draws import points

    document = scenario.document
    groups, seeds = len(points(document.parameters)), len(scenario.seeds) or 1
    expect = document.expect
    expects = list(expect.metrics)
    expects += [name for name in ("total_reward", "steps", "terminated") if getattr(expect, name) is not None]
    if document.pass_rate is not None:
        expects.append(f"pass rate {document.pass_rate.at_least:g}")
    return {
        "file": str(path),
        "test": scenario.name,
        "world": document.world or world or "of the session",
        "groups": groups,
        "seeds": seeds,
        "rollouts": groups * seeds * (document.repeat or 1),
        "parameters": _listed([f"{name} {parameter.written[0]}" for name, parameter in document.parameters.items()]),
        "expects": _listed(expects),
    }


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "-"
