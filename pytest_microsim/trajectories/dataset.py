"""Folders of episodes as data sets that learning code reads: ``microsim dataset``.

Two formats: a `LeRobot <https://github.com/huggingface/lerobot>`_ data set of version 3.0 (:mod:`.lerobot`), and plain
Parquet tables that lose nothing (:mod:`.parquet`).
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from microsim_guest.codec import TYPECODES
from microsim_vm.episode import Column

from ..errors import TrajectoryError
from .mcap import read_episode
from .writing import LONGEST_S, SHORTEST_STEP_S, SUFFIX

INSTALL = "pip install 'pytest-microsim[datasets]'"
OTHER_COLUMNS = "they are of different worlds, or one controller gives whole numbers and another one fractions"


@dataclass(frozen=True)
class Recorded:
    """An episode that was read from a file.

    Attributes:
        path: The file.
        columns: Its trajectory by name.
        told: What the file says of it; see :func:`pytest_microsim.trajectories.writing.facts`.
    """

    path: Path
    columns: Mapping[str, Column]
    told: Mapping[str, str]

    @property
    def steps(self) -> int:
        """How many steps it has."""
        return len(self.columns["reward"]) if "reward" in self.columns else 0

    @property
    def step_s(self) -> float | None:
        """Simulated seconds of a step; None where its world told no time."""
        try:
            seconds = float(self.told.get("step_s", "nan"))
        except ValueError:
            seconds = math.nan
        return seconds if SHORTEST_STEP_S <= seconds <= LONGEST_S else None

    @property
    def test(self) -> str:
        """What its rollout has in common with those of other seeds."""
        return self.told.get("test") or self.path.parent.name

    def ended_with(self, how: str) -> bool:
        """Tell whether it was "terminated", or "truncated"."""
        return self.told.get(how) == "true"


class Made(NamedTuple):
    """What an export comes to.

    Attributes:
        episodes, frames: How many there are in the data set.
        left_out: Files that are not in it, and why, a line each.
    """

    episodes: int
    frames: int
    left_out: list[str]


def export(
    folder: Path, target: Path, write: Callable[[Iterator[Recorded], Path], tuple[int, int]], *, passed_only: bool
) -> Made:
    """Make a data set of all episodes in a folder and below it.

    Args:
        folder: What ``--microsim-trajectories`` was given.
        target: The data set's folder: a new one, or an empty one. It appears as a whole or not at all.
        write: Writes episodes to a folder, and returns how many they were, and their steps.
        passed_only: Leave out those of tests that did not pass.

    Raises:
        TrajectoryError: There are none, a file is damaged, they do not fit together, or the target is not empty.
        OSError: A file cannot be read or written.
    """
    paths = sorted(folder.rglob(f"*{SUFFIX}"), key=_natural)
    if not paths:
        raise TrajectoryError(
            f"{folder} has no episodes in it", hint=f"pytest --microsim-trajectories {folder} writes them"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise TrajectoryError(f"{target} is there already", hint="choose another folder, or remove it")
    if target.resolve() == Path.cwd():
        raise TrajectoryError(
            "a data set cannot take the place of the working directory", hint="name a new folder in it"
        )
    left_out: list[str] = []
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        episodes, frames = write(_chosen(paths, passed_only, left_out), partial)
        if not episodes:
            raise TrajectoryError(f"{folder} has no episode to export", details="\n".join(left_out))
        with contextlib.suppress(FileNotFoundError):
            target.rmdir()
        os.replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Made(episodes, frames, left_out)


def arrow() -> Any:
    """Return pyarrow.

    Raises:
        TrajectoryError: It, or numpy, is not installed.
    """
    try:
        import numpy  # noqa: F401
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise TrajectoryError(f"a data set needs {error.name}, which is not installed", hint=INSTALL) from None
    return pyarrow


def vectors(column: Column) -> Any:
    """Return a column as a numpy array of (rows, numbers per row)."""
    import numpy as np

    return np.asarray(column).reshape(len(column), -1)


def _chosen(paths: list[Path], passed_only: bool, left_out: list[str]) -> Iterator[Recorded]:
    for path in paths:
        columns, told = read_episode(path)
        # A column of empty rows has nothing in it, and the formats have no such lists.
        columns = {name: column for name, column in columns.items() if math.prod(column.shape[1:])}
        episode = Recorded(path, columns, told)
        for name, column in columns.items():
            if len(column) not in (episode.steps, episode.steps + 1) or column.dtype not in TYPECODES:
                raise TrajectoryError(
                    f"{path}: {name} is {column.dtype}{list(column.shape)}, in an episode of {episode.steps} steps",
                    cause="the file is damaged, or another program wrote it",
                )
        if not episode.steps:
            left_out.append(f"{path}: it has no steps")
        elif passed_only and told.get("outcome") != "passed":
            left_out.append(f"{path}: its test {told.get('outcome') or 'said nothing of its outcome'}")
        else:
            yield episode


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """Sort seeds as numbers: 2 before 10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"([0-9]+)", str(path))]
