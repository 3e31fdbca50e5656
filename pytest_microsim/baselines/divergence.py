"""Where a trajectory leaves what its baseline allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..gates.fingerprints import ColumnLike
from .wishes import EXACT, Tolerance, Tolerances

_WITHIN_STEP = ("action", "state", "observation", "reward")
_FROM_START = ("state", "observation")


@dataclass(frozen=True)
class Divergence:
    """The first step at which a trajectory leaves what is allowed; simple types only.

    Attributes:
        step: The step; 0 is the reset.
        column: Which column, with an index where it has several: "observation[3]".
        baseline, now: Both numbers; None where there is none, or where it is not finite.
        over: By how many times the allowed difference is passed; infinite where none is allowed.
        episode: In which episode of the rollout, from 0.
    """

    step: int
    column: str
    baseline: float | None
    now: float | None
    over: float
    episode: int = 0


def first_divergence(
    then: Sequence[Mapping[str, ColumnLike]],
    now: Sequence[Mapping[str, ColumnLike]],
    tolerances: Tolerances,
    *,
    step_s: Sequence[float],
) -> Divergence | None:
    """Compare a rollout with its baseline, episode by episode.

    Args:
        then: The columns of each episode of the baseline. Columns that it does not keep are not compared.
        now: Those of each episode now.
        tolerances: What is allowed.
        step_s: The simulated time of a step in each episode of the baseline, in seconds.
    """
    for number, (ours, theirs) in enumerate(zip(then, now, strict=False)):
        found = _of_episode(ours, theirs, tolerances, step_s[number])
        if found is not None:
            (step, _), column, *values, over = found
            return Divergence(step, column, values[0], values[1], over, number)
    if len(then) != len(now):
        return Divergence(0, "", None, None, math.inf, min(len(then), len(now)))
    return None


def _of_episode(
    then: Mapping[str, ColumnLike], now: Mapping[str, ColumnLike], tolerances: Tolerances, step_s: float
) -> tuple[Any, ...] | None:
    found = []
    for name in sorted(then):
        base = name.partition(".")[0]
        rank = _WITHIN_STEP.index(base) if base in _WITHIN_STEP else len(_WITHIN_STEP)
        first = 0 if base in _FROM_START else 1
        if name not in now or _kind(now[name]) != _kind(then[name]):
            found.append(((0, rank), name, None, None, math.inf))
            continue
        leaves = _of_column(then[name], now[name], tolerances, tolerances.of(name), first, step_s)
        if leaves is not None:
            row, index, *rest = leaves
            found.append(((row + first, rank), f"{name}{index}", *rest))
    return min(found, key=lambda each: each[0], default=None)


def _kind(column: ColumnLike) -> tuple[str, tuple[int, ...]]:
    return column.dtype, tuple(column.shape[1:])


def _of_column(
    then: ColumnLike, now: ColumnLike, tolerances: Tolerances, tolerance: Tolerance, first: int, step_s: float
) -> tuple[Any, ...] | None:
    """Return row, index, both numbers and by how much, of the first row that leaves what is allowed."""
    import numpy as np

    rows = min(then.shape[0], now.shape[0])
    compared = math.inf
    if tolerance.until_s is not None:
        compared = max(0, math.floor(tolerance.until_s / step_s + 1e-9) - first + 1)
    end = int(min(rows, compared))
    ours, theirs = (_array(column)[:end] for column in (then, now))
    if tolerance == EXACT:
        allowed, outside = np.zeros(ours.shape), _bits(then, end) != _bits(now, end)
        outside = outside.any(axis=-1).reshape(ours.shape)
    else:
        allowed = _allowed(ours, tolerance, (np.arange(end) + first) * step_s)
        outside = _outside(ours, theirs, allowed)
    if outside.any():
        place = np.unravel_index(int(np.argmax(outside)), outside.shape)
        values, most = (float(ours[place]), float(theirs[place])), float(allowed[place])
        over = abs(values[1] - values[0]) / most if most > 0.0 else math.inf
        index = "".join(f"[{number}]" for number in place[1:])
        finite = (value if math.isfinite(value) else None for value in values)
        return int(place[0]), index, *finite, over if math.isfinite(over) else math.inf
    if compared > rows and abs(then.shape[0] - now.shape[0]) > tolerances.steps:
        return rows, "", None, None, math.inf
    return None


def _bits(column: ColumnLike, rows: int) -> Any:
    """Return the bytes of each number of the first rows, (numbers, bytes of one)."""
    import numpy as np

    size = int(column.dtype[2:])
    return np.frombuffer(column.data, np.uint8)[: rows * math.prod(column.shape[1:]) * size].reshape(-1, size)


def _allowed(then: Any, tolerance: Tolerance, time_s: Any) -> Any:
    """Return by how much each number may differ, of the shape of ``then``."""
    import numpy as np

    over_time = tolerance.per_s * time_s.reshape(-1, *[1] * (then.ndim - 1))
    with np.errstate(all="ignore"):
        return tolerance.absolute + tolerance.relative * np.abs(then.astype(np.float64)) + over_time


def _outside(then: Any, now: Any, allowed: Any) -> Any:
    """Tell which numbers differ by more than is allowed; NaN is near to NaN alone."""
    import numpy as np

    same = (then == now) | (np.isnan(then) & np.isnan(now))
    with np.errstate(all="ignore"):
        return ~(same | (np.abs(now.astype(np.float64) - then.astype(np.float64)) <= allowed))


def _array(column: ColumnLike) -> Any:
    import numpy as np

    return np.frombuffer(column.data, dtype=column.dtype).reshape(column.shape)
