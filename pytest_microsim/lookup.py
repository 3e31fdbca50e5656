"""Files that a test names by a relative path: where they are looked for, and what is made of them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from microsim_vm.errors import ControllerError, RecordingError

if TYPE_CHECKING:
    from microsim_vm.controllers import Controller

    from .trajectories.recordings import Recording

MOST_STEPS = 1000
HINT = "a relative path is looked for next to the test, in the rootdir and the working directory"


class Lookup:
    """Finds the files that a test names.

    Args:
        folders: Where, in this order.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(dict.fromkeys(folders))

    def driver(
        self, given: str | os.PathLike[str] | Sequence[str] | Recording, max_steps: int | None
    ) -> tuple[Controller, int, str]:
        """Return what ``rollout.run`` was given, how many steps its episode has by default, and its name for people.

        Args:
            given: A controller, or a recording in place of one.
            max_steps: What the marker says; None for 1000 with a controller, and for the whole of a recording.

        Raises:
            ControllerError: There is no such file, or it is no controller.
        """
        from microsim_vm import controllers

        from .trajectories.recordings import Recording

        if isinstance(given, Recording):
            return given.controller(), max_steps or given.most_steps, self._near(given.source)
        first, words = controllers.split(given)
        found = controllers.read(self._controller(first), controllers.kind_of(given), words)
        return found, max_steps or MOST_STEPS, shlex.join(map(str, [self._near(first), *words]))

    def recording(self, path: str | os.PathLike[str]) -> Path:
        """Return where a recording is: a file, or a folder.

        Raises:
            RecordingError: There is none.
        """
        for candidate in self._candidates(path):
            if candidate.exists():
                return candidate
        raise RecordingError(f"there is no recording {os.fspath(path)!r}", hint=HINT)

    def _controller(self, path: str | os.PathLike[str]) -> Path:
        tried = self._candidates(path)
        for candidate in tried:
            if candidate.is_file():
                return candidate
        raise ControllerError(
            f"no controller file {os.fspath(path)!r}",
            hint=HINT,
            details="\n".join(f"not a file: {candidate}" for candidate in tried),
        )

    def _near(self, path: str | os.PathLike[str]) -> str:
        """Return a path from the first folder that it lies in: results and reports are read on other machines too."""
        found = Path(path)
        folder = next((each for each in self.folders if found.is_absolute() and found.is_relative_to(each)), None)
        return os.fspath(path if folder is None else found.relative_to(folder))

    def _candidates(self, path: str | os.PathLike[str]) -> list[Path]:
        return list(dict.fromkeys(folder / path for folder in self.folders))  # an absolute path stays itself
