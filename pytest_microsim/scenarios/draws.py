"""What the parameters of a rollout are: points of the grids, and values drawn for each seed.

A value depends on nothing but the file's ``parameters_seed``, the rollout's seed and the parameter's own name, so that
a parameter added to a file changes no other one. Bits come from SHA-256, and every step from there on is written
down here, so that no version of Python or of a library changes a draw.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .spec import Normal, Parameter

_PLAIN = re.compile(r"[A-Za-z0-9_.+-]{1,40}")
_WORD_BITS = 64


@dataclass(frozen=True)
class Point:
    """One combination of the grids' values.

    Attributes:
        id: What it is called in a test's id; empty where there is no grid.
        values: The values, by the parameters' names.
    """

    id: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def points(parameters: Mapping[str, Parameter]) -> list[Point]:
    """Return all points of the grids, the last one's values changing fastest; one without values without grids."""
    grids = {name: parameter.grid for name, parameter in parameters.items() if parameter.grid is not None}
    named = [[(f"{name}={_text(value, index)}", value) for index, value in enumerate(grid)]
             for name, grid in grids.items()]  # fmt: skip
    return [
        Point("-".join(text for text, _ in chosen), dict(zip(grids, (value for _, value in chosen), strict=True)))
        for chosen in itertools.product(*named)
    ]


def drawn(
    parameters: Mapping[str, Parameter], point: Mapping[str, Any], seed: int, parameters_seed: int = 0
) -> dict[str, Any]:
    """Return all parameters of one rollout.

    Args:
        parameters: As the file has them.
        point: The values of its grids.
        seed: The rollout's seed.
        parameters_seed: The file's.
    """
    return {
        name: point[name] if parameter.grid is not None else _value(parameter, _Bits(parameters_seed, seed, name))
        for name, parameter in parameters.items()
    }


class _Bits:
    """Random bits of one parameter of one rollout: SHA-256 of a key and a counter."""

    def __init__(self, parameters_seed: int, seed: int, name: str) -> None:
        text = f"pytest-microsim parameter\0{parameters_seed}\0{seed}\0{name}"
        self._key = hashlib.sha256(text.encode()).digest()
        self._count = 0

    def word(self) -> int:
        """Return the next 64 bits."""
        block = hashlib.sha256(self._key + self._count.to_bytes(8, "little")).digest()
        self._count += 1
        return int.from_bytes(block[:8], "little")

    def unit(self) -> float:
        """Return a number between 0 and 1, neither of them: the middle of one of 2**52 equal parts."""
        return ((self.word() >> 12) + 0.5) * 2.0**-52

    def below(self, count: int) -> int:
        """Return a whole number from 0 to below ``count``, each as likely: what would favour some is drawn again."""
        most = (1 << _WORD_BITS) - (1 << _WORD_BITS) % count
        while (word := self.word()) >= most:
            pass
        return word % count


def _value(parameter: Parameter, bits: _Bits) -> Any:
    if parameter.uniform is not None:
        low, high = parameter.uniform
        return _within(low + (high - low) * bits.unit(), low, high)
    if parameter.log_uniform is not None:
        low, high = parameter.log_uniform
        return _within(math.exp(math.log(low) + (math.log(high) - math.log(low)) * bits.unit()), low, high)
    if parameter.normal is not None:
        return _normal(parameter.normal, bits)
    if parameter.integers is not None:
        first, last = parameter.integers
        return first + bits.below(last - first + 1)
    if parameter.choice is not None:
        return parameter.choice[bits.below(len(parameter.choice))]
    return parameter.value


def _normal(normal: Normal, bits: _Bits) -> float:
    """Draw until a value is within the ends; the file was refused if they leave less than a thousandth."""
    whole = statistics.NormalDist(normal.mean, normal.sd)
    low = -math.inf if normal.min is None else normal.min
    high = math.inf if normal.max is None else normal.max
    while True:
        value = whole.inv_cdf(bits.unit())
        if low <= value <= high:
            return _within(value, low, high)


def _within(value: float, low: float, high: float) -> float:
    """Round to 12 digits, where mathematical libraries agree, and keep the ends."""
    return min(max(float(f"{value:.12g}"), low), high)


def _text(value: Any, index: int) -> str:
    """Return what a value of a grid is called in a test's id: itself, or its place where that is no plain text."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
    return text if not isinstance(value, list | dict) and _PLAIN.fullmatch(text) else f"item{index}"
