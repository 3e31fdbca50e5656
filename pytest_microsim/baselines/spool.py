"""What the processes of a session leave for the one that writes baselines."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ..gates.fingerprints import ColumnLike
from ..sessionfolder import SessionFolder
from ..trajectories.mcap import write_episode

_COLLECTED = "collected.json"


class Collected(msgspec.Struct):
    """What was collected.

    Attributes:
        files: Where the baselines of each test file's groups are, or would be.
    """

    files: dict[str, list[str]]


class Spool(SessionFolder):
    """The folder in which rollouts leave their episodes, and collection what it found."""

    KIND = "baselines"

    def leave(
        self, nodeid: str, number: int, columns: Mapping[str, ColumnLike], step_s: float | None, told: Mapping[str, str]
    ) -> str:
        """Leave an episode.

        Args:
            nodeid: The test's.
            number: Which of its episodes it is, from 1.
            columns: What is to be kept of its trajectory.
            step_s: Simulated seconds of a step, or None.
            told: What its file says of it.

        Returns:
            What it is called here.

        Raises:
            OSError: It cannot be written.
        """
        self._make()
        name = f"{hashlib.sha256(nodeid.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}-{number}.mcap"
        write_episode(self._folder / name, columns, step_s=step_s, metadata=told)
        return name

    def path(self, name: str) -> Path:
        """Return where something is that was left."""
        return self._folder / name

    def note(self, collected: Collected) -> None:
        """Leave what was collected; all processes of a session collect the same."""
        self._make()
        partial = self._folder / f"{_COLLECTED}.{os.getpid()}"
        partial.write_bytes(msgspec.json.encode(collected))
        partial.replace(self._folder / _COLLECTED)

    def collected(self) -> Collected:
        """Return what was collected; nothing where that is not known."""
        try:
            return msgspec.json.decode((self._folder / _COLLECTED).read_bytes(), type=Collected)
        except (OSError, msgspec.DecodeError):
            return Collected({})
