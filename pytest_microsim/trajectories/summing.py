"""Least, greatest, mean and spread of many rows, a part at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Summed:
    """What is known of rows of numbers without keeping them; of each number in a row apart.

    Numbers that are not finite count for nothing.

    Attributes:
        count: How many rows.
        known: How many of them are finite.
        least, greatest, mean, squares: Of these; ``squares`` is the sum of squared distances from the mean.
    """

    count: int
    known: Any
    least: Any
    greatest: Any
    mean: Any
    squares: Any

    @classmethod
    def of(cls, values: Any) -> Summed:
        """Sum up an array of (rows, numbers)."""
        import numpy as np

        numbers = values.astype("<f8")
        finite = np.isfinite(numbers)
        known = finite.sum(axis=0)
        mean = np.where(finite, numbers, 0.0).sum(axis=0) / np.maximum(known, 1)
        return cls(
            len(values),
            known,
            np.where(finite, numbers, np.inf).min(axis=0),
            np.where(finite, numbers, -np.inf).max(axis=0),
            mean,
            np.square(np.where(finite, numbers - mean, 0.0)).sum(axis=0),
        )

    def __add__(self, other: Summed) -> Summed:
        import numpy as np

        known = np.maximum(self.known + other.known, 1)
        away = other.mean - self.mean
        return Summed(
            self.count + other.count,
            self.known + other.known,
            np.minimum(self.least, other.least),
            np.maximum(self.greatest, other.greatest),
            self.mean + away * other.known / known,
            self.squares + other.squares + away**2 * self.known * other.known / known,
        )

    def stats(self) -> dict[str, list[float] | list[int]]:
        """Return them as LeRobot names them: lists with one item per number; 0 where nothing is finite."""
        import numpy as np

        some = self.known > 0
        spread = np.sqrt(self.squares / np.maximum(self.known, 1))
        found = {"min": self.least, "max": self.greatest, "mean": self.mean, "std": spread}
        return {**{name: np.where(some, value, 0.0).tolist() for name, value in found.items()}, "count": [self.count]}
