"""Episodes as MCAP files, in the directory that ``--microsim-trajectories`` names."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from ..collection import group_key
from ..state import RUN, ItemState
from ..trajectories import writing
from ..trajectories.naming import place


def written(item: pytest.Item, state: ItemState, report: pytest.TestReport) -> None:
    """Write the episodes of a rollout whose call has ended, by the process that ran it."""
    run = item.config.stash[RUN]
    folder = run.settings.trajectories
    if folder is None or state.rollout is None:
        return
    for number, episode in enumerate(state.rollout.episodes, 1):
        path = place_of(folder, item, state, episode=number, suffix=writing.SUFFIX)
        told = {
            "test": test_of(item),
            "nodeid": item.nodeid,
            "outcome": "missed" if state.missed else report.outcome,
            "episode": str(number),
            "rollout_seed": str(state.seed),
            "world": state.world,
            "world_digest": state.digest,
            "controller": episode.controller,
            "pytest_microsim": version("pytest-microsim"),
        }
        try:
            writing.write(path, episode, told=told)
        except OSError as error:
            # A test that passed shows nothing of its report.
            run.progress(f"\nmicrosim: trajectory: {path} could not be written: {error.strerror}\n")
            return
        state.files["trajectory" if number == 1 else f"trajectory {number}"] = path


def test_of(item: pytest.Item) -> str:
    """Return what the rollouts of a test have in common: its file, its name, and what parameters it has but seeds."""
    return "::".join(part for part in group_key(item).split("\0") if part)


def place_of(folder: Path, item: pytest.Item, state: ItemState, *, episode: int = 1, suffix: str) -> Path:
    """Return where a file of a rollout goes."""
    run = state.param.run if state.param else 1
    return place(folder, test_of(item), state.seed, run=run, episode=episode, suffix=suffix)
