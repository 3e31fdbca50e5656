"""From a file to a scenario, with every mistake that can be seen without a world."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from microsim_vm.errors import MicrosimError, TemplateError
from microsim_vm.templates import yaml
from microsim_vm.templates.checks import Complaint
from microsim_vm.templates.decode import fields
from microsim_vm.templates.yaml import Mapping, Node

from ..errors import ScenarioError
from .checks import CHECKS
from .spec import Document, Scenario
from .values import Values, limits_of, name_of, seeds_of


def read(path: Path) -> Scenario:
    """Read a scenario file.

    Raises:
        ScenarioError: It cannot be used as written; with all its mistakes, each with file and line.
    """
    scenario, mistakes = examine(path)
    if scenario is not None:
        return scenario
    if len(mistakes) == 1:
        raise mistakes[0]
    raise ScenarioError("\n".join(map(str, mistakes)))


def examine(path: Path) -> tuple[Scenario | None, list[ScenarioError]]:
    """Read a scenario file, and return it; or, where it has mistakes, None and all of them in the order of lines."""
    path = path.absolute()
    try:
        node = yaml.read(path)
    except TemplateError as error:
        return None, [_ours(error)]
    found: list[tuple[int, ScenarioError]] = []
    written: dict[str, Any] = {}
    # Key by key, so that one mistake does not hide the next.
    for key, scalar in node.keys.items():
        try:
            written |= fields(Mapping({key: node.values[key]}, {key: scalar}, path, node.line), Document)
        except TemplateError as error:
            found.append((scalar.line, _ours(error)))
    values = Values(path, node, written)
    for check in CHECKS:
        found += [(at.line, _mistake(at, complaint)) for at, complaint in check(values)]
    if found:
        return None, [error for _, error in sorted(found, key=lambda each: each[0])]
    return _scenario(values), []


def _scenario(values: Values) -> Scenario:
    return Scenario(
        path=values.path,
        name=name_of(values),
        document=Document(**values.written),
        seeds=seeds_of(values),
        limits=limits_of(values),
        lines=dict(_lines(values.node, "")),
    )


def _lines(node: Mapping, where: str) -> Iterator[tuple[str, int]]:
    for key, scalar in node.keys.items():
        path = f"{where}.{key}" if where else key
        yield path, scalar.line
        value = node.values[key]
        if isinstance(value, Mapping):
            yield from _lines(value, path)


def _ours(error: MicrosimError) -> ScenarioError:
    """Return what the reader of YAML says as a scenario's mistake: it does not know which kind of file it reads."""
    return ScenarioError(error.what, cause=error.cause, hint=error.hint, details=error.details)


def _mistake(node: Node, complaint: Complaint) -> ScenarioError:
    return ScenarioError(f"{node.file}:{node.line}: {complaint.what}", hint=complaint.hint)
