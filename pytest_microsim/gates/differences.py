"""Where two trajectories first differ, bit by bit, with no tolerance.

A trajectory is columns by name; each has a type, a shape and row-major bytes. Only bytes are compared: two NaNs with
different payloads differ, and so do the two zeros.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .fingerprints import ColumnLike

_FLOATS = {2: "e", 4: "f", 8: "d"}
# Within one step, in the order in which they come about: an action leads to a state, that to an observation.
_WITHIN_STEP = ("action", "state", "observation", "reward")
_FROM_START = ("state", "observation")  # row 0 is the state at reset; of the others, row 0 is the first step


@dataclass(frozen=True)
class Difference:
    """The first difference between two runs; simple types only, so that it crosses processes.

    Attributes:
        text: One sentence that says all of it.
        episode: In which episode of the rollout, from 0.
        step: The step it belongs to; 0 is the reset. None where the runs differ in more than values.
        column: The column's name; empty where the columns themselves differ.
        index: Where in the row.
        values: Both values, as text; with their bits where they are NaN.
        distance: Between floats: how many representable numbers apart (units in the last place), 0 for the two zeros,
            None with a NaN. Between whole numbers: their difference. None otherwise.
    """

    text: str
    episode: int = 0
    step: int | None = None
    column: str = ""
    index: tuple[int, ...] = ()
    values: tuple[str, str] = ("", "")
    distance: int | None = None


def first_difference(
    first: Sequence[Mapping[str, ColumnLike]], second: Sequence[Mapping[str, ColumnLike]]
) -> Difference | None:
    """Compare two rollouts, episode by episode.

    Returns:
        The earliest difference, or None if every byte is the same.

    Raises:
        ValueError: A column has not as many bytes as its type and shape say.
    """
    for number, (ours, theirs) in enumerate(zip(first, second, strict=False)):
        if found := _of_episode(number, ours, theirs):
            return found
    if len(first) != len(second):
        shorter = min(len(first), len(second))
        return Difference(f"one run has {len(first)} episodes, the other {len(second)}", episode=shorter)
    return None


def ulps(first: bytes, second: bytes) -> int | None:
    """Return how many floats of their type lie between two little-endian ones; None if either is NaN."""
    code = _FLOATS[len(first)]
    if any(math.isnan(struct.unpack(f"<{code}", data)[0]) for data in (first, second)):
        return None
    return abs(_rank(first) - _rank(second))


def _rank(data: bytes) -> int:
    """Number the floats of one type in ascending order; both zeros are 0."""
    bits = int.from_bytes(data, "little")
    magnitude = bits & ~(1 << 8 * len(data) - 1)
    return magnitude if bits == magnitude else -magnitude


def _of_episode(number: int, first: Mapping[str, ColumnLike], second: Mapping[str, ColumnLike]) -> Difference | None:
    where = f" of episode {number}" if number else ""
    if text := _structure(first, second):
        return Difference(f"{text}{where}", episode=number)
    earliest = min(_candidates(first, second), default=None)
    if earliest is not None:
        (step, _), name, row, place = earliest
        return _value(number, where, step, first[name], second[name], name, row, place)
    lengths = {name: (first[name].shape[0], second[name].shape[0]) for name in first}
    ends = [(_step(name, min(rows)), name) for name, rows in lengths.items() if rows[0] != rows[1]]
    if not ends:
        return None
    step, name = min(ends)
    ours, theirs = lengths[name]
    text = (
        f"both runs{where} are equal up to step {max(0, step - 1)}, where one ends: "
        f"column {name!r} has {ours} rows in one and {theirs} in the other"
    )
    return Difference(text, episode=number, step=step, column=name)


def _structure(first: Mapping[str, ColumnLike], second: Mapping[str, ColumnLike]) -> str:
    """Say in what the columns themselves differ; empty if only rows can."""
    if only := sorted(set(first) ^ set(second)):
        return f"only one of the runs has the columns {', '.join(map(repr, only))}"
    for name in sorted(first):
        ours, theirs = first[name], second[name]
        if ours.dtype != theirs.dtype:
            return f"column {name!r} is {ours.dtype} in one run and {theirs.dtype} in the other"
        if ours.shape[1:] != theirs.shape[1:]:
            return f"a row of {name!r} has the shape {ours.shape[1:]} in one run and {theirs.shape[1:]} in the other"
    return ""


def _candidates(
    first: Mapping[str, ColumnLike], second: Mapping[str, ColumnLike]
) -> Iterator[tuple[tuple[int, int], str, int, int]]:
    """Yield the first difference of each column: when it came about, column, row, and the value's place in the row."""
    for name in sorted(first):
        ours, theirs = first[name], second[name]
        size = _item_size(ours.dtype)
        width = math.prod(ours.shape[1:]) * size
        for column in (ours, theirs):
            if len(column.data) != column.shape[0] * width:
                raise ValueError(f"column {name!r} of {column.dtype}, {column.shape} has {len(column.data)} bytes")
        offset = _first_byte(ours.data, theirs.data)
        if offset is not None:
            row, byte = divmod(offset, width)
            base = name.partition(".")[0]
            rank = _WITHIN_STEP.index(base) if base in _WITHIN_STEP else len(_WITHIN_STEP)
            yield (_step(name, row), rank), name, row, byte // size


def _step(column: str, row: int) -> int:
    return row if column.partition(".")[0] in _FROM_START else row + 1


def _first_byte(first: bytes, second: bytes) -> int | None:
    """Return where two byte strings first differ, up to the shorter one's end, by bisection over equal prefixes."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return None
    while high - low > 1:  # the first difference is in [low, high)
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _item_size(dtype: str) -> int:
    return int(dtype[2:])


def _value(
    number: int, where: str, step: int, first: ColumnLike, second: ColumnLike, name: str, row: int, place: int
) -> Difference:
    size, kind = _item_size(first.dtype), first.dtype[1]
    start = (row * math.prod(first.shape[1:]) + place) * size
    items = [bytes(column.data[start : start + size]) for column in (first, second)]
    if first.dtype[0] == ">":
        items = [item[::-1] for item in items]
    texts = [_shown(kind, item) for item in items]
    distance: int | None = None
    unit = ""
    if kind == "f" and size in _FLOATS:
        distance = ulps(*items)
        unit = "with a NaN" if distance is None else f"{distance} ULP apart"
    elif kind in "iu":
        ints = [int.from_bytes(item, "little", signed=kind == "i") for item in items]
        distance = abs(ints[0] - ints[1])
        unit = f"{distance} apart"
    index = _unravelled(place, first.shape[1:])
    at = f"{name}[{', '.join(map(str, (row, *index)))}]"
    rows = first.shape[0], second.shape[0]
    lengths = f"; one run has {rows[0]} rows, the other {rows[1]}" if rows[0] != rows[1] else ""
    when = f"step {step}" if step else "the reset"
    return Difference(
        f"the first difference{where} is at {when}, {at}: {texts[0]} and {texts[1]}"
        f"{', ' + unit if unit else ''}{lengths}",
        episode=number,
        step=step,
        column=name,
        index=index,
        values=(texts[0], texts[1]),
        distance=distance,
    )


def _shown(kind: str, item: bytes) -> str:
    if kind == "f" and len(item) in _FLOATS:
        value = struct.unpack(f"<{_FLOATS[len(item)]}", item)[0]
        return f"nan (0x{item[::-1].hex()})" if math.isnan(value) else repr(_shortest(value, item))
    if kind in "iu":
        return str(int.from_bytes(item, "little", signed=kind == "i"))
    if kind == "b":
        return str(item != b"\0")
    return f"0x{item[::-1].hex()}"


def _shortest(value: float, item: bytes) -> float:
    """Return a float that prints with no more digits than its own type needs to be told from its neighbours."""
    code = _FLOATS[len(item)]
    for digits in range(1, 17):
        short = float(f"{value:.{digits}g}")
        try:
            if struct.pack(f"<{code}", short) == item:
                return short
        except OverflowError:  # rounded up beyond the type's largest number
            continue
    return value


def _unravelled(place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for length in reversed(shape):
        place, position = divmod(place, length)
        index.append(position)
    return tuple(reversed(index))
