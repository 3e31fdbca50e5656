"""The markers ``seeds`` and ``microsim``, and where a marker was written."""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
from microsim_vm.errors import LimitsError

from .baselines.wishes import wishes_of
from .errors import MarkerError
from .options import REPEAT, VARIANCE
from .results.model import Better
from .state import RUN

LINES = "__microsim_lines__"
"""The attribute of a function whose marks are written in another kind of file: the line of each, by its name."""


@dataclass(frozen=True)
class MicrosimMark:
    """The values of ``@pytest.mark.microsim(...)``.

    Attributes:
        world: The world this test forks from, in place of the session's.
        reseed: False leaves every fork with the random numbers frozen in the snapshot. It exists to show
            the trap, and makes every group of seeds fail.
        variance: What a group of copies amounts to: ``"fail"``, ``"warn"`` or ``"off"``.
        deterministic: True where the world has no randomness, so that copies are right.
        max_steps: Steps after which ``rollout.run`` ends an episode, where the call does not say; None for 1000, and
            for all of a recording.
        support: How many different episodes the world has, where they are few.
        min_effective_seeds: The group fails if it amounts to fewer independent episodes.
        strict: A group that holds nothing to tell copies by fails.
        unchecked: Names of metrics and recorded numbers that no gate looks at.
        repeat: How often each seed is run, to see whether it gives the same each time.
        limits: What controllers may use, in place of what the template says, by its names.
        better: Which direction of a metric is the better one, "higher" or "lower", by its name.
        baseline: What is allowed against the baseline; see :func:`pytest_microsim.baselines.wishes.wishes_of`.
    """

    world: str | None = None
    reseed: bool = True
    variance: str = "fail"
    deterministic: bool = False
    max_steps: int | None = None
    support: int | None = None
    min_effective_seeds: int | None = None
    strict: bool = False
    unchecked: tuple[str, ...] | list[str] | set[str] | frozenset[str] = ()
    repeat: int = 1
    limits: Mapping[str, object] = field(default_factory=dict)
    better: Mapping[str, Better] = field(default_factory=dict)
    baseline: Mapping[str, object] = field(default_factory=dict)


REGISTERED = (
    "seeds(seeds): run the test once per seed, each in a microVM of its own. seeds is a range, list, tuple "
    "or one-dimensional integer array of distinct ints >= 0; the test must use the rollout fixture.",
    'microsim(world=None, reseed=True, variance="fail", deterministic=False, max_steps=None, support=None, '
    "min_effective_seeds=None, strict=False, unchecked=(), repeat=1, limits={}, better={}, baseline={}): world "
    'overrides --microsim-world for this test; variance is "fail", "warn" or "off" and says what a '
    "group of copied episodes amounts to; deterministic=True says that copies are right; reseed=False shows "
    "what happens without reseeding; max_steps is that of each rollout.run, by default 1000; support is the number "
    "of different episodes of a world that has only few; min_effective_seeds is the number of independent episodes "
    "that the group must amount to; strict=True fails a group that holds nothing to tell copies by; unchecked lists "
    "metrics and recorded numbers that no gate looks at; repeat is how often each seed is run, 1 to 10 times, and "
    "fails where a further run gives another episode than the first; limits are what controllers may use, by the names "
    'of the template\'s controller, as in limits={"memory_mib": 64}; better says which direction of a metric is the '
    'better one, as in better={"time_s": "lower"}; baseline says what is allowed against the baseline, as in '
    'baseline={"tolerance": {"observation": 1e-6}, "must": "tolerance"}.',
)


def microsim_mark(node: pytest.Item) -> MicrosimMark:
    """Merge all ``microsim`` markers of a test with the run's settings; the closest one wins, key by key.

    Raises:
        MarkerError: For positional arguments, unknown names, values that a name cannot have, and two that
            contradict each other.
    """
    values: dict[str, Any] = {}
    wrote: dict[str, Any] = {}
    for owner, mark in reversed(list(node.iter_markers_with_node("microsim"))):
        problem = _problem(mark)
        if problem:
            raise MarkerError(f"{mark_location(owner, 'microsim')}: @pytest.mark.microsim: {problem}")
        values.update(mark.kwargs)
        wrote.update(dict.fromkeys(mark.kwargs, owner))
    settings = node.config.stash[RUN].settings
    by_settings = {name: getattr(settings, name) for name in ("variance", "min_effective_seeds", "strict", "repeat")}
    merged = MicrosimMark(**by_settings | values)
    for demand, contradicted in _CONTRADICTIONS.items():
        # A demand of the ini file's is for those tests that do not say otherwise.
        if values.get(demand) and getattr(merged, contradicted[0]) == contradicted[1]:
            name, value = contradicted
            source = "" if name in wrote else f" (from the ini setting microsim_{name})"
            raise MarkerError(
                f"{mark_location(wrote[demand], 'microsim')}: @pytest.mark.microsim: {demand}={values[demand]!r} "
                f"contradicts {name}={value!r}{source}, which switches the gates off"
            )
    return merged


_CONTRADICTIONS: dict[str, tuple[str, object]] = {
    "min_effective_seeds": ("deterministic", True),
    "strict": ("variance", "off"),
}
"""What a marker may demand, and the value of another name under which nothing would come of it."""


def _problem(mark: pytest.Mark) -> str:
    """Say what is wrong with one marker; empty if nothing is."""
    if mark.args:
        return f"takes names only, as in microsim(world={mark.args[0]!r})"
    names = [each.name for each in fields(MicrosimMark)]
    for name in mark.kwargs:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            return f"unknown name {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}")
    given = MicrosimMark(**mark.kwargs)
    if given.world is not None and not (isinstance(given.world, str) and given.world):
        return f"world is the name of a template, not {given.world!r}"
    for name in ("reseed", "deterministic", "strict"):
        if not isinstance(getattr(given, name), bool):
            return f"{name} is True or False, not {getattr(given, name)!r}"
    if given.variance not in VARIANCE:
        return f"variance is {given.variance!r}; it can be {', '.join(VARIANCE)}"
    for name, what in (("max_steps", "steps"), ("support", "episodes"), ("min_effective_seeds", "seeds")):
        number = getattr(given, name)
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
            return f"{name} is a number of {what}, at least 1, not {number!r}"
    if isinstance(given.repeat, bool) or given.repeat not in REPEAT:
        return f"repeat is a number of runs from 1 to {REPEAT[-1]}, not {given.repeat!r}"
    listed = given.unchecked
    if not isinstance(listed, tuple | list | set | frozenset) or not all(
        name and isinstance(name, str) for name in listed
    ):
        return f'unchecked is a list of names, as in unchecked=["port"], not {listed!r}'
    return _limits_problem(given.limits) or _baseline_problem(given)


def _baseline_problem(given: MicrosimMark) -> str:
    better: object = given.better
    if not isinstance(better, Mapping) or not all(
        isinstance(name, str) and direction in ("higher", "lower") for name, direction in better.items()
    ):
        return f'better is "higher" or "lower" by metric, as in better={{"time_s": "lower"}}, not {better!r}'
    try:
        wishes_of(given.baseline)
    except ValueError as error:
        return str(error)
    return ""


def _limits_problem(limits: object) -> str:
    if not isinstance(limits, Mapping) or not all(isinstance(name, str) for name in limits):
        return f'limits are numbers by name, as in limits={{"memory_mib": 64}}, not {limits!r}'
    from microsim_vm.controllers import limited
    from microsim_vm.templates.spec import ControllerLimits

    try:
        limited(ControllerLimits(), limits)
    except LimitsError as error:
        return " ".join(str(error).split())
    return ""


def mark_location(owner: Any, name: str) -> str:
    """Return ``file:line`` of the marker ``name`` on a test, class or module.

    pytest does not record where a marker was written, so the source is searched for it: the decorator that
    names it, the ``pytestmark`` that names it, and failing both the line where the marked thing begins.

    Args:
        owner: The node whose own marker it is.
        name: The marker's name.
    """
    path: Path = owner.path
    marked_by_file = getattr(getattr(owner, "obj", None), LINES, None)
    if marked_by_file is not None:
        return f"{path}:{marked_by_file[name]}"
    try:
        tree = _parsed(path)
    except (OSError, SyntaxError, ValueError):
        return str(path)
    marked = _definition(tree, inspect.unwrap(getattr(owner, "obj", None)))  # type: ignore[arg-type]
    lines = [node.lineno for node in _expressions(marked) if _names_mark(node, name)]
    return f"{path}:{lines[0] if lines else _begin(marked)}"


@functools.lru_cache(maxsize=4)
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def _definition(tree: ast.Module, obj: Any) -> ast.AST:
    """Find what defines ``obj``: a function by its first line (decorators included), a class by its name."""
    code = getattr(obj, "__code__", None)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            if inspect.isclass(obj) and node.name == obj.__name__:
                return node
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            code is not None and _begin(node) == code.co_firstlineno
        ):
            return node
    return tree


def _begin(node: ast.AST) -> int:
    decorators = getattr(node, "decorator_list", [])
    lines: list[int] = [getattr(node, "lineno", 1), *(decorator.lineno for decorator in decorators)]
    return min(lines)


def _expressions(marked: ast.AST) -> Iterator[ast.expr]:
    """Yield every place where a marker can be written: decorators, and the ``pytestmark`` of a body."""
    yield from getattr(marked, "decorator_list", [])
    if isinstance(marked, ast.Module | ast.ClassDef):
        for statement in marked.body:
            if isinstance(statement, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == "pytestmark" for target in statement.targets
            ):
                value = statement.value
                yield from value.elts if isinstance(value, ast.List | ast.Tuple) else [value]


def _names_mark(node: ast.expr, name: str) -> bool:
    target = node.func if isinstance(node, ast.Call) else node
    return isinstance(target, ast.Attribute) and target.attr == name
