"""Trajectories as curves for a picture: few points of few numbers, with what a picture must not lose."""

from __future__ import annotations

import array
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from microsim_guest.codec import TYPECODES

from ..gates.fingerprints import ColumnLike

WIDEST = 256
"""Columns of more numbers than these are pictures, and have no curves."""

_DIGITS = 7


def budget(rollouts: int, tests: int = 1) -> tuple[int, int]:
    """Return how many curves an episode may have, and how many points each: one process has all of a run's in memory.

    Args:
        rollouts: Of its group.
        tests: Of the run.
    """
    if rollouts <= 128 and tests <= 1024:
        return 24, 64
    return (12, 32) if rollouts <= 512 else (6, 16)


def curves_of(columns: Mapping[str, ColumnLike], *, curves: int = 24, points: int = 64) -> list[dict[str, Any]]:
    """Return curves of a trajectory, as the fields of :class:`~pytest_microsim.results.model.Curve`.

    Args:
        columns: The trajectory.
        curves: Most curves; columns of few numbers come first.
        points: Most points of each, 4 or more: the first, the last and the extremes are always among them.
    """
    # A stable sort: columns of equal width stay in the order in which they were recorded.
    widths = sorted(((math.prod(column.shape[1:]), name) for name, column in columns.items()), key=lambda each: each[0])
    found: list[dict[str, Any]] = []
    for width, name in widths:
        column = columns[name]
        if not 0 < width <= WIDEST or column.dtype not in TYPECODES:
            continue
        flat = array.array(TYPECODES[column.dtype], column.data)
        for index, place in zip(range(width), _places(column.shape[1:]), strict=True):
            if len(found) == curves:
                return found
            values = flat[index::width].tolist()
            steps = thinned(values, points)
            found.append({"name": name + place, "steps": steps, "values": [_number(values[step]) for step in steps]})
    return found


def thinned(values: Sequence[float], points: int) -> list[int]:
    """Return which values to keep: at most ``points`` indices, ascending.

    The first and the last are kept, and of each stretch between them the least and the greatest; one that is not
    finite is kept in place of the greatest. Takes time in proportion to the number of values.
    """
    if len(values) <= points:
        return list(range(len(values)))
    stretches = (points - 2) // 2
    inner = len(values) - 2
    kept = {0, len(values) - 1}
    for number in range(stretches):
        start, end = 1 + inner * number // stretches, 1 + inner * (number + 1) // stretches
        part = values[start:end]
        odd = None if all(map(math.isfinite, part)) else next(i for i, v in enumerate(part) if not math.isfinite(v))
        if odd is not None:
            kept.add(start + odd)
            part = [value if math.isfinite(value) else math.inf for value in part]
        else:
            kept.add(start + part.index(max(part)))
        kept.add(start + part.index(min(part)))
    return sorted(kept)


def _places(shape: Sequence[int]) -> Iterator[str]:
    """Yield what follows a column's name for each of a row's numbers, such as ``[2]`` or ``[0,3]``."""
    if not shape:
        yield ""
        return
    for flat in range(math.prod(shape)):
        indices: list[str] = []
        rest = flat
        for size in reversed(shape):
            rest, index = divmod(rest, size)
            indices.append(str(index))
        yield f"[{','.join(reversed(indices))}]"


def _number(value: float) -> float | None:
    return float(f"{float(value):.{_DIGITS}g}") if math.isfinite(value) else None
