"""What a test gets of one run of a controller."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .gates.fingerprints import fingerprint_of_columns

if TYPE_CHECKING:
    from microsim_vm.episode import Column, EpisodeRecord
    from microsim_vm.errors import MicrosimError


class Episode:
    """One run of a controller, from reset to end.

    Attributes:
        seed: The seed the world was reset with.
        options: What its ``reset`` was given beside the seed; empty where nothing was.
        steps: Steps taken.
        terminated: The world ended the episode (it reached its goal, or failed).
        truncated: A limit ended it (``max_steps``, or one of the world's own).
        total_reward: Sum of the rewards.
        metrics: The episode's scores, by name: those of the template's ``score``, and of the world.
        trajectory: Columns by name. ``"observation"`` (``"observation.<key>"`` for a dict) and ``"state"``,
            where the world has one, have shape ``(steps + 1, ...)``, row 0 being the start; ``"action"`` and
            ``"reward"`` have ``(steps, ...)``. ``numpy.asarray(column)`` is a view without a copy.
        fingerprint: 32 hex digits; equal if and only if every number of the trajectory is, bit by bit.
        limit: Which limit truncated it: ``"steps"`` (``max_steps``), ``"time"`` (``simulated_time_s``),
            ``"recording"`` (it was at its end), or ``""``.
        late_steps: Steps whose deadline the controller missed (``step_deadline_s``), and that went on without it.
        simulated_seconds: The world's own time that passed, in seconds; None where the world tells none.
        wall_ms: Wall-clock time, in milliseconds.
        stdout_bytes: What the controller wrote to its standard output (bounded).
        stderr_bytes: The same for standard error.
        attempts: What the controller tried, or did, that no controller should: refused system calls, limits that
            it met, processes left behind. One line each; as far as it can be seen.
        error: Why the episode could not be finished, or is invalid; or None.
        controller: What drove it, as ``run`` was given it, with its arguments.
        schedule: Of a deterministic machine, the number of the order in which its threads took turns; else None.
        run_digest: Of a deterministic machine, a digest of all its memory and devices at the episode's end, hex; else
            "".
    """

    def __init__(self, record: EpisodeRecord, *, controller: str = "") -> None:
        self.seed: int = record.seed
        self.options: Mapping[str, Any] = MappingProxyType(record.options)
        self.steps: int = record.steps
        self.terminated: bool = record.terminated
        self.truncated: bool = record.truncated
        self.total_reward: float = record.total_reward
        self.metrics: Mapping[str, float] = MappingProxyType(record.metrics)
        self.trajectory: Mapping[str, Column] = MappingProxyType(record.columns)
        self.fingerprint: str = fingerprint_of_columns(record.columns)
        self.limit: str = record.limit
        self.late_steps: int = record.late_steps
        self.simulated_seconds: float | None = record.simulated_s
        self.wall_ms: float = record.wall_ms
        self.stdout_bytes: bytes = record.controller_stdout
        self.stderr_bytes: bytes = record.controller_stderr
        self.attempts: tuple[str, ...] = record.attempts
        self.error: MicrosimError | None = record.error
        self.controller: str = controller
        self.schedule: int | None = record.schedule
        self.run_digest: str = record.run_digest

    @property
    def stdout(self) -> str:
        """The controller's standard output as text; bytes that are no UTF-8 are replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """The controller's standard error as text; bytes that are no UTF-8 are replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")

    def __repr__(self) -> str:
        end = "failed" if self.error else "terminated" if self.terminated else "truncated"
        return f"<Episode seed={self.seed} steps={self.steps} {end} total_reward={self.total_reward:g}>"
