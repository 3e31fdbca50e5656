"""What the gates look at of one rollout: found where it ran, sent as simple types, and read where it is judged."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ..gates.verdicts import Sample

if TYPE_CHECKING:
    from ..rollout import Rollout
    from ..state import ItemState


def sample_facts(state: ItemState, *, worker: str, unchecked: Collection[str]) -> dict[str, Any]:
    """Return the facts of one rollout; those of one whose fork failed are its seed and worker.

    Args:
        state: The test's.
        worker: The id of this process among the workers; empty where there are none.
        unchecked: Names of metrics and recorded numbers to leave out.
    """
    facts: dict[str, Any] = {
        "seed": state.seed,
        "worker": worker,
        "fingerprint": None,
        "episode_seeds": [],
        "probes": {},
        "scalars": {},
        "run_digest": "",
    }
    if state.rollout is not None:
        facts["fingerprint"] = state.rollout.fingerprint()
        facts["episode_seeds"] = list(state.rollout.episode_seeds)
        facts["probes"] = _probes(state.rollout)
        facts["scalars"] = scalars_of(state.rollout, unchecked)
        facts["run_digest"] = state.rollout.run_digest
    return facts


def sample_of(facts: dict[str, Any]) -> Sample:
    """Read what :func:`sample_facts` has written."""
    return Sample(**facts | {"episode_seeds": tuple(facts["episode_seeds"])})


def _probes(rollout: Rollout) -> dict[str, str]:
    """Return all machines' probes; those of other machines than the template's own have its name before theirs."""
    others = {
        f"{name}/{source}": bits
        for name, machine in rollout.machines.items()
        if machine is not rollout.machine
        for source, bits in machine.probes.items()
    }
    return {**rollout.machine.probes, **others}


def scalars_of(rollout: Rollout, unchecked: Collection[str]) -> dict[str, float]:
    """Return the metrics of finished episodes, and what the test recorded; a recorded number wins.

    The first episode's metrics keep their names, so that they can be compared with those of a rollout that went on.
    """
    found: dict[str, float] = {}
    for number, episode in enumerate(rollout.episodes):
        if episode.error is None:
            prefix = f"episode {number}/" if number else ""
            found |= {f"{prefix}{name}": value for name, value in episode.metrics.items() if name not in unchecked}
    found |= rollout.recorded
    return {
        name: value for name, value in found.items() if name not in unchecked and isinstance(value, bool | int | float)
    }
