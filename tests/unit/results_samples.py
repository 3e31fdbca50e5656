"""Results made by hand, for tests of what reads them."""

from __future__ import annotations

from typing import Any

from pytest_microsim.results.gathering import rate_of
from pytest_microsim.results.model import (
    BaselineResult,
    EpisodeResult,
    GroupResult,
    Host,
    MetricTrend,
    Phase,
    RolloutResult,
    RunResult,
)


def episode_of(reward: float | None = 1.0, **fields: Any) -> EpisodeResult:
    known: dict[str, Any] = {
        "seed": "1", "steps": 3, "terminated": True, "truncated": False, "limit": "", "total_reward": reward,
        "metrics": {}, "fingerprint": "ab", "late_steps": 0, "simulated_s": None, "wall_ms": 250.0,
    }  # fmt: skip
    return EpisodeResult(**known | fields)


def rollout_of(
    seed: int, outcome: Any = "passed", *, test: str = "test_a.py::test_it", reward: float | None = 1.0, **fields: Any
) -> RolloutResult:
    known: dict[str, Any] = {
        "nodeid": f"{test}[seed-{seed:04}]", "seed": str(seed), "outcome": outcome, "duration_s": 1.0,
        "phases": [Phase(name="fork", start_s=0.0, duration_s=0.1)], "episodes": [episode_of(reward)],
        "replay": f"pytest '{test}[seed-{seed:04}]'",
    }  # fmt: skip
    return RolloutResult(**known | fields)


def group_of(*rollouts: RolloutResult, name: str = "test_a.py::test_it", **fields: Any) -> GroupResult:
    known: dict[str, Any] = {
        "key": name, "name": name, "location": f"{name.partition('::')[0]}:1", "world": "w",
        "expected": len(rollouts), "rollouts": list(rollouts), "pass_rate": rate_of(rollouts), "n_eff": 8.0,
    }  # fmt: skip
    return GroupResult(**known | fields)


def baseline_of(standing: Any, *trends: str) -> BaselineResult:
    found = [
        MetricTrend(
            metric=name, better="unknown", baseline=1.0, now=1.0, difference=0.0, low=0.0, high=0.0, confidence=0.95,
            effect=None, p=None, p_corrected=None, test="sign-flip", trend=name,  # type: ignore[arg-type]
        )
        for name in trends
    ]  # fmt: skip
    return BaselineResult(standing=standing, recorded="", path="b.yaml", trends=found)


def run_of(*groups: GroupResult) -> RunResult:
    host = Host(cpu="c", cores=2, memory_mib=1024, kernel="6", system="s")
    return RunResult(
        version="0", started="2026-01-01T00:00:00+00:00", duration_s=1.0, command="pytest", exit_status=0, workers=1,
        host=host, groups=list(groups),
    )  # fmt: skip
