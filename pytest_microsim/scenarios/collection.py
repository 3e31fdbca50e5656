"""Scenario files as pytest's own kind of tests.

A file is a module with one function in it, which has the marks that the file amounts to. So seeds, gates, replay,
``-k``, ``-m``, ``--lf`` and workers need to know nothing of scenarios.
"""

from __future__ import annotations

import fnmatch
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from ..errors import ScenarioError
from ..markers import LINES
from .draws import points
from .expectations import directions
from .reading import read
from .running import POINT, run
from .spec import MARKED, Baseline, Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..rollout import Rollout


def collected(path: Path, parent: pytest.Collector) -> ScenarioFile | None:
    """Return the collector of a scenario file, or None for any other file."""
    patterns: list[str] = parent.config.getini("microsim_scenarios")
    if not any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns):
        return None
    return ScenarioFile.from_parent(parent, path=path)


def scenario_of(item: pytest.Item) -> Scenario | None:
    """Return the scenario that a test comes from; None for a test in Python."""
    file = item.getparent(ScenarioFile)
    return None if file is None else file.scenario


def asked_rate(item: pytest.Item) -> dict[str, Any] | None:
    """Return how many seeds of a test have to pass, as simple types; None where all have to."""
    scenario = scenario_of(item)
    rate = None if scenario is None else scenario.document.pass_rate
    return None if rate is None else msgspec.to_builtins(rate)


class ScenarioFile(pytest.Module):
    """A scenario file; what it collects are functions like those of a module in Python.

    Attributes:
        scenario: What the file says, once it is read.
    """

    scenario: Scenario | None = None

    def _getobj(self) -> types.ModuleType:
        try:
            self.scenario = read(self.path)
            marks = list(_marks(self.scenario, self.config))
        except ScenarioError as error:
            raise self.CollectError(str(error)) from None
        module = types.ModuleType(self.scenario.name, self.scenario.document.description or None)
        module.__file__ = str(self.path)
        function = _function(self.scenario)
        for mark in reversed(marks):
            function = mark(function)
        setattr(module, self.scenario.name, function)
        return module


def _function(scenario: Scenario) -> Callable[..., None]:
    """Return the test, which is written where its file begins, as far as reports are concerned."""
    if any(parameter.grid is not None for parameter in scenario.document.parameters.values()):

        def test(request: pytest.FixtureRequest, rollout: Rollout, parameters: Any) -> None:
            run(scenario, request.node, rollout)
    else:

        def test(request: pytest.FixtureRequest, rollout: Rollout) -> None:  # type: ignore[misc]
            run(scenario, request.node, rollout)

    test.__code__ = test.__code__.replace(co_filename=str(scenario.path), co_firstlineno=1, co_name=scenario.name)
    test.__name__ = test.__qualname__ = scenario.name
    test.__doc__ = scenario.document.description or None
    test.__test__ = True  # type: ignore[attr-defined]  # whatever it is called
    first = next((key for key in ("world", *MARKED, "limits") if key in scenario.lines), "")
    setattr(test, LINES, {"seeds": scenario.line("seeds"), "microsim": scenario.line(first)})
    return test


def _marks(scenario: Scenario, config: pytest.Config) -> Iterator[pytest.MarkDecorator]:
    document = scenario.document
    if scenario.seeds:
        yield pytest.mark.seeds(list(scenario.seeds))
    settings = {key: getattr(document, key) for key in ("world", *MARKED) if getattr(document, key) is not None}
    if document.unchecked:
        settings["unchecked"] = document.unchecked
    if scenario.limits:
        settings["limits"] = dict(scenario.limits)
    better = {**directions(document.expect), **document.better}
    if better:
        settings["better"] = better
    if document.baseline is not None:
        settings["baseline"] = as_marked(document.baseline)
    if settings:
        yield pytest.mark.microsim(**settings)
    grid = points(document.parameters)
    if grid[0].id:
        yield pytest.mark.parametrize(POINT, [point.values for point in grid], ids=[point.id for point in grid])
    for tag in document.tags:
        _register(tag, scenario, config)
        yield getattr(pytest.mark, tag)


def as_marked(baseline: Baseline) -> dict[str, Any]:
    """Return what a file says of its baseline as a marker says it: without what it leaves out."""
    plain = msgspec.to_builtins(baseline)
    for tolerance in plain["tolerance"].values():
        if isinstance(tolerance, dict) and tolerance["until_s"] is None:
            del tolerance["until_s"]
    return {name: value for name, value in plain.items() if value is not None}


def _register(tag: str, scenario: Scenario, config: pytest.Config) -> None:
    """Make a tag known to ``--strict-markers``.

    Raises:
        ScenarioError: A plugin has a mark of this name that takes arguments.
    """
    known = {line.partition(":")[0].strip() for line in config.getini("markers")}
    if any(name.startswith(f"{tag}(") for name in known):
        raise ScenarioError(
            f"{scenario.path}:{scenario.line('tags')}: tag {tag!r} is a mark that changes how a test is run",
            hint="choose another word",
        )
    if tag not in known:
        config.addinivalue_line("markers", f"{tag}: a tag of scenario files")
