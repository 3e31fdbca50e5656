"""Rows of plain numbers on their way to a column."""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from microsim_vm.controllers import MAX_BYTES
from microsim_vm.episode import Column
from microsim_vm.errors import RecordingError

Number = int | float
INSTALL = "pip install 'pytest-microsim[recordings]'"
_LARGEST = 1 << 63


class Rows:
    """Rows of equally many numbers.

    Args:
        source: The file, for messages.
        scalar: A row is one number, not a list of one.
    """

    def __init__(self, source: str, *, scalar: bool) -> None:
        self._source = source
        self._scalar = scalar
        self._width: int | None = None
        self._floats = array.array("d")
        self._wholes: array.array[int] | None = array.array("q")  # as long as all are

    def append(self, row: Sequence[Number], where: str) -> None:
        """Add a row.

        Args:
            row: Its numbers.
            where: Where it is from, for messages: "dock.csv:17", or "message 16 of /cmd_vel in dock.mcap".

        Raises:
            RecordingError: A number is none, there are not as many as in the rows before, or too many in all.
        """
        for number in row:
            if not math.isfinite(value := _float(number)):
                raise RecordingError(f"{where}: {value} is no number that a world can be driven with",
                                     hint="cut the recording there, or fill the gap")  # fmt: skip
        if self._width is None:
            self._width = len(row)
        if len(row) != self._width:
            raise RecordingError(f"{where}: {len(row)} numbers, and {self._width} before")
        self._floats.extend(row)
        if len(self._floats) * self._floats.itemsize > MAX_BYTES:
            raise RecordingError(f"{where}: there are more than {MAX_BYTES >> 20} MiB of actions")
        if self._wholes is not None:
            fits = all(isinstance(number, int) and -_LARGEST <= number < _LARGEST for number in row)
            if fits:
                self._wholes.extend(row)  # type: ignore[arg-type]
            else:
                self._wholes = None

    def column(self, *, as_fractions: bool) -> Column:
        """Return them as the column "action": whole numbers where all are, and floats else.

        Args:
            as_fractions: Floats in any case.

        Raises:
            RecordingError: There are none.
        """
        if not self._width:
            raise RecordingError(f"{self._source} is empty: it has not one action")
        flat: array.array[Any] = self._floats if self._wholes is None or as_fractions else self._wholes
        rows = len(flat) // self._width
        if sys.byteorder == "big":
            flat.byteswap()
        shape = (rows,) if self._scalar else (rows, self._width)
        return Column("action", "<i8" if flat.typecode == "q" else "<f8", shape, flat.tobytes())


def _float(number: Number) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf


class Timeline(NamedTuple):
    """Actions, and when they were.

    Attributes:
        moments: The rows' times; empty where nobody asked for them.
        unit: Of the times, where they have one of their own.
        rows: The actions.
    """

    moments: list[Number]
    unit: str | None
    rows: Rows


def names_of(names: Sequence[str]) -> str:
    """Return names for a message."""
    return ", ".join(map(repr, names)) or "nothing"
