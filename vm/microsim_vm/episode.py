"""What an episode leaves behind: its outcome, and its trajectory as typed columns."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
from microsim_guest import codec

from microsim_vm import scores
from microsim_vm.errors import (
    ControllerError,
    ControllerLateError,
    ControllerLimitError,
    ControllerTimeoutError,
    InvalidEpisodeError,
    MicrosimError,
    RecordingError,
)
from microsim_vm.film import Film

LIMITS = {
    "pids.max": "it was at its process limit (controller.processes)",
    "memory.oom_kill": "it was killed over its memory limit (controller.memory_mib)",
    "cpu": "it was killed over its limit of processor time (controller.cpu_s)",
    "workspace.bytes": "its workspace was full (controller.workspace_mib)",
    "workspace.files": "it had as many files as it may (controller.workspace_files)",
}
_DTYPE = re.compile(r"[<|][fiub]([0-9]{1,2})")


def _item_size(dtype: str) -> int:
    """Return the bytes of one item of a little-endian array-protocol type.

    Raises:
        ValueError: It is none.
    """
    found = _DTYPE.fullmatch(dtype)
    if found is None:
        raise ValueError(f"{dtype!r} is no type of numbers")
    return int(found.group(1))


@dataclass(frozen=True)
class Column:
    """One named quantity over the steps of an episode.

    ``numpy.asarray(column)`` is a view without a copy; without numpy, :meth:`tolist` and indexing work too.

    Attributes:
        name: "observation", "action", "reward", "state", or "observation.<key>".
        dtype: Little-endian array-protocol type, such as "<f8".
        shape: (rows, ...).
        data: The raw bytes, C order.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes = field(repr=False)

    @classmethod
    def checked(cls, name: str, dtype: str, shape: tuple[int, ...], data: bytes) -> Column:
        """Return a column that a guest describes.

        Raises:
            ValueError: Its bytes are not as many as it says.
        """
        if not shape or len(data) != math.prod(shape) * _item_size(dtype):
            raise ValueError(f"{name} has {len(data)} bytes, and is said to be {dtype}{list(shape)}")
        return cls(name, dtype, shape, data)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "typestr": self.dtype, "shape": self.shape, "data": self.data}

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return codec.nested(self.dtype, self.shape[1:], self.row_bytes(index % len(self)))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def row_bytes(self, index: int) -> bytes:
        """Return one row's bytes."""
        size = math.prod(self.shape[1:]) * _item_size(self.dtype)
        return self.data[index * size : (index + 1) * size]

    def tolist(self) -> list[Any]:
        """Return nested lists of plain numbers."""
        result: list[Any] = codec.nested(self.dtype, self.shape, self.data)
        return result


_CallName = Annotated[str, msgspec.Meta(pattern=r"\A-?[a-z0-9_]{1,40}\Z")]


class End(msgspec.Struct):
    """What the place that a controller ran at says of its end.

    Attributes:
        exit_code: Negative signal number when killed.
        events: How often it was at which limit.
        left: Processes that it left behind.
        refused: System calls by name.
        output: Bytes that it wrote to stdout, and to stderr.
    """

    exit_code: int
    ended: bool
    events: dict[str, int]
    left: int
    refused: Annotated[dict[_CallName, int], msgspec.Meta(max_length=1000)]
    output: tuple[int, int]


@dataclass(frozen=True)
class EpisodeRecord:
    """One run of a controller in a world, from reset to end.

    Attributes:
        seed: The episode's seed.
        steps: Steps taken.
        terminated: The world ended the episode.
        truncated: A time or step limit ended it.
        total_reward: Sum of the rewards; NaN where they add up to no finite number.
        metrics: The episode's scores: see :mod:`microsim_vm.scores`.
        columns: The trajectory by column name. "observation" and "state" have steps + 1 rows, the first being
            the initial one; "action" and "reward" have one row per step.
        wall_ms: Duration in the guest, milliseconds.
        controller_stdout: What the controller printed, bounded.
        controller_stderr: Likewise.
        error: Why the controller failed, or the episode is invalid; None where neither is so.
        limit: What of ours truncated it: "steps", "time" (simulated), "recording" (it was at its end); else "".
        late_steps: Steps whose deadline the controller missed.
        simulated_s: Seconds of the world's own time; None where it tells none.
        attempts: What the controller tried, or did, that no controller should, one line each.
        options: What ``reset`` was given beside the seed.
        film: The pictures that were asked for; None where none were.
        schedule: Of a deterministic machine, the number of its interleaving; else None.
        run_digest: Of a deterministic machine, a digest of its whole memory and devices at the end, hex; else "".
    """

    seed: int
    steps: int
    terminated: bool
    truncated: bool
    total_reward: float
    metrics: dict[str, float]
    columns: dict[str, Column]
    wall_ms: float
    controller_stdout: bytes
    controller_stderr: bytes
    error: MicrosimError | None
    limit: str = ""
    late_steps: int = 0
    simulated_s: float | None = None
    attempts: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    film: Film | None = None
    schedule: int | None = None
    run_digest: str = ""


def from_answer(
    result: dict[str, Any], blobs: tuple[bytes, ...], *, seed: int, score: Path | None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> EpisodeRecord:  # fmt: skip
    """Build a record from the world host's answer, of which the columns are believed and the rest is checked.

    Args:
        result: The answer.
        blobs: Its attachments.
        seed: The episode's.
        score: The template's scorer, where it has one.
        options: What ``reset`` was given.

    Raises:
        ScoreError: It cannot be run.
        LookupError, TypeError, ValueError: The answer is not as it should be.
    """
    described = result["columns"]
    stdout, stderr, *data = blobs
    columns = {
        spec["name"]: Column.checked(spec["name"], spec["dtype"], tuple(spec["shape"]), raw)
        for spec, raw in zip(described, data[: len(described)], strict=True)
    }
    steps = _steps(columns)
    end = msgspec.convert(result["controller"], type=End)
    error = _driver_error(result["error"], end)
    total, metrics = math.nan, {}
    try:
        total = scores.total(columns.get("reward"))
        metrics = scores.checked(codec.unpack(result["metrics"], data[len(described) :]), "the world")
        if score is not None:
            metrics.update(scores.scored(score, columns))
    except InvalidEpisodeError as invalid:
        error = error or invalid
    return EpisodeRecord(
        seed=seed,
        steps=steps,
        terminated=msgspec.convert(result["terminated"], bool),
        truncated=msgspec.convert(result["truncated"], bool),
        limit=msgspec.convert(result["limit"], str),
        total_reward=total,
        metrics=metrics,
        columns=columns,
        late_steps=msgspec.convert(result["late_steps"], int),
        simulated_s=msgspec.convert(result["simulated_s"], float | None),
        wall_ms=msgspec.convert(result["wall_ms"], float),
        controller_stdout=stdout,
        controller_stderr=stderr,
        attempts=_attempts(end, (len(stdout), len(stderr))),
        options=dict(options),
        error=error,
    )


def _steps(columns: dict[str, Column]) -> int:
    """Return how many steps the columns have; all have to agree."""
    steps = len(columns["reward"]) if "reward" in columns else 0
    for name, column in columns.items():
        rows = steps if name.partition(".")[0] in ("action", "reward") else steps + 1
        if len(column) != rows:
            raise ValueError(f"{name} has {len(column)} rows, and there were {steps} steps")
    return steps


def _attempts(end: End, kept: tuple[int, int]) -> tuple[str, ...]:
    lines = [f"the system call {name} was refused, {_times(count)}" for name, count in sorted(end.refused.items())]
    lines += [text for event, text in LIMITS.items() if end.events.get(event)]
    if end.left:
        lines.append(f"it left processes behind, which were killed: {end.left}")
    for stream, written, there in zip(("stdout", "stderr"), end.output, kept, strict=True):
        if written > there:
            lines.append(f"it wrote {written} bytes to {stream}, more than are kept (controller.output_bytes)")
    return tuple(lines)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _driver_error(error: dict[str, Any] | None, end: End) -> MicrosimError | None:
    if error is None:
        return None
    if error["kind"] == "recording":
        return RecordingError(error["message"], hint="choose the columns or fields that the world takes, in its order")
    if error["kind"] == "controller_timeout":
        return ControllerTimeoutError(
            error["message"], cause="it hangs, or the limit is too low for this machine",
            hint="raise controller.wall_time_s in the template, or pass timeout_seconds",
        )  # fmt: skip
    if error["kind"] == "controller_late":
        return ControllerLateError(
            error["message"], cause="it takes too long, or the deadline is too short for this machine",
            hint="raise controller.step_deadline_s"
            + (", or let such steps go on: controller.late: hold" if "is fail" in error["message"] else ""),
        )  # fmt: skip
    cause = ", and ".join(text for event, text in LIMITS.items() if end.events.get(event))
    if cause:
        return ControllerLimitError(error["message"], cause=cause, details=error["traceback"])
    if error["kind"] == "controller_ended":
        code = end.exit_code
        cause = (
            "it closed its link, and went on"
            if not end.ended
            else f"it was killed by signal {-code}"
            if code < 0
            else f"it exited with {code}"
        )
    return ControllerError(error["message"], cause=cause, details=error["traceback"])
