"""Episodes as files, each with what it was: what ``--microsim-trajectories`` leaves and ``microsim dataset`` reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from microsim_vm import reset_options

from .mcap import write_episode

if TYPE_CHECKING:
    from ..episode import Episode

SUFFIX = ".mcap"
LONGEST_S = 1e9  # of an episode; times in a file are nanoseconds of 64 bits
SHORTEST_STEP_S = 1e-9


def write(path: Path, episode: Episode, *, told: Mapping[str, str]) -> None:
    """Write one episode; its folder is made, and the file appears as a whole or not at all.

    Args:
        path: Where.
        episode: The episode, be it one that failed: the steps up to there are in it.
        told: What else the file says of it, as text by name: test, world, outcome.

    Raises:
        OSError: It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_episode(path, episode.trajectory, step_s=step_seconds(episode), metadata={**facts(episode), **told})


def facts(episode: Episode) -> dict[str, str]:
    """Return what an episode's file says of it, as text by name; ``metrics`` and ``options`` are JSON."""
    return {
        "seed": "" if episode.seed is None else str(episode.seed),
        "fingerprint": episode.fingerprint,
        "steps": str(episode.steps),
        "terminated": str(episode.terminated).lower(),
        "truncated": str(episode.truncated).lower(),
        "limit": episode.limit,
        "total_reward": repr(episode.total_reward),
        "metrics": msgspec.json.encode(dict(episode.metrics), order="sorted").decode(),
        "options": reset_options.text_of(dict(episode.options)).decode(),
        "error": "" if episode.error is None else episode.error.what,
    }


def step_seconds(episode: Episode) -> float | None:
    """Return how much simulated time a step takes, in seconds; None where the world tells no time, or none usable.

    A guest may say anything, and a world may count nanoseconds where seconds are meant.
    """
    seconds = episode.simulated_seconds
    if seconds is None or episode.steps == 0 or not episode.steps * SHORTEST_STEP_S <= seconds <= LONGEST_S:
        return None
    return seconds / episode.steps
