"""Trajectories of seeds that are run several times: each run leaves its own until the others are there to compare."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import msgspec

from .gates.differences import first_difference
from .sessionfolder import SessionFolder

if TYPE_CHECKING:
    from .rollout import Rollout

MOST_BYTES = 1 << 30
"""Most bytes that all runs of a session leave at a time: what would go beyond is compared by its fingerprint alone."""

LOCK_TIMEOUT_S = 60.0


class Column(msgspec.Struct, frozen=True):
    """One column of a trajectory; see :class:`~pytest_microsim.gates.fingerprints.ColumnLike`."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Left(msgspec.Struct, frozen=True):
    """What one run leaves.

    Attributes:
        fingerprint: Its episodes', or None if it finished none.
        episodes: Their columns by name, or None where they were too large to be left.
    """

    fingerprint: str | None
    episodes: list[dict[str, Column]] | None


class Repeats(SessionFolder):
    """The folder in which the runs of one session leave their trajectories."""

    KIND = "repeats"

    def leave(self, key: str, run: int, runs: int, rollout: Rollout) -> list[dict[str, Any]]:
        """Leave what a run gave, and compare it with what other runs of its seed have left: each with the first.

        Args:
            key: Names test and seed.
            run: Which run of the seed it is, from 1.
            runs: How many there are to be.
            rollout: The run's.

        Returns:
            One dict per comparison whose fingerprints differ: ``run`` that was compared with the first, both
            ``fingerprints``, and ``difference`` (the fields of :class:`~pytest_microsim.gates.differences.Difference`,
            or None where it cannot be told). Empty where nothing could be left: the judge still has the fingerprints.
        """
        episodes = [episode.trajectory for episode in rollout.episodes if episode.error is None]
        kept = [{name: Column(one.dtype, one.shape, one.data) for name, one in each.items()} for each in episodes]
        mine = Left(rollout.fingerprint(), kept)
        name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        try:
            self._make()
            # One of 16 locks: 5,000 seeds need no 5,000 of them.
            with filelock.FileLock(self._folder / f"{name[0]}.lock", timeout=LOCK_TIMEOUT_S):
                paths = {other: self._path(name, other) for other in range(1, runs + 1) if other != run}
                there = {other: path for other, path in paths.items() if path.exists()}
                found = {other: _read(path) for other, path in there.items() if 1 in (run, other)}
                if len(there) == runs - 1:
                    for path in there.values():
                        path.unlink()
                else:
                    self._write(self._path(name, run), mine)
        except (OSError, filelock.Timeout, msgspec.MsgspecError):
            return []
        if run == 1:
            return [_compared(other, mine, left) for other, left in found.items() if _differ(mine, left)]
        return [_compared(run, left, mine) for left in found.values() if _differ(left, mine)]

    def _write(self, path: Path, left: Left) -> None:
        data = msgspec.msgpack.encode(left)
        with os.scandir(self._folder) as entries:
            used = sum(entry.stat().st_size for entry in entries if entry.name.endswith(".run"))
        if used + len(data) > MOST_BYTES:
            data = msgspec.msgpack.encode(Left(left.fingerprint, None))
        partial = path.with_suffix(".partial")  # nobody else writes it: the lock is held
        try:
            partial.write_bytes(data)
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    def _path(self, name: str, run: int) -> Path:
        return self._folder / f"{name}-{run}.run"


def _read(path: Path) -> Left:
    return msgspec.msgpack.decode(path.read_bytes(), type=Left)


def _differ(first: Left, second: Left) -> bool:
    return first.fingerprint != second.fingerprint


def _compared(run: int, first: Left, second: Left) -> dict[str, Any]:
    difference = None
    if (
        None not in (first.fingerprint, second.fingerprint)
        and first.episodes is not None
        and second.episodes is not None
    ):
        with contextlib.suppress(ValueError):  # columns come from guests, and may not be what they say
            difference = first_difference(first.episodes, second.episodes)
    return {
        "run": run,
        "fingerprints": [first.fingerprint, second.fingerprint],
        "difference": None if difference is None else dataclasses.asdict(difference),
    }
