"""Recorded actions that drive a world in place of a controller, read from the formats that robots are recorded in."""

from __future__ import annotations

import array
import itertools
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from microsim_guest import wire
from microsim_vm.controllers import MAX_BYTES, Controller
from microsim_vm.episode import Column
from microsim_vm.errors import RecordingError

from ..calls import raises_at_the_call

By = Literal["time", "step"]
Hold = Literal["previous", "linear"]
PER_SECOND = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}
TABLES = (".csv", ".parquet")
MOST_STEPS = 10_000_000  # of an episode whose recording ends by time
TOLERANCE = 0.01  # of the shortest time between two rows; a world's time is often a sum of steps
MOST_TOLERANCE_S = 1e-3


@dataclass(frozen=True)
class Recording:
    """Actions over time, for ``rollout.run``.

    Attributes:
        source: The file it is from, for messages.
        columns: "action", or "action.<key>" for each part of an action that is a dict; a row each.
        times: Seconds of each row since the first one, ascending; empty where rows are taken one by one.
        by: "time": in each step the row that is in force at the world's simulated time. "step": a row for each step.
        hold: What lies between two rows: the one before ("previous"), or a line between the two ("linear").
        step_seconds: Simulated seconds of one step, for a world that tells no time; else None.
    """

    source: str
    columns: Mapping[str, Column] = field(repr=False)
    times: Sequence[float] = field(default=(), repr=False)
    by: By = "step"
    hold: Hold = "previous"
    step_seconds: float | None = None

    def __post_init__(self) -> None:
        _check_choices(self)
        if not self.columns:
            raise RecordingError(f"{self.source} has no actions")
        rows = {len(column) for column in self.columns.values()}
        if rows == {0}:
            raise RecordingError(f"{self.source} is empty: it has not one row of actions")
        if len(rows) > 1:
            raise RecordingError(f"{self.source} is damaged: its parts of actions have different numbers of rows")
        if self.by == "time":
            _check_times(self.source, self.times, len(self))
        if sum(len(column.data) for column in self.columns.values()) > MAX_BYTES:
            raise RecordingError(f"{self.source} has more than {MAX_BYTES >> 20} MiB of actions")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @classmethod
    @raises_at_the_call
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        topic: str | None = None,
        field: str | Sequence[str] | None = None,
        time: str | None = None,
        time_unit: Literal["s", "ms", "us", "ns"] = "s",
        by: By | None = None,
        hold: Hold = "previous",
        step_seconds: float | None = None,
    ) -> Recording:
        """Read a recording.

        Args:
            path: A table (``.csv`` or ``.parquet``), an MCAP file, or a rosbag2 (its folder, or its ``.db3``). An
                episode that ``--microsim-trajectories`` wrote needs no further argument, and gives the same episode
                again, bit by bit.
            topic: The messages' topic; only where there are several.
            field: The numbers of an action, in order: a table's columns (all but the time by default), or messages'
                fields, with dots: ``["linear.x", "angular.z"]``.
            time: A table's column of times ("time" by default), or messages' field of them, such as "header.stamp"
                (when they were logged by default).
            time_unit: Of a time that is a plain number.
            by: "time" (the default) or "step" (that of an episode's file); see the class.
            hold: "previous" or "linear"; see the class.
            step_seconds: Simulated seconds of one step, where the world tells no time.

        Raises:
            RecordingError: There is no such file, what reads it is not installed, or it cannot be used; the message
                names file, and line, row or message.
        """
        file = Path(path)
        if not file.exists():
            raise RecordingError(f"there is no recording {str(file)!r}",
                                 hint="a relative path is in the working directory; beside a test it is "
                                 "Path(__file__).parent / ...")  # fmt: skip
        _one_of("by", by or "time", ("time", "step"))
        _one_of("time_unit", time_unit, tuple(PER_SECOND))
        fields = [field] if isinstance(field, str) else None if field is None else list(field)
        how: dict[str, Any] = {"hold": hold, "step_seconds": step_seconds}
        kind = file.suffix.lower()
        if kind == ".mcap" and topic is None:
            from . import bags

            if bags.is_episode(file):
                if fields is not None or time is not None:
                    raise RecordingError(f"{file} is an episode, whose actions are taken whole",
                                         hint="leave out field and time")  # fmt: skip
                return _of_episode(file, by or "step", how)
        if kind in TABLES:
            from . import tables

            if topic is not None:
                raise RecordingError(f"{file} is a table, and has no topic {topic!r}", hint="leave topic out")
            wanted = "" if by == "step" else time or "time"
            found = tables.read(file, fields, wanted)
        else:
            from . import bags

            found = bags.read(file, topic, fields, time)
        column = found.rows.column(as_fractions=hold == "linear")
        if by == "step":
            return cls(str(file), {"action": column}, (), "step", **how)
        times = _since_first(str(file), found.moments, found.unit or time_unit)
        return cls(str(file), {"action": column}, times, "time", **how)

    @classmethod
    def of_trajectory(cls, trajectory: Mapping[str, Column], source: str = "trajectory") -> Recording:
        """Return the actions of an episode's trajectory, a row for each step.

        Raises:
            RecordingError: It has none.
        """
        return cls(source, {name: column for name, column in trajectory.items() if _is_action(name)})

    @property
    def most_steps(self) -> int:
        """How many steps an episode of it may have: it is to end with the recording."""
        return len(self) + 1 if self.by == "step" else MOST_STEPS

    def controller(self) -> Controller:
        """Return it in the form in which it goes to a guest."""
        columns = [self.columns[name] for name in sorted(self.columns)]
        gaps = [after - before for before, after in itertools.pairwise(self.times)]
        # The last row is in force for as long as the one before it was; a single one for one step.
        until = self.times[-1] + gaps[-1] if gaps else MOST_TOLERANCE_S * 2
        header = {
            "columns": [{"name": each.name, "dtype": each.dtype, "shape": list(each.shape)} for each in columns],
            "by": self.by,
            "hold": self.hold,
            "step_s": self.step_seconds,
            "until_s": until,
            "tolerance_s": min([MOST_TOLERANCE_S, *(TOLERANCE * gap for gap in gaps)]),
        }
        times = array.array("d", self.times)
        if sys.byteorder == "big":
            times.byteswap()
        packed = wire.encode(header, [times.tobytes(), *(each.data for each in columns)])
        return Controller(packed, Path(self.source).name, "recording")


def _of_episode(file: Path, by: By, how: dict[str, Any]) -> Recording:
    from ..errors import TrajectoryError
    from .mcap import read_episode

    try:
        trajectory, told = read_episode(file)
    except TrajectoryError as error:
        raise RecordingError(error.what, cause=error.cause, hint=error.hint) from None
    columns = {name: column for name, column in trajectory.items() if _is_action(name)}
    if by == "step":
        return Recording(str(file), columns, **how)
    if "step_s" not in told:
        raise RecordingError(f"{file} tells no time: its world did not", hint='use it with by="step"')
    step_s = float(told["step_s"])
    times = [row * step_s for row in range(len(next(iter(columns.values()), ())))]
    return Recording(str(file), columns, times, "time", **how)


def _is_action(name: str) -> bool:
    return name == "action" or name.startswith("action.")


def _since_first(source: str, moments: Sequence[int | float], unit: str) -> list[float]:
    """Return times in seconds since the first; whole numbers are subtracted as such, and lose nothing."""
    try:
        return [(moment - moments[0]) / PER_SECOND[unit] for moment in moments]
    except OverflowError:  # whole numbers of hundreds of digits
        raise RecordingError(f"{source} has times that are out of all range") from None


def _one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise RecordingError(f"{name} is one of {', '.join(known)}, not {value!r}")


def _check_choices(recording: Recording) -> None:
    _one_of("by", recording.by, ("time", "step"))
    _one_of("hold", recording.hold, ("previous", "linear"))
    if recording.hold == "linear" and recording.by == "step":
        raise RecordingError("a recording that is taken row by row has nothing between two rows to draw a line through",
                             hint='leave out hold="linear", or use by="time"')  # fmt: skip
    if recording.hold == "linear" and any(column.dtype[1] != "f" for column in recording.columns.values()):
        raise RecordingError(f"the actions of {recording.source} are whole numbers, with nothing between two of them",
                             hint='leave out hold="linear"')  # fmt: skip
    step = recording.step_seconds
    usable = isinstance(step, int | float) and not isinstance(step, bool) and math.isfinite(step) and step > 0
    if step is not None and not usable:
        raise RecordingError(f"step_seconds is a number of seconds, more than 0, not {step!r}")


def _check_times(source: str, times: Sequence[float], rows: int) -> None:
    if len(times) != rows:
        raise RecordingError(f"{source} has {rows} rows of actions, and {len(times)} times")
    for row, moment in enumerate(times):
        if not math.isfinite(moment):
            raise RecordingError(f"{source}: the time of row {row} is {moment}")
    for row, (before, after) in enumerate(itertools.pairwise(times)):
        if not after > before:
            raise RecordingError(
                f"{source}: the times do not ascend: row {row + 1} is {after - before:g} s after row {row}",
                cause="recordings were joined, or the clock was set back",
                hint='cut it there, or use another time, or none: by="step"',
            )
