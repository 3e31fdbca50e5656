"""What the first page and the charts need of a run: all rollouts in columns, without their texts and trajectories."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ...results.model import BaselineResult, GroupResult, RolloutResult, RunResult, WorldResult
from .packets import as_text, number

OUTCOMES = ("passed", "failed", "missed", "error", "skipped")
"""In a page an outcome is its index in here."""


def overview(run: RunResult) -> dict[str, Any]:
    """Return the run, its worlds and its groups."""
    workers = sorted({rollout.worker for group in run.groups for rollout in group.rollouts})
    return {
        "version": run.version,
        "started": run.started,
        "duration": number(run.duration_s),
        "command": run.command,
        "exit": run.exit_status,
        "processes": run.workers,
        "host": msgspec.to_builtins(run.host),
        "worlds": [_world(world) for world in run.worlds],
        "baselines": run.baselines,
        "workers": workers,
        "groups": [_group(group, workers) for group in run.groups],
    }


def timeline(run: RunResult) -> list[dict[str, Any]]:
    """Return a lane for each world and each worker.

    Returns:
        Name, what it is, and spans: begin and duration in seconds, the phase's name, and the group's and the
        rollout's index, which are -1 for a world's.
    """
    lanes = [
        {"name": world.name, "kind": "world",
         "spans": [[number(phase.start_s), number(phase.duration_s), phase.name, -1, -1] for phase in world.phases]}
        for world in run.worlds
    ]  # fmt: skip
    spans: dict[str, list[list[Any]]] = {}
    for at, group in enumerate(run.groups):
        for index, rollout in enumerate(group.rollouts):
            spans.setdefault(rollout.worker, []).extend(
                [number(phase.start_s), number(phase.duration_s), phase.name, at, index] for phase in rollout.phases
            )
    return [*lanes, *({"name": name, "kind": "worker", "spans": spans[name]} for name in sorted(spans, key=_natural))]


def _natural(worker: str) -> tuple[int, str]:
    return len(worker), worker  # gw2 before gw10


def _world(world: WorldResult) -> dict[str, Any]:
    return {
        "name": world.name, "digest": world.digest, "snapshot": world.snapshot, "engine": world.engine,
        "isolation": world.isolation, "warmed": world.warmed, "findings": world.findings,
        "phases": [[phase.name, number(phase.duration_s)] for phase in world.phases],
    }  # fmt: skip


def _group(group: GroupResult, workers: list[str]) -> dict[str, Any]:
    rate = group.pass_rate
    return {
        "key": group.key, "name": group.name, "location": group.location, "scenario": group.scenario,
        "tags": group.tags, "world": group.world, "expected": group.expected, "nEff": number(group.n_eff),
        "environment": dict(knobs(group.environment)),
        "rate": None if rate is None else msgspec.to_builtins(rate),
        "verdicts": [_finite(msgspec.to_builtins(verdict)) for verdict in group.verdicts],
        "baseline": None if group.baseline is None else _baseline(group.baseline),
        "rollouts": _columns(group, workers),
    }  # fmt: skip


def _columns(group: GroupResult, workers: list[str]) -> dict[str, Any]:
    rollouts = group.rollouts
    index = {worker: at for at, worker in enumerate(workers)}
    return {
        "seed": [rollout.seed for rollout in rollouts],
        "run": [rollout.run for rollout in rollouts],
        "schedule": [rollout.schedule for rollout in rollouts] if group.schedules else [],
        "outcome": [OUTCOMES.index(rollout.outcome) for rollout in rollouts],
        "worker": [index[rollout.worker] for rollout in rollouts],
        "duration": [number(rollout.duration_s, 4) for rollout in rollouts],
        "steps": [sum(episode.steps for episode in rollout.episodes) for rollout in rollouts],
        "reward": [_reward(rollout) for rollout in rollouts],
        "fork": [_phase(rollout, "fork") for rollout in rollouts],
        "episode": [_phase(rollout, "episode") for rollout in rollouts],
        "metrics": {
            name: [number(rollout.metrics.get(name)) for rollout in rollouts]
            for name in _names(rollout.metrics for rollout in rollouts)
        },
        "parameters": {
            name: [_numeric(rollout.parameters.get(name)) for rollout in rollouts]
            for name in _names(rollout.parameters for rollout in rollouts)
            if any(_numeric(rollout.parameters.get(name)) is not None for rollout in rollouts)
        },
    }


def _numeric(value: Any) -> float | None:
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _reward(rollout: RolloutResult) -> float | None:
    rewards = [episode.total_reward for episode in rollout.episodes if episode.total_reward is not None]
    return number(sum(rewards)) if rewards else None


def _phase(rollout: RolloutResult, name: str) -> float | None:
    """Return the milliseconds of the first phase of a name: what a rollout waits for once."""
    found = next((phase for phase in rollout.phases if phase.name == name), None)
    return None if found is None else number(found.duration_s * 1000, 4)


def _names(mappings: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def _baseline(baseline: BaselineResult) -> dict[str, Any]:
    facts: dict[str, Any] = _finite(msgspec.to_builtins(baseline))
    metrics = facts.pop("metrics")
    # The seeds' own order is the group's: a picture needs none.
    facts["metrics"] = {name: [number(row.get(name)) for row in metrics.values()] for name in _names(metrics.values())}
    return facts


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return number(value, 15)
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value


def knobs(environment: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Yield each knob of an environment and what it was set to; of nested ones, the names with dots."""
    for name, value in environment.items():
        if isinstance(value, dict):
            yield from knobs(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", "not pinned" if value is None else as_text(value)
