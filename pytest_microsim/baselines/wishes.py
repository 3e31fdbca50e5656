"""What a test says of its baseline: ``@pytest.mark.microsim(baseline={...})``."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from ..statistics.trends import Allowed

MUST = ("identical", "tolerance")
EVERY = "*"


@dataclass(frozen=True)
class Tolerance:
    """How far one column of a trajectory may be from its baseline.

    A number may differ by ``absolute + relative * |baseline| + per_s * t``, where ``t`` is simulated time.

    Attributes:
        absolute: In the column's unit.
        relative: As a share of the baseline's number.
        per_s: In the column's unit, for each second of simulated time since the reset.
        until_s: What comes later than this is not compared, in seconds of simulated time; None compares all.
    """

    absolute: float = 0.0
    relative: float = 0.0
    per_s: float = 0.0
    until_s: float | None = None


EXACT = Tolerance()


@dataclass(frozen=True)
class Tolerances:
    """How far trajectories may be from their baselines.

    Attributes:
        columns: By the column's name. "observation" stands for all its keys too, and "*" for all columns that are not
            named; a column that nothing stands for has to be the same bit by bit.
        steps: By how many steps an episode may be longer or shorter.
    """

    columns: Mapping[str, Tolerance] = field(default_factory=dict)
    steps: int = 0

    def of(self, column: str) -> Tolerance:
        """Return that of one column."""
        named = (column, column.partition(".")[0], EVERY)
        return next((self.columns[name] for name in named if name in self.columns), EXACT)


@dataclass(frozen=True)
class Wishes:
    """What a test says of its baseline.

    Attributes:
        tolerances: How far trajectories may be from it.
        metrics: Differences of metrics that count as none, by name.
        must: "identical" or "tolerance": a seed whose trajectory is not fails the group; empty where it only warns.
        across: Knobs in which the environment may differ from the baseline's, by the first part of their names: the
            metrics are compared all the same.
        columns: Which columns are kept, by name or its first part; None keeps all.
    """

    tolerances: Tolerances = field(default_factory=Tolerances)
    metrics: Mapping[str, Allowed] = field(default_factory=dict)
    must: str = ""
    across: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None

    def keeps(self, column: str) -> bool:
        """Tell whether a column is kept."""
        return self.columns is None or column in self.columns or column.partition(".")[0] in self.columns


NONE: Mapping[str, Any] = MappingProxyType({})


def wishes_of(given: object) -> Wishes:
    """Read what a marker says.

    Args:
        given: A dict with any of ``tolerance`` (numbers or dicts by column), ``steps``, ``metrics`` (numbers or dicts
            by metric), ``must``, ``across`` and ``columns``.

    Raises:
        ValueError: It cannot be meant so; the message says what is wrong.
    """
    values = _named(given, "baseline", ("tolerance", "steps", "metrics", "must", "across", "columns"))
    steps = values.get("steps", 0)
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
        raise ValueError(f"baseline: steps is a number of steps, not {steps!r}")
    must = values.get("must", "")
    if must not in ("", *MUST):
        raise ValueError(f"baseline: must is {must!r}; it can be {', '.join(MUST)}")
    columns = _by_name(values.get("tolerance", {}), "tolerance")
    metrics = _by_name(values.get("metrics", {}), "metrics")
    return Wishes(
        Tolerances({name: _tolerance(name, value, Tolerance) for name, value in columns.items()}, steps),
        {name: _tolerance(name, value, Allowed) for name, value in metrics.items()},
        must,
        _names(values.get("across", ()), "across"),
        None if values.get("columns") is None else _names(values["columns"], "columns"),
    )


def _tolerance(name: str, value: object, kind: Any) -> Any:
    """Return a tolerance: a number is an absolute one."""
    if isinstance(value, Mapping):
        numbers = _named(value, f"baseline: {name}", tuple(each.name for each in fields(kind)))
    else:
        numbers = {"absolute": value}
    for part, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < math.inf:
            raise ValueError(f"baseline: {name}: {part} is a number, 0 or more, not {number!r}")
    if kind is Allowed:
        numbers = {"relative": 0.0, **numbers}
    return kind(**{part: float(number) for part, number in numbers.items()})


def _named(given: object, what: str, names: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ValueError(f"{what} is a dict with any of {', '.join(names)}, not {given!r}")
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            known = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
            raise ValueError(f"{what}: unknown name {name!r}; {known}")
    return given


def _by_name(given: object, what: str) -> Mapping[str, object]:
    if not isinstance(given, Mapping) or not all(name and isinstance(name, str) for name in given):
        raise ValueError(f'baseline: {what} is a dict by name, as in {{"observation": 1e-6}}, not {given!r}')
    return given


def _names(given: object, what: str) -> tuple[str, ...]:
    if not isinstance(given, list | tuple | set | frozenset) or not all(
        name and isinstance(name, str) for name in given
    ):
        raise ValueError(f"baseline: {what} is a list of names, not {given!r}")
    return tuple(sorted(given))
