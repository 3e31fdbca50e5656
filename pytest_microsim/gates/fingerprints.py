"""Fingerprints: one short name for everything that happened in an episode.

Two episodes have the same fingerprint if and only if every recorded number is the same, bit by bit. No
tolerance, and no canonical NaN: the question is whether one is a copy of the other, not whether they are
close.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class ColumnLike(Protocol):
    """The parts of a trajectory column that are hashed."""

    @property
    def dtype(self) -> str:
        """Little-endian numpy type string, such as ``"<f8"``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """``(rows, ...)``."""

    @property
    def data(self) -> bytes:
        """Row-major bytes."""


class Fingerprint:
    """A running hash over values. Each is written with its length, so that two cannot run together."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, value: Any) -> None:
        """Add a number, text, bytes, list, dict, array, or a nesting of these.

        Raises:
            TypeError: For any other type: its text may hold an address, and so differ between copies.
        """
        if value is None:
            self._part(b"0", b"")
        elif isinstance(value, bool):
            self._part(b"?", bytes([value]))
        elif isinstance(value, int):
            self._part(b"i", str(value).encode())
        elif isinstance(value, float):
            self._part(b"f", struct.pack("<d", value))
        elif isinstance(value, str):
            self._part(b"s", value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, bytes | bytearray | memoryview):
            self._part(b"b", bytes(value))
        elif isinstance(value, Mapping):
            self._part(b"{", str(len(value)).encode())
            for key in sorted(value, key=str):
                self.add(str(key))
                self.add(value[key])
        elif isinstance(value, list | tuple):
            self._part(b"[", str(len(value)).encode())
            for element in value:
                self.add(element)
        elif hasattr(value, "dtype") and hasattr(value, "tobytes"):
            self.add([str(value.dtype), list(value.shape), value.tobytes()])
        elif hasattr(value, "tolist"):
            self.add(value.tolist())
        else:
            raise TypeError(f"cannot fingerprint a {type(value).__name__}")

    def hexdigest(self) -> str:
        """Return 32 hex digits for everything added so far."""
        return self._hash.hexdigest()

    def _part(self, kind: bytes, data: bytes) -> None:
        self._hash.update(kind + len(data).to_bytes(8, "little"))
        self._hash.update(data)


def fingerprint_of_columns(columns: Mapping[str, ColumnLike]) -> str:
    """Return the fingerprint of a trajectory: names, types, shapes and bytes of its columns."""
    fingerprint = Fingerprint()
    for name in sorted(columns):
        column = columns[name]
        fingerprint.add([name, column.dtype, list(column.shape), column.data])
    return fingerprint.hexdigest()


def combined(fingerprints: Iterable[str]) -> str:
    """Return one fingerprint for the episodes of a rollout, in order."""
    fingerprint = Fingerprint()
    fingerprint.add(list(fingerprints))
    return fingerprint.hexdigest()
