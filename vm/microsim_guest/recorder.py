"""Record an episode as typed columns: raw bytes per name, one row per step."""

import array
from typing import Any, Dict, List, Set, Tuple

from microsim_guest import codec, wire

MAX_BYTES = 192 * 1024 * 1024
MAX_KEYS, MAX_KEY = 256, 100  # of a dict, and characters of each


class ShapeChanged(wire.KnownError):
    """A column's value changed its shape, type or keys during the episode."""

    kind = "world"


class Column:
    """Rows of one fixed dtype and shape."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dtype = ""
        self.shape: Tuple[int, ...] = ()
        self.data = bytearray()
        self.rows = 0

    def append(self, value: Any) -> None:
        """Add one row.

        Raises:
            ShapeChanged: The value does not fit the rows before it.
        """
        dtype, shape, raw = to_bytes(value)
        if not self.rows:
            self.dtype, self.shape = dtype, shape
        elif shape == self.shape and {dtype, self.dtype} == {"<i8", "<f8"}:
            # A whole number in one step and a fraction in another is one quantity, not two types.
            raw = self._as_floats(dtype, raw)
        elif (dtype, shape) != (self.dtype, self.shape):
            raise ShapeChanged(
                "{} changed from {}{} to {}{} at row {}".format(
                    self.name, self.dtype, list(self.shape), dtype, list(shape), self.rows
                )
            )
        self.data += raw
        self.rows += 1

    def drop_last(self) -> None:
        """Take back the row that was added last."""
        del self.data[len(self.data) - len(self.data) // self.rows :]
        self.rows -= 1

    def _as_floats(self, dtype: str, raw: bytes) -> bytes:
        """Turn the column, or else the new row, from integers into floats; return the row."""
        if dtype == "<i8":
            return array.array("d", array.array("q", raw)).tobytes()
        self.data = bytearray(array.array("d", array.array("q", bytes(self.data))).tobytes())
        self.dtype = "<f8"
        return raw


def to_bytes(value: Any) -> Tuple[str, Tuple[int, ...], bytes]:
    """Return ``(dtype, shape, little-endian bytes)`` of a number, a list of numbers or an array.

    Raises:
        TypeError: Not numeric.
    """
    if hasattr(value, "dtype") and hasattr(value, "tobytes") and value.dtype.kind in "fiub":
        kind = codec.portable(value.dtype)
        return kind, tuple(value.shape), value.astype(kind, copy=False).tobytes()
    if isinstance(value, bool):
        return "|b1", (), bytes([value])
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return "<i8", (), array.array("q", [value]).tobytes()
    if isinstance(value, (int, float)):
        return "<f8", (), array.array("d", [value]).tobytes()
    if isinstance(value, (list, tuple)):
        return _list_to_bytes(value)
    raise TypeError("expected numbers, got {}".format(type(value).__name__))


def _list_to_bytes(value: Any) -> Tuple[str, Tuple[int, ...], bytes]:
    if value and isinstance(value[0], (list, tuple)):
        rows = [_list_to_bytes(row) for row in value]
        if len({row[1] for row in rows}) != 1:
            raise TypeError("ragged list")
        return "<f8", (len(rows), *rows[0][1]), b"".join(row[2] for row in rows)
    # Lists are floats always: a list that holds 0 in one step and 0.5 in the next must not change its type.
    return "<f8", (len(value),), array.array("d", value).tobytes()


class Recorder:
    """All columns of one episode, bounded in total."""

    def __init__(self) -> None:
        self.columns: Dict[str, Column] = {}
        self._keys: Dict[str, Set[str]] = {}

    def append(self, name: str, value: Any) -> None:
        """Add one row to a column; a dict becomes one column per key. An error leaves all as it was.

        Raises:
            ShapeChanged: The value does not fit the rows before it.
            TypeError: Not numeric, or a dict of too many keys, or too long ones.
        """
        parts = codec.flatten(value)
        if len(parts) > MAX_KEYS or any(len(suffix) > MAX_KEY for suffix in parts):
            raise TypeError("a dict has at most {} keys of {} characters".format(MAX_KEYS, MAX_KEY))
        keys = self._keys.setdefault(name, set(parts))
        if keys != set(parts):
            raise ShapeChanged("{} changed its keys from {} to {}".format(name, sorted(keys), sorted(parts)))
        added: List[Column] = []
        try:
            for suffix, part in parts.items():
                column = self.columns.setdefault(name + suffix, Column(name + suffix))
                column.append(part)
                added.append(column)
        except (ShapeChanged, TypeError, ValueError, OverflowError, RecursionError):
            for column in added:
                column.drop_last()
            for suffix in parts:
                if name + suffix in self.columns and not self.columns[name + suffix].rows:
                    del self.columns[name + suffix]
            raise

    def check_size(self) -> None:
        """Raise ``MemoryError`` when the columns have outgrown what one answer may carry."""
        size = sum(len(column.data) for column in self.columns.values())
        if size > MAX_BYTES:
            raise MemoryError("the trajectory is larger than {} MiB".format(MAX_BYTES >> 20))

    def describe(self) -> Tuple[List[Dict[str, Any]], List[bytes]]:
        """Return the columns' description and their bytes, sorted by name."""
        ordered = [self.columns[name] for name in sorted(self.columns)]
        return (
            [{"name": c.name, "dtype": c.dtype, "shape": [c.rows, *c.shape]} for c in ordered],
            [bytes(c.data) for c in ordered],
        )
