"""What an episode leaves behind: its outcome, and its trajectory as typed columns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from microsim_guest import codec

from microsim_vm.errors import ControllerError, ControllerTimeoutError, MicrosimError

LIMITS = {
    "pids.max": "it was at its process limit (controller.processes)",
    "memory.oom_kill": "it was killed over its memory limit (controller.memory_mib)",
}
_ITEM_SIZES = {"|b1": 1, "|i1": 1, "|u1": 1}


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
        size = math.prod(self.shape[1:]) * _ITEM_SIZES.get(self.dtype, int(self.dtype[2:]))
        return self.data[index * size : (index + 1) * size]

    def tolist(self) -> list[Any]:
        """Return nested lists of plain numbers."""
        result: list[Any] = codec.nested(self.dtype, self.shape, self.data)
        return result


@dataclass(frozen=True)
class EpisodeRecord:
    """One run of a controller in a world, from reset to end.

    Attributes:
        seed: The episode's seed.
        steps: Steps taken.
        terminated: The world ended the episode.
        truncated: A time or step limit ended it.
        total_reward: Sum of the rewards.
        metrics: The world's scores, or the numeric scalars of its last ``info``.
        columns: The trajectory by column name. "observation" and "state" have steps + 1 rows, the first being
            the initial one; "action" and "reward" have one row per step.
        wall_ms: Duration in the guest, milliseconds.
        controller_stdout: What the controller printed, bounded.
        controller_stderr: Likewise.
        error: Why the controller failed, or None.
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


def from_answer(result: dict[str, Any], blobs: tuple[bytes, ...], *, seed: int) -> EpisodeRecord:
    """Build a record from the world host's answer."""
    stdout, stderr, *data = blobs
    columns = {
        spec["name"]: Column(spec["name"], spec["dtype"], tuple(spec["shape"]), raw)
        for spec, raw in zip(result["columns"], data, strict=True)
    }
    return EpisodeRecord(
        seed=seed,
        steps=result["steps"],
        terminated=result["terminated"],
        truncated=result["truncated"],
        total_reward=result["total_reward"],
        metrics=result["metrics"],
        columns=columns,
        wall_ms=result["wall_ms"],
        controller_stdout=stdout,
        controller_stderr=stderr,
        error=_controller_error(result),
    )


def _controller_error(result: dict[str, Any]) -> ControllerError | None:
    error = result["error"]
    if error is None:
        return None
    if error["kind"] == "controller_timeout":
        return ControllerTimeoutError(
            error["message"], cause="it hangs, or the limit is too low for this machine",
            hint="raise controller.wall_time_s in the template, or pass timeout_seconds",
        )  # fmt: skip
    exit_code, events = result["controller"]["exit_code"], result["controller"]["events"]
    cause = ", and ".join(text for event, text in LIMITS.items() if events[event])
    if not cause and "ended while" in error["message"]:
        cause = f"it was killed by signal {-exit_code}" if exit_code < 0 else f"it exited with {exit_code}"
    return ControllerError(error["message"], cause=cause, details=error["traceback"])
