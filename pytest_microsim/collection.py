"""What happens at collection: seeds become parameters, and every mistake that can be seen is reported.

Templates are read here, and nothing is built, booted or written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from microsim_vm.errors import MicrosimError, SeedError

from .errors import MarkerError, NoWorldError
from .interleavings.marker import NAME as INTERLEAVINGS
from .interleavings.marker import Interleavings, interleavings_of, schedule_ids
from .markers import mark_location, microsim_mark
from .seeds import check_seeds, run_id, seed_ids, seed_of_test
from .settings import located
from .state import RUN, Run, SeedParam

if TYPE_CHECKING:
    from microsim_vm.templates.spec import Template

PARAMETER = "rollout"

# pytest 8.4 and later can leave a parameter out of an id, so that the first run keeps the one that it always has.
_UNNAMED = "" if hasattr(pytest, "HIDDEN_PARAM") else "run1"

_CHOOSE = (
    "choose one with @pytest.mark.microsim(world=...) on the test, with --microsim-world on the command "
    "line, or with microsim_world in the ini file"
)


def parametrize_seeds(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses ``rollout`` once per seed, if it has the ``seeds`` marker, and each as often as is asked."""
    if PARAMETER not in metafunc.fixturenames:
        return
    try:
        runs, search = microsim_mark(metafunc.definition).repeat, interleavings_of(metafunc.definition)
    except MarkerError:  # which is reported with the test's other mistakes
        runs, search = 1, None
    owner, mark = next(metafunc.definition.iter_markers_with_node("seeds"), (None, None))
    if owner is None or mark is None:
        params = list(_runs(None, 1, "", runs, search))
        if len(params) > 1 or search:
            ids: list[Any] = [param.id or pytest.HIDDEN_PARAM for param in params]
            metafunc.parametrize(PARAMETER, params, indirect=True, ids=ids)
        return
    try:
        # A mistake in the marker is reported even where the command line replaces its seeds.
        seeds = _seeds_of(mark)
    except SeedError as error:
        raise pytest.Collector.CollectError(f"{mark_location(owner, 'seeds')}: {error}") from None
    seeds = list(metafunc.config.stash[RUN].settings.seeds or seeds)
    # The fixture's own scope, which is the function: a session-scoped parameter would make collection
    # quadratic and regroup the tests.
    params = [
        param  # a seed's runs next to each other, so that what they leave for each other is soon gone
        for seed, name in zip(seeds, seed_ids(seeds), strict=True)
        for param in _runs(seed, len(seeds), name, runs, search)
    ]
    metafunc.parametrize(PARAMETER, params, indirect=True, ids=[param.id for param in params])


def _runs(seed: int | None, seeds: int, name: str, runs: int, search: Interleavings | None) -> Iterator[SeedParam]:
    """Yield the runs of one seed: as often as is asked, or once under each schedule."""
    if search is None:
        for run in range(1, runs + 1):
            yield SeedParam(seed, seeds, run_id(name, run) or _UNNAMED, run, runs)
        return
    named = zip(search.schedules, schedule_ids(search.schedules), strict=True)
    for run, (schedule, its_name) in enumerate(named, start=1):
        yield SeedParam(
            seed, seeds, f"{name}-{its_name}".lstrip("-"), run, len(search.schedules), schedule, search.exhaustive
        )


def param_of(item: pytest.Item) -> SeedParam | None:
    """Return the hidden parameter of a test's rollout, or None where it has none."""
    callspec = getattr(item, "callspec", None)
    param = callspec.params.get(PARAMETER) if callspec else None
    return param if isinstance(param, SeedParam) else None


def other_parameters(item: pytest.Item) -> tuple[str, str]:
    """Return what a test's id says of its parameters beside the hidden one, before and after that one."""
    param, callspec = param_of(item), getattr(item, "callspec", None)
    text = str(callspec.id) if callspec else ""
    if param is None or not param.id:
        return text, ""
    # Only other plugins (pytest-repeat) add parameters after the hidden one, so that the last occurrence of its name
    # is it. Values and indices of the other parameters would not do: values may not cross from a worker, and pytest
    # renumbers indices test by test.
    if param.seed is None:
        return _without(param.id, text), ""  # as in the first run, which has no name
    before, _, after = text.rpartition(param.id)
    return before.removesuffix("-"), after.removeprefix("-")


def group_key(item: pytest.Item) -> str:
    """Return what a test has in common with those that differ from it by the seed alone, and with no other.

    It can be read, and is the same in every run: results and baselines are kept under it.
    """
    if param_of(item) is None:
        return plain_id(item)
    parameters = "".join(f"[{part}]" for part in other_parameters(item) if part)
    return "::".join([item.location[0], *names_of(item)]) + parameters


def names_of(item: pytest.Item) -> list[str]:
    """Return the names of a test's classes and of its function."""
    classes = [node.name for node in item.listchain() if isinstance(node, pytest.Class)]
    return [*classes, getattr(item, "originalname", None) or item.name]


def plain_id(item: pytest.Item) -> str:
    """Return a test's node id as it is in every run: with ``--dist loadgroup``, xdist adds a group's name to it."""
    assert item.parent is not None
    return f"{item.parent.nodeid}::{item.name}"


def seed_of(item: pytest.Item) -> int:
    """Return the seed of a test's rollout: its own, or one from the test's id, the same for all runs of the test."""
    param = param_of(item)
    if param is not None and param.seed is not None:
        return param.seed
    node_id = plain_id(item)
    if param is None or not param.id:
        return seed_of_test(node_id)
    before, _, after = node_id.rpartition(param.id)
    if before.endswith("[") and after == "]":
        return seed_of_test(before[:-1])
    return seed_of_test(_without(param.id, node_id))


def _without(name: str, text: str) -> str:
    """Return parameters, or a node id with others too, without the last occurrence of one and the dash beside it."""
    before, _, after = text.rpartition(name)
    return before[:-1] + after if before.endswith("-") else before + after.removeprefix("-")


def problems_of(item: pytest.Item) -> Iterator[str]:
    """Yield every mistake of one collected test that can be seen without starting anything."""
    names = getattr(item, "fixturenames", ())
    run = item.config.stash[RUN]
    if PARAMETER not in names and any(mark.name == "seeds" for mark in item.own_markers):
        yield (
            f"{mark_location(item, 'seeds')}: a test with the marker seeds does not use the fixture "
            "rollout, so that the seeds reach nothing; add rollout to its arguments"
        )
    if PARAMETER not in names and any(mark.name == INTERLEAVINGS for mark in item.own_markers):
        yield (
            f"{mark_location(item, INTERLEAVINGS)}: a test with the marker interleavings does not use the fixture "
            "rollout, so that no schedule reaches it; add rollout to its arguments"
        )
    try:
        mark, search = microsim_mark(item), interleavings_of(item)
    except MarkerError as error:
        yield str(error)
        return
    param = param_of(item)
    if PARAMETER in names and search is None and mark.repeat != (param.runs if param else 1):
        owner = next(owner for owner, mark in item.iter_markers_with_node("microsim") if "repeat" in mark.kwargs)
        yield (
            f"{mark_location(owner, 'microsim')}: @pytest.mark.microsim: repeat is too late in the marks of one "
            "parameter; write it on the test, its class or its module"
        )
    marked = located(mark.world, item.path.parent) if mark.world else None
    if PARAMETER in names:
        yield from _template_problem(run, item, marked)
    if "warm_world" in names:
        yield from _template_problem(run, item, None)
        if run.settings.world is not None and marked not in (None, run.settings.world):
            yield (
                f"{mark_location(*_world_marker(item))}: the marker asks for world {marked!r}, and "
                f"the test uses warm_world, which is the whole session's world ({run.settings.world!r}); "
                f"use rollout, or run it with --microsim-world {marked}"
            )


def world_of(item: pytest.Item) -> str:
    """Return the name of the world a test's rollout is forked from: the marker's, else the session's.

    Raises:
        MarkerError: If a marker of the test is wrong.
        NoWorldError: If nothing chooses a world.
    """
    marked = microsim_mark(item).world
    return located(marked, item.path.parent) if marked else session_world(item)


def deterministic(item: pytest.Item, world: str) -> bool:
    """Tell whether a test's rollout, forked from that world, has a deterministic machine: all have, or it asks for one.

    Raises:
        MicrosimError: If a marker of the test, or the world's template, is wrong.
    """
    return item.config.stash[RUN].deterministic(world) or interleavings_of(item) is not None


def forks_next(item: pytest.Item, world: str) -> bool:
    """Tell whether the test after this one will fork the same world, in a machine that can be started ahead."""
    following = item.config.stash[RUN].nextitem
    if following is None or PARAMETER not in getattr(following, "fixturenames", ()):
        return False
    try:
        return world_of(following) == world and not deterministic(following, world)
    except MicrosimError:  # which is that test's to report
        return False


def session_world(node: pytest.Item | pytest.Session) -> str:
    """Return the name of the session's world, the one that ``warm_world`` is.

    Raises:
        NoWorldError: If neither the command line nor the ini file chooses one.
    """
    world = node.config.stash[RUN].settings.world
    if world is None:
        raise NoWorldError(f"{node.path}: rollout and warm_world need a world, and none is chosen", hint=_CHOOSE)
    return world


def check_command_line(config: pytest.Config) -> None:
    """Refuse a ``--microsim-world`` that cannot be used, before anything is collected.

    Raises:
        pytest.UsageError: With the names of the worlds found.
    """
    run = config.stash[RUN]
    if config.option.microsim_world:
        try:
            run.template(run.settings.world or "")
        except (MicrosimError, OSError) as error:
            raise pytest.UsageError(f"--microsim-world: {error}") from None
    if run.settings.deterministic:
        from microsim_vm.engines.select import check_deterministic

        try:
            check_deterministic(run.settings.engine, run.settings.accel)
        except MicrosimError as error:
            raise pytest.UsageError(f"--microsim-deterministic: {error}") from None


def _template_problem(run: Run, item: pytest.Item, marked: str | None) -> Iterator[str]:
    """Yield what keeps a test's world from being used, and who asked for it."""
    try:
        name = marked or session_world(item)
        template = run.template(name)
        if deterministic(item, name):
            _check_deterministic(run, template)
    except NoWorldError as error:
        yield str(error)
    except (MicrosimError, OSError) as error:
        source = f"the marker at {mark_location(*_world_marker(item))}" if marked else run.settings.world_source
        yield f"{error}\n  asked for by: {source} (marker wins over command line, that over ini file)"


def _check_deterministic(run: Run, template: Template) -> None:
    from microsim_vm import deterministic as machines
    from microsim_vm.engines.select import check_deterministic

    check_deterministic(run.settings.engine, run.settings.accel)
    machines.check_template(template)


def _world_marker(item: pytest.Item) -> tuple[Any, str]:
    """Return the closest owner of a marker that chooses a world, and that marker's name."""
    owners = [owner for owner, mark in item.iter_markers_with_node("microsim") if mark.kwargs.get("world")]
    return owners[0], "microsim"


def report_problems(report: pytest.CollectReport) -> None:
    """Turn the report of a module or class into a failed one if any of its tests has a mistake."""
    if not report.passed:
        return
    found = [problem for node in report.result if isinstance(node, pytest.Item) for problem in problems_of(node)]
    if found:
        report.outcome = "failed"
        report.longrepr = "\n\n".join(dict.fromkeys(found))
        report.result = []


def _seeds_of(mark: pytest.Mark) -> list[int]:
    if len(mark.args) == 1 and not mark.kwargs:
        return check_seeds(mark.args[0])
    if not mark.args and set(mark.kwargs) == {"seeds"}:
        return check_seeds(mark.kwargs["seeds"])
    if len(mark.args) > 1 and not mark.kwargs:
        raise SeedError(
            f"seeds takes one list, not {len(mark.args)} arguments", hint=f"write seeds({list(mark.args)!r})"
        )
    raise SeedError("seeds takes one list of seeds", hint="write seeds(range(8)) or seeds([1, 7, 9])")
