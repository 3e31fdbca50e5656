"""What the page of one rollout shows beside its numbers: texts, bounded so that no output can swell the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...results.model import EpisodeResult, GroupResult, RolloutResult, RunResult
from .packets import as_text, bounded, number

FAILED_TEXT, PASSED_TEXT = 64 * 1024, 2 * 1024
"""Characters of one text of a rollout that did not pass, and of one that did."""
ALL_TEXT = 48 * 1024 * 1024
"""Characters of all texts of a run."""
TEXTS = 4  # of a rollout: its failure, its console, two streams


def text_limit(run: RunResult) -> int:
    """Return how many characters one text may have, so that all together stay within bounds."""
    rollouts = sum(1 for group in run.groups for rollout in group.rollouts if rollout.outcome != "passed")
    return max(512, min(FAILED_TEXT, ALL_TEXT // max(1, rollouts * TEXTS)))


def details(group: GroupResult, limit: int, base: Path) -> list[dict[str, Any]]:
    """Return the texts of each rollout of a group, in order; paths relative to the base where they lie in it."""
    return [_rollout(rollout, limit, base) for rollout in group.rollouts]


def _rollout(rollout: RolloutResult, limit: int, base: Path) -> dict[str, Any]:
    if rollout.outcome == "passed":
        limit = min(limit, PASSED_TEXT)
    return {
        "id": rollout.nodeid, "replay": rollout.replay, "failure": bounded(rollout.failure, limit),
        "console": bounded(rollout.console, limit), "island": rollout.island, "fingerprint": rollout.fingerprint,
        "parameters": {name: as_text(value) for name, value in rollout.parameters.items()},
        "files": {what: _within(base, file) for what, file in rollout.files.items()},
        "phases": [[phase.name, number(phase.duration_s)] for phase in rollout.phases],
        "episodes": [_episode(episode, limit) for episode in rollout.episodes],
    }  # fmt: skip


def _within(base: Path, file: str) -> str:
    path, folder = Path(base, file), Path(base).absolute()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else file


def _episode(episode: EpisodeResult, limit: int) -> dict[str, Any]:
    return {
        "seed": episode.seed, "steps": episode.steps, "end": _end(episode), "late": episode.late_steps,
        "reward": number(episode.total_reward), "simulated": number(episode.simulated_s),
        "wall": number(episode.wall_ms, 4), "controller": episode.controller,
        "metrics": {name: number(value) for name, value in episode.metrics.items()},
        "options": {name: as_text(value) for name, value in episode.options.items()},
        "error": bounded(episode.error, limit), "attempts": [bounded(line, 2048) for line in episode.attempts[:200]],
        "stdout": bounded(episode.stdout, limit), "stderr": bounded(episode.stderr, limit),
    }  # fmt: skip


def _end(episode: EpisodeResult) -> str:
    ends = ["terminated"] if episode.terminated else []
    if episode.truncated:
        ends.append(f"truncated by the limit of {episode.limit}" if episode.limit else "truncated by the world")
    return ", ".join(ends) or "not finished"
