"""Sizes and durations as people write them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

_SIZES = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def size(text: str) -> int:
    """Return the bytes of a size such as ``20G``, ``1.5 GiB``, ``500M`` or ``4096B``; units are powers of 1024.

    Raises:
        argparse.ArgumentTypeError: It is none, or has no unit and is not 0.
    """
    if text == "0":
        return 0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?|B)", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size{_unit_lacks(text)}: write 500M or 20G")
    return int(float(match.group(1)) * _SIZES[(match.group(2) or "B").upper()])


def memory(lowest: int, highest: int) -> Callable[[str], int]:
    """Return what reads MiB from ``lowest`` to ``highest``: ``512``, or a size such as ``1G``."""

    def read(text: str) -> int:
        mib = int(text) if re.fullmatch(r"\d{1,9}", text) else size(text) / (1 << 20)
        if mib != int(mib) or not lowest <= mib <= highest:
            raise argparse.ArgumentTypeError(f"{text!r} is not from {lowest} to {highest} MiB: write 512 or 1G")
        return int(mib)

    return read


def age(text: str) -> float:
    """Return the seconds of a duration that has a unit, or is 0.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if text != "0" and re.fullmatch(r"[\d.]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an age{_unit_lacks(text)}: write 12h or 7d")
    return duration(text)


def _unit_lacks(text: str) -> str:
    return ", it has no unit" if re.fullmatch(r"[\d.]+", text) else ""


def duration(text: str) -> float:
    """Return the seconds of a duration such as ``7d``, ``12h``, ``90m``, ``30s`` or ``30``.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: write 30s, 90m, 12h or 7d")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def limit(text: str) -> float | None:
    """Return a duration above zero in seconds, or None for ``never``.

    Raises:
        argparse.ArgumentTypeError: It is neither.
    """
    if text == "never":
        return None
    seconds = duration(text)
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time at all: write 30s, 90m, 12h, 7d or never")
    return seconds


def whole(lowest: int, highest: int) -> Callable[[str], int]:
    """Return what reads a whole number from ``lowest`` to ``highest``."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or not lowest <= int(text) <= highest:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {lowest} to {highest}")
        return int(text)

    return read


def size_text(count: float) -> str:
    """Return bytes in the unit that suits them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def duration_text(seconds: float) -> str:
    """Return a duration in the largest unit of which there is more than one."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
