"""One seed against its baseline, by the process that ran it: it has the trajectory, and need not hand it on."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BaselineError, TrajectoryError
from ..gates.fingerprints import ColumnLike
from ..trajectories.mcap import read_episode
from . import store
from .divergence import Divergence, first_divergence
from .store import Baseline, Entry
from .wishes import Tolerances

_WITHOUT_TIME_S = 1.0


def baseline_at(path: Path) -> Baseline | None:
    """Read a baseline, once for all seeds that this process runs.

    Raises:
        BaselineError: It is there and cannot be read.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return _read(path, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=8)
def _read(path: Path, _changed: int, _size: int) -> Baseline | None:
    return store.read(path)


def compared(
    path: Path,
    entry: Entry | None,
    fingerprint: str,
    episodes: Sequence[Mapping[str, ColumnLike]],
    tolerances: Tolerances,
) -> dict[str, Any]:
    """Compare what a seed gave with its baseline.

    Args:
        path: The baseline's file.
        entry: The seed's part of it, if it has one.
        fingerprint: What the seed gave: that of all its episodes, empty where one was not finished.
        episodes: Their columns.
        tolerances: What is allowed.

    Returns:
        Simple types: ``standing`` ("identical", "within", "different", "missing", or "unfinished" where neither then
        nor now all episodes were finished); for one that differs, as far as it can be told, ``divergence`` (the fields
        of :class:`~pytest_microsim.baselines.divergence.Divergence`) or ``why`` there is none.
    """
    if entry is None:
        return {"standing": "missing"}
    if not (fingerprint or entry.fingerprint):
        return {"standing": "unfinished"}
    if fingerprint == entry.fingerprint:
        return {"standing": "identical"}
    if not (fingerprint and entry.fingerprint):
        when = "now" if entry.fingerprint else "then"
        return {"standing": "different", "why": f"an episode was not finished {when}"}
    if not entry.trajectories:
        return {"standing": "different", "why": "the baseline has no trajectory of it"}
    try:
        kept = [read_episode(store.trajectories_of(path) / name) for name in entry.trajectories]
    except OSError as error:
        return {"standing": "different", "why": f"{error.filename} cannot be read: {error.strerror}"}
    except TrajectoryError as error:
        return {"standing": "different", "why": error.what}
    steps = [float(told.get("step_s", _WITHOUT_TIME_S)) for _, told in kept]
    found = first_divergence([columns for columns, _ in kept], episodes, tolerances, step_s=steps)
    if found is not None:
        return {"standing": "different", "divergence": _simple(found)}
    if tolerances.columns or tolerances.steps:
        return {"standing": "within"}
    return {"standing": "different", "why": "it differs in what the baseline does not keep"}


def entry_of(baseline: Baseline | None, seed: int) -> Entry | None:
    """Return a seed's part of a baseline."""
    return None if baseline is None else baseline.seeds.get(seed)


def unreadable(path: Path) -> str:
    """Return why a baseline cannot be read; empty where it can, or is not there."""
    try:
        baseline_at(path)
    except BaselineError as error:
        return str(error)
    return ""


def _simple(found: Divergence) -> dict[str, Any]:
    return {
        "step": found.step,
        "column": found.column,
        "baseline": found.baseline,
        "now": found.now,
        "over": found.over,
        "episode": found.episode,
    }
