"""Episodes as two Parquet tables: ``episodes.parquet``, a row each, and ``steps.parquet``, a row for each step.

An episode has a row of ``steps.parquet`` more than it has steps: the last one has the observation that it ended with,
and neither action nor reward. Numbers keep their types; an array is a list, flat.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..errors import TrajectoryError
from .dataset import OTHER_COLUMNS, Recorded, arrow, vectors

_WORDS = ("test", "nodeid", "outcome", "world", "world_digest", "controller", "seed", "rollout_seed", "limit",
          "fingerprint", "error", "options")  # fmt: skip


def write(episodes: Iterator[Recorded], folder: Path) -> tuple[int, int]:
    """Write both tables; return how many episodes there are, and steps.

    Raises:
        TrajectoryError: The episodes do not all have the same columns, or a library is missing.
    """
    pa = arrow()
    rows: list[dict[str, Any]] = []
    frames = 0
    writer: Any = None
    try:
        for number, episode in enumerate(episodes):
            table = _steps(pa, number, episode)
            if writer is None:
                writer = pa.parquet.ParquetWriter(folder / "steps.parquet", table.schema, compression="zstd")
            elif table.schema != writer.schema:
                raise TrajectoryError(
                    f"{episode.path} has other columns than the episodes before it",
                    cause=OTHER_COLUMNS, hint="export the folders of each world, or of each test, apart",
                    details=f"{table.schema}\n\nbefore:\n{writer.schema}",
                )  # fmt: skip
            writer.write_table(table)
            rows.append(_episode(number, episode))
            frames += episode.steps
    finally:
        if writer is not None:
            writer.close()
    names = sorted({name for row in rows for name in row if name.startswith("metric.")})
    columns = {name: [row.get(name) for row in rows] for name in [*(rows[0] if rows else ()), *names]}
    types = {name: pa.float64() for name in ("step_s", *names)}
    table = pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})
    pa.parquet.write_table(table, folder / "episodes.parquet", compression="zstd")
    return len(rows), frames


def _steps(pa: Any, number: int, episode: Recorded) -> Any:
    rows, step_s = episode.steps + 1, episode.step_s
    columns: dict[str, Any] = {
        "episode": pa.array([number] * rows, pa.int64()),
        "step": pa.array(range(rows), pa.int64()),
        "time_s": pa.array([None if step_s is None else step * step_s for step in range(rows)], pa.float64()),
    }
    for name, column in sorted(episode.columns.items()):
        columns[name] = _values(pa, column, rows)
    return pa.table(columns)


def _values(pa: Any, column: Any, rows: int) -> Any:
    """Return a column with so many rows; those that it does not have are null."""
    import numpy as np

    values = vectors(column)
    missing = rows - len(values)
    values = np.concatenate([values, np.zeros((missing, values.shape[1]), values.dtype)])
    absent = np.arange(rows) >= rows - missing
    if len(column.shape) == 1:
        return pa.array(values.ravel(), mask=absent)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1], mask=pa.array(absent))


def _episode(number: int, episode: Recorded) -> dict[str, Any]:
    told = episode.told
    row: dict[str, Any] = {"episode": number, **{name: told.get(name, "") for name in _WORDS}}
    row["steps"] = episode.steps
    row["terminated"], row["truncated"] = episode.ended_with("terminated"), episode.ended_with("truncated")
    row["step_s"] = episode.step_s
    row["total_reward"] = float(vectors(episode.columns["reward"]).sum())
    row["file"] = episode.path.name
    try:
        metrics = msgspec.json.decode(told.get("metrics", "{}"), type=dict[str, float | None])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise TrajectoryError(f"{episode.path}: its metrics are none: {error}", cause="the file is damaged") from None
    return row | {f"metric.{name}": value for name, value in metrics.items()}
