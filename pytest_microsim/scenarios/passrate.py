"""Whether so many seeds of a group have passed as a scenario asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..statistics.intervals import clopper_pearson, clopper_pearson_lower
from .spec import PassRate


@dataclass(frozen=True)
class Assessment:
    """What a group's passes amount to.

    Attributes:
        met: The scenario asks for no more.
        possible: A group of this size could have met it.
        message: One sentence.
    """

    met: bool
    possible: bool
    message: str


def seeds_needed(rate: PassRate) -> int | None:
    """Return the least number of seeds that can reach the rate if all of them pass; None where no number can."""
    if rate.by == "rate":
        return 1
    if rate.at_least >= 1.0:
        return None
    fewest = max(1, math.floor(math.log(1.0 - rate.confidence) / math.log(rate.at_least)))
    while clopper_pearson_lower(fewest, fewest, rate.confidence) < rate.at_least:
        fewest += 1
    return fewest


def assess(rate: PassRate, passed: int, total: int) -> Assessment:
    """Judge a group in which every seed has passed or missed.

    Args:
        rate: What the scenario asks for.
        passed: How many seeds have passed.
        total: How many there are, at least 1.
    """
    if rate.by == "bound":
        reached = clopper_pearson_lower(passed, total, rate.confidence)
        what = f"the lower bound of its {rate.confidence:.4g} confidence interval is {reached:.4f}"
    else:
        reached = passed / total
        low, high = clopper_pearson(passed, total, rate.confidence)
        what = f"{rate.confidence:.4g} confidence interval {low:.4f} to {high:.4f}"
    met = reached >= rate.at_least
    asked = f"asked for: {rate.at_least:g}"
    needed = seeds_needed(rate)
    return Assessment(
        met=met,
        possible=needed is not None and total >= needed,
        message=f"{passed} of {total} seeds passed ({passed / total:.4f}; {what}), {asked} by {rate.by}",
    )
