"""Rows of plain numbers on their way to a column."""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

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
        self._rows: list[Sequence[Number]] = []
        self._whole = True

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, row: Sequence[Number], where: str) -> None:
        """Add a row.

        Args:
            row: Its numbers.
            where: Where it is from, for messages: "dock.csv:17", or "message 16 of /cmd_vel in dock.mcap".

        Raises:
            RecordingError: A number is none, or there are not as many as in the rows before.
        """
        for number in row:
            if not math.isfinite(number):
                raise RecordingError(f"{where}: {number} is no number that a world can be driven with",
                                     hint="cut the recording there, or fill the gap")  # fmt: skip
            self._whole = self._whole and isinstance(number, int) and -_LARGEST <= number < _LARGEST
        if self._rows and len(row) != len(self._rows[0]):
            raise RecordingError(f"{where}: {len(row)} numbers, and {len(self._rows[0])} before")
        self._rows.append(row)

    def column(self, *, as_fractions: bool) -> Column:
        """Return them as the column "action": whole numbers where all are, and floats else.

        Args:
            as_fractions: Floats in any case.

        Raises:
            RecordingError: There are none.
        """
        if not self._rows:
            raise RecordingError(f"{self._source} is empty: it has not one row of actions")
        whole = self._whole and not as_fractions
        flat = array.array("q" if whole else "d", [number for row in self._rows for number in row])
        if sys.byteorder == "big":
            flat.byteswap()
        shape = (len(self._rows),) if self._scalar else (len(self._rows), len(self._rows[0]))
        return Column("action", "<i8" if whole else "<f8", shape, flat.tobytes())


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
