"""What a rollout leaves for its baseline, by the process that ran it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from microsim_vm.errors import (
    AgentError,
    CapacityError,
    ControllerMachineError,
    EngineError,
    NetworkError,
    SnapshotError,
)

from ..collection import group_key
from ..errors import BaselineError
from ..markers import MicrosimMark, microsim_mark
from ..state import RUN, ItemState
from ..trajectories.writing import facts as told_of
from ..trajectories.writing import step_seconds
from . import seeds as of_seeds
from . import store
from .spool import Spool
from .store import Entry
from .wishes import Wishes, wishes_of

SPOOL = pytest.StashKey[Spool]()
"""Where the processes of a session leave episodes that are to be kept."""

_NOT_THE_TESTS = (AgentError, CapacityError, ControllerMachineError, EngineError, NetworkError, SnapshotError)
"""Errors that say nothing of what is tested."""


def left_by(item: pytest.Item, state: ItemState, call: pytest.CallInfo[None]) -> dict[str, Any] | None:
    """Return what the report of a rollout carries for its baseline; None where it has none, or nobody asked.

    Args:
        item: The test.
        state: Its state.
        call: Its call, which has ended.
    """
    settings = item.config.stash[RUN].settings
    if settings.baseline == "off" or state.rollout is None or (state.param is not None and state.param.run != 1):
        return None
    mark, key = microsim_mark(item), group_key(item)
    path = store.place_of(item.path, key)
    wishes = _wishes(mark, settings.baseline_across)
    facts: dict[str, Any] = {
        "path": str(path),
        "test": f"{item.path.name}::{key.partition('::')[2]}",
        "seed": state.seed,
        "lost": _lost(call),
        "wishes": dataclasses.asdict(wishes),
        "better": dict(mark.better),
    }
    fingerprint = state.rollout.fingerprint() or ""
    try:
        entry = of_seeds.entry_of(of_seeds.baseline_at(path), state.seed)
    except BaselineError as error:
        return {**facts, "problem": str(error), "spooled": None, "standing": "missing"}
    episodes = [episode for episode in state.rollout.episodes if episode.error is None]
    if settings.baseline == "check":
        columns = [episode.trajectory for episode in episodes]
        return {**facts, **of_seeds.compared(path, entry, fingerprint, columns, wishes.tolerances)}
    try:
        return {**facts, "spooled": _spooled(item, state, path, entry, fingerprint, wishes)}
    except OSError as error:
        return {**facts, "problem": f"{error.filename} cannot be written: {error.strerror}", "spooled": None}


def _spooled(
    item: pytest.Item, state: ItemState, path: Path, entry: Entry | None, fingerprint: str, wishes: Wishes
) -> list[list[str]] | None:
    """Spool a rollout's episodes; None where the baseline has them."""
    assert state.rollout is not None
    folder = store.trajectories_of(path)
    there = entry is not None and fingerprint and entry.fingerprint == fingerprint
    if entry is not None and there and all((folder / name).is_file() for name in entry.trajectories):
        return None
    spool, files = item.config.stash[SPOOL], []
    for number, episode in enumerate(state.rollout.episodes if fingerprint else (), 1):
        columns = {name: column for name, column in episode.trajectory.items() if wishes.keeps(name)}
        told = {**told_of(episode), "world": state.world, "world_digest": state.digest}
        left = spool.leave(item.nodeid, number, columns, step_seconds(episode), told)
        files.append([left, store.trajectory_name(state.seed, number, episode.fingerprint)])
    return files


def _wishes(mark: MicrosimMark, across: tuple[str, ...]) -> Wishes:
    wishes = wishes_of(mark.baseline)
    return wishes if "across" in mark.baseline else dataclasses.replace(wishes, across=across)


def _lost(call: pytest.CallInfo[None]) -> bool:
    """Tell whether a rollout ended by an error that says nothing of what it tests."""
    return call.excinfo is not None and isinstance(call.excinfo.value, _NOT_THE_TESTS)
