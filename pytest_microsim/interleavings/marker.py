"""What the marker ``interleavings`` asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from microsim_vm.errors import SeedError

from ..errors import MarkerError
from ..markers import mark_location
from ..seeds import MAX_GROUP, check_seeds
from ..state import RUN

NAME = "interleavings"
REGISTERED = (
    "interleavings(schedules, exhaustive=False): run each seed of the test once per schedule, each in a deterministic "
    "microVM of its own, in which the schedule decides when which thread runs. schedules is a number, as in "
    "interleavings(200), or a range, list or tuple of distinct ints >= 0. Once a schedule has failed, those after it "
    "are skipped; with exhaustive=True all are run. The test must use the rollout fixture."
)


@dataclass(frozen=True)
class Interleavings:
    """The values of ``@pytest.mark.interleavings(...)``.

    Attributes:
        schedules: The numbers of the schedules, in the order in which they are tried.
        exhaustive: Whether schedules are run although one before them has failed.
    """

    schedules: Sequence[int]
    exhaustive: bool = False


def interleavings_of(node: pytest.Item) -> Interleavings | None:
    """Return what a test's closest marker asks for, with the schedules of the command line where it has some.

    Returns:
        None for a test without the marker.

    Raises:
        MarkerError: It is none that can be used, or contradicts another marker.
    """
    owner, mark = next(node.iter_markers_with_node(NAME), (None, None))
    if mark is None:
        return None
    try:
        found = _read(mark)
    except SeedError as error:
        raise MarkerError(f"{mark_location(owner, NAME)}: @pytest.mark.interleavings: {error}") from None
    if any(each.kwargs.get("repeat", 1) != 1 for each in node.iter_markers("microsim")):
        raise MarkerError(
            f"{mark_location(owner, NAME)}: @pytest.mark.interleavings: the test has repeat too, and a schedule is run "
            "once; take one of the two out"
        )
    asked = node.config.stash[RUN].settings.interleavings
    return Interleavings(asked, found.exhaustive) if asked else found


def schedule_ids(schedules: Sequence[int]) -> list[str]:
    """Name each schedule: all names have one width, so that ``-k`` can select one."""
    width = max(4, len(str(max(schedules))))
    return [f"schedule-{schedule:0{width}d}" for schedule in schedules]


def _read(mark: pytest.Mark) -> Interleavings:
    given: dict[str, Any] = dict(mark.kwargs)
    if mark.args:
        if len(mark.args) > 1 or "schedules" in given:
            raise SeedError("it takes one number, or one list, of schedules", hint="write interleavings(200)")
        given["schedules"] = mark.args[0]
    unknown = sorted(given.keys() - {"schedules", "exhaustive"})
    if unknown or "schedules" not in given:
        what = f"unknown name {unknown[0]!r}" if unknown else "it takes a number of schedules"
        raise SeedError(what, hint="write interleavings(200), or interleavings(200, exhaustive=True)")
    exhaustive = given.get("exhaustive", False)
    if not isinstance(exhaustive, bool):
        raise SeedError(f"exhaustive is True or False, not {exhaustive!r}")
    schedules = given["schedules"]
    if isinstance(schedules, int) and not isinstance(schedules, bool):
        if not 1 <= schedules <= MAX_GROUP:
            raise SeedError(f"{schedules} is no number of schedules", hint=f"write a number from 1 to {MAX_GROUP}")
        schedules = range(schedules)
    try:
        return Interleavings(check_seeds(schedules), exhaustive)
    except SeedError as error:
        raise SeedError(f"schedules are given as seeds are: {error}") from None
