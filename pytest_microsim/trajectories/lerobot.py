"""Episodes as a LeRobot data set of version 3.0: ``meta/`` and ``data/`` in Parquet and JSON.

| the trajectory's column | the data set's |
| --- | --- |
| ``observation`` | ``observation.state`` |
| ``observation.<key>`` | ``observation.<key>`` |
| ``state`` | ``observation.environment_state`` |
| ``action`` | ``action`` |
| ``reward`` | ``next.reward`` |

A frame is an observation, the action that followed it, and the reward for that. The observation that an episode ended
with has no action, and is no frame. Fractions are float32, as policies take them; arrays are flat.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..errors import TrajectoryError
from .dataset import OTHER_COLUMNS, Recorded, arrow, vectors
from .summing import Summed

VERSION = "v3.0"
CHUNK_FILES = 1000
DATA_MB, VIDEO_MB = 100, 200
_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_COUNTS = ("frame_index", "episode_index", "index", "task_index")


class Writer:
    """Writes one data set.

    Args:
        folder: Where; it is empty.
        task: What the robot is to do, in words; the test's name where it is empty.
        fps: Steps a second; 0 for what the episodes say of their time.
        robot: The kind of robot; "" for none.
    """

    def __init__(self, folder: Path, *, task: str, fps: float, robot: str) -> None:
        self._pa = arrow()
        self._folder = folder
        self._task = task
        self._fps = fps
        self._used = fps
        self._robot = robot
        self._features: dict[str, dict[str, Any]] = {}
        self._first: Path | None = None
        self._tasks: dict[str, int] = {}
        self._episodes: list[dict[str, Any]] = []
        self._all: dict[str, Summed] = {}
        self._frames = 0
        self._file = 0
        self._bytes = 0
        self._open: Any = None

    def write(self, episodes: Iterator[Recorded]) -> tuple[int, int]:
        """Write all; return how many episodes there are, and frames.

        Raises:
            TrajectoryError: They do not have the same columns or time, or say no time.
        """
        try:
            for episode in episodes:
                self._add(episode)
        finally:
            self._close()
        self._finish()
        return len(self._episodes), self._frames

    def _add(self, episode: Recorded) -> None:
        import numpy as np

        fps = self._fps_of(episode)
        number, frames = len(self._episodes), episode.steps
        task = self._task or episode.test
        columns = _columns(episode)
        last = np.arange(frames) == frames - 1
        truncated = episode.ended_with("truncated")
        ended = truncated or episode.ended_with("terminated")
        columns["next.done"] = (last & ended).reshape(-1, 1)
        columns["next.truncated"] = (last & truncated).reshape(-1, 1)
        columns["timestamp"] = (np.arange(frames) / fps).astype("<f4").reshape(-1, 1)
        counted = (np.arange(frames), np.full(frames, number), self._frames + np.arange(frames),
                   np.full(frames, self._tasks.setdefault(task, len(self._tasks))))  # fmt: skip
        for name, values in zip(_COUNTS, counted, strict=True):
            columns[name] = values.astype("<i8").reshape(-1, 1)
        self._check(episode, columns)
        sums = {name: Summed.of(values) for name, values in columns.items()}
        for name, each in sums.items():
            self._all[name] = each + self._all[name] if name in self._all else each
        self._write_rows(columns)
        self._episodes.append(
            {
                "episode_index": number,
                "tasks": [task],
                "length": frames,
                "data/chunk_index": self._file // CHUNK_FILES,
                "data/file_index": self._file % CHUNK_FILES,
                "dataset_from_index": self._frames,
                "dataset_to_index": self._frames + frames,
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
                **{
                    f"stats/{name}/{stat}": value for name, each in sums.items() for stat, value in each.stats().items()
                },
                **{f"microsim/{name}": episode.told.get(name, "") for name in ("nodeid", "seed", "outcome", "world")},
            }
        )
        self._frames += frames

    def _fps_of(self, episode: Recorded) -> float:
        per_s = self._fps or (None if episode.step_s is None else 1 / episode.step_s)
        if per_s is None:
            raise TrajectoryError(
                f"{episode.path} says no time, and a data set has frames a second",
                cause="its world told no simulated time", hint="say how many steps a second has: --fps 10",
            )  # fmt: skip
        told = _whole(per_s)
        if self._episodes and not math.isclose(told, self._used, rel_tol=1e-4):
            raise TrajectoryError(
                f"{episode.path} has {told:g} steps a second, and the episodes before it {self._used:g}",
                hint="export them apart, or say --fps",
            )
        self._used = told
        return told

    def _check(self, episode: Recorded, columns: dict[str, Any]) -> None:
        described = {
            name: {"dtype": _dtype(values), "shape": [values.shape[1]], "names": None}
            for name, values in columns.items()
        }
        if self._first is None:
            self._first, self._features = episode.path, described
        elif described != self._features:
            apart = [
                f"{name} is {_told(described.get(name))} in place of {_told(self._features.get(name))}"
                for name in sorted({*described, *self._features})
                if described.get(name) != self._features.get(name)
            ]
            raise TrajectoryError(
                f"{episode.path} has other columns than {self._first}: {'; '.join(apart)}",
                cause=OTHER_COLUMNS, hint="export the folders of each world, or of each test, apart",
            )  # fmt: skip

    def _write_rows(self, columns: dict[str, Any]) -> None:
        pa = self._pa
        arrays = {
            name: pa.array(values.ravel())
            if values.shape[1] == 1
            else pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
            for name, values in columns.items()
        }
        table = pa.table(arrays)
        if self._open is not None and self._bytes + table.nbytes > DATA_MB << 20:
            self._close()
            self._file += 1
        if self._open is None:
            path = self._folder / _DATA.format(
                chunk_index=self._file // CHUNK_FILES, file_index=self._file % CHUNK_FILES
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open, self._bytes = pa.parquet.ParquetWriter(path, table.schema), 0
        self._bytes += table.nbytes
        self._open.write_table(table)

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _finish(self) -> None:
        if not self._episodes:
            return
        pa, meta = self._pa, self._folder / "meta"
        (meta / "episodes/chunk-000").mkdir(parents=True)
        pa.parquet.write_table(pa.Table.from_pylist(self._episodes), meta / "episodes/chunk-000/file-000.parquet")
        pa.parquet.write_table(_tasks(pa, self._tasks), meta / "tasks.parquet")
        stats = {name: each.stats() for name, each in self._all.items()}
        (meta / "stats.json").write_bytes(msgspec.json.format(msgspec.json.encode(stats), indent=2))
        info = {
            "codebase_version": VERSION,
            "robot_type": self._robot or None,
            "total_episodes": len(self._episodes),
            "total_frames": self._frames,
            "total_tasks": len(self._tasks),
            "chunks_size": CHUNK_FILES,
            "data_files_size_in_mb": DATA_MB,
            "video_files_size_in_mb": VIDEO_MB,
            "fps": self._used,
            "splits": {"train": f"0:{len(self._episodes)}"},
            "data_path": _DATA,
            "video_path": None,
            "features": self._features,
        }
        (meta / "info.json").write_bytes(msgspec.json.format(msgspec.json.encode(info), indent=2))


def _columns(episode: Recorded) -> dict[str, Any]:
    """Return an episode's columns by the data set's names, (frames, numbers) each."""
    columns: dict[str, Any] = {}
    for name, column in sorted(episode.columns.items()):
        kind, _, key = name.partition(".")
        given = {"observation": f"observation.{key or 'state'}", "reward": "next.reward",
                 "state": "observation.environment_state" + (f".{key}" if key else "")}.get(kind, name)  # fmt: skip
        if given in columns:
            raise TrajectoryError(f"{episode.path} has two columns that would be {given!r}")
        values = vectors(column)[: episode.steps]
        columns[given] = values.astype({"f": "<f4", "b": "?"}.get(values.dtype.kind, "<i8"))
    return columns


def _dtype(values: Any) -> str:
    return "float32" if values.dtype.kind == "f" else "bool" if values.dtype.kind == "b" else "int64"


def _told(described: dict[str, Any] | None) -> str:
    return "missing" if described is None else f"{described['dtype']}{described['shape']}"


def _whole(fps: float) -> float:
    """Return a whole number where it is one but for rounding: 1 / 0.02 was measured, not told."""
    return round(fps) if math.isclose(fps, round(fps), rel_tol=1e-6) else fps


def _tasks(pa: Any, tasks: dict[str, int]) -> Any:
    """Return the table of tasks, whose texts are what pandas takes for the names of its rows."""
    index = "__index_level_0__"
    table = pa.table({"task_index": pa.array(tasks.values(), pa.int64()), index: pa.array(tasks, pa.string())})
    columns = [
        {"name": name, "field_name": field, "pandas_type": kind, "numpy_type": of, "metadata": None}
        for name, field, kind, of in (
            ("task_index", "task_index", "int64", "int64"), (None, index, "unicode", "object")
        )
    ]  # fmt: skip
    told = {"index_columns": [index], "column_indexes": [], "columns": columns, "pandas_version": "2.0.0"}
    return table.replace_schema_metadata({b"pandas": msgspec.json.encode(told)})
