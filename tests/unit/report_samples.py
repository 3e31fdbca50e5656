"""Results of runs, made by code: of any size, the same each time, and as hostile as wanted."""

from __future__ import annotations

import math
import random

from pytest_microsim.results.model import (
    BaselineResult,
    Better,
    Curve,
    EpisodeResult,
    GateResult,
    GroupResult,
    Host,
    MetricTrend,
    Outcome,
    Phase,
    Rate,
    RolloutResult,
    RunResult,
    SeedDifference,
    Trend,
    WorldResult,
)

HOSTILE = (
    "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
    "\0 \u202egnp.exe \x1b[31mred\x1b[0m \x1b]0;title\x07 <!-- ]]> &lt; \ud800 'quote\" `${document.title}` \u2028"
)
"""Text as a hostile controller would write it."""

LOADED = {"warehouse": 5.1, "cartpole": 1.2}
ENVIRONMENT = {
    "cpu": {"model": "AMD EPYC 7B13", "seen": "a41f"},
    "digest": "9f2c41d07be3",
    "engine": {"name": "gvisor", "version": "20221219"},
    "versions": {"mujoco": "3.3.0", "numpy": "2.1.3"},
}


def run_of(rollouts: int = 200, *, groups: int = 5, seed: int = 1, workers: int = 2, text: str = "") -> RunResult:
    """Return the results of a run.

    Args:
        rollouts: How many it has in all.
        groups: How many groups they are in.
        seed: What decides the numbers.
        workers: How many processes ran it.
        text: Put wherever a controller, a world or a suite could put some.
    """
    draw = random.Random(seed)
    clock = {f"gw{number}": 8.0 + number * 0.2 for number in range(workers)}
    found = [group_of(number, rollouts // groups, draw, clock, text) for number in range(groups)]
    return RunResult(
        version="0.1.0",
        started="2026-11-30T02:14:07+00:00",
        duration_s=max(clock.values()) + 0.8,
        command=f"pytest example_tests --microsim-world warehouse -n {workers}{text}",
        exit_status=1,
        workers=workers,
        host=Host(cpu=f"AMD EPYC 7B13{text}", cores=2, memory_mib=7_940, kernel="6.1.0-28-amd64", system="Debian 12"),
        worlds=[
            WorldResult(
                name=f"{name}{text}", digest="9f2c41d07be3", snapshot="4d1c", engine="gvisor 20221219", warmed=True,
                isolation="sandbox", findings=[f"1 generator was not reseeded: numpy.random{text}"] if text else [],
                phases=[Phase(name="warm-up", start_s=0.6, duration_s=seconds)],
            )
            for name, seconds in LOADED.items()
        ],
        groups=found,
        baselines=[f"orphaned: test_old.py::test_gone has a baseline and no test{text}"],
    )  # fmt: skip


NAMES = ("test_robot_docks", "test_narrow_aisle", "test_dead_reckoning", "dock.scenario.yaml::dock", "test_balances")


def group_of(number: int, seeds: int, draw: random.Random, clock: dict[str, float], text: str = "") -> GroupResult:
    """Return one group; the first fails on some seeds, the third is a group of copies, the rest pass."""
    name = NAMES[number % len(NAMES)] + (f"[{number}]" if number >= len(NAMES) else "")
    skill = (0.93, 1.0, 1.0, 0.96, 1.0)[number % 5]
    copies = number % 5 == 2
    rollouts = [rollout_of(name, one, draw, clock, skill, copies=copies, text=text) for one in range(seeds)]
    passed = sum(rollout.outcome == "passed" for rollout in rollouts)
    n_eff = 8.0 if copies else float(seeds)
    verdicts = [GateResult(gate="T1 probe", outcome="passed", metric="", message="all generators differ", n=seeds,
                           n_eff=float(seeds), clusters=[])]  # fmt: skip
    if copies:
        verdicts.append(GateResult(
            gate="T2 fingerprint", outcome="failed", metric="",
            message=f"{seeds} seeds amount to 8 independent episodes{text}",
            n=seeds, n_eff=8.0, clusters=[[str(one) for one in range(start, seeds, 8)] for start in range(8)],
            cause="the world uses the seed modulo 8", next_step="pass the seed on whole, in the world's reset()",
        ))  # fmt: skip
    return GroupResult(
        key=f"tests/test_dock.py::{name}", name=f"tests/test_dock.py::{name}{text}",
        location=f"tests/test_dock.py:{11 + number}", tags=["nightly", f"dock{text}"], world="warehouse",
        scenario="dock.scenario.yaml" if "scenario" in name else "",
        environment=ENVIRONMENT, expected=seeds, rollouts=rollouts, n_eff=n_eff, verdicts=verdicts,
        pass_rate=Rate(passed=passed, total=seeds, low=max(0.0, passed / seeds - 0.06),
                       high=min(1.0, passed / seeds + 0.03)),
        baseline=None if number % 5 == 4 else baseline_of(rollouts, draw, worse=number % 5 == 0),
    )  # fmt: skip


def rollout_of(
    test: str, seed: int, draw: random.Random, clock: dict[str, float], skill: float, *, copies: bool, text: str
) -> RolloutResult:
    """Return one rollout; its worker is the one that is free first."""
    like = random.Random(seed % 8) if copies else draw
    worker = min(clock, key=lambda name: clock[name])
    start = clock[worker]
    fork, wait, wall = draw.uniform(0.3, 0.45), max(0.0, draw.gauss(-0.1, 0.1)), draw.uniform(0.9, 2.2)
    clock[worker] = start + fork + wait + wall + 0.05
    outcome: Outcome = "passed" if draw.random() < skill else "missed" if "scenario" in test else "failed"
    good = outcome == "passed"
    steps = like.randint(180, 320) if good else 500
    distance = abs(like.gauss(0.12, 0.04)) if good else like.uniform(0.3, 2.4)
    metrics: dict[str, float | None] = {
        "distance_to_dock": distance, "collisions": 0.0, "time_s": steps / 10,
        "energy_j": like.gauss(310, 25) + (0 if good else 150),
        "jerk": None if seed % 17 == 3 else like.lognormvariate(0, 0.5),
    }  # fmt: skip
    failure = (
        f"episode = <Episode seed={seed}>\n\n>   assert episode.metrics['distance_to_dock'] < 0.25\n"
        f"E   assert {distance:.3f} < 0.25\n\ntests/test_dock.py:14: AssertionError\n{text}"
    )
    return RolloutResult(
        nodeid=f"tests/test_dock.py::{test}[seed-{seed:04}]{text}", seed=str(seed), worker=worker, outcome=outcome,
        duration_s=fork + wait + wall + 0.05, metrics=metrics, fingerprint=f"{like.getrandbits(128):032x}",
        phases=[
            Phase(name="queue", start_s=start, duration_s=wait),
            Phase(name="fork", start_s=start + wait, duration_s=fork),
            Phase(name="episode", start_s=start + wait + fork, duration_s=wall),
        ],
        parameters={"friction": round(draw.uniform(0.6, 1.1), 3), "payload": seed % 3} if "scenario" in test else {},
        episodes=[EpisodeResult(
            seed=str(seed), steps=steps, terminated=good, truncated=not good, limit="" if good else "steps",
            total_reward=like.gauss(40, 5) if good else -12.0, metrics=metrics, fingerprint="", late_steps=0,
            simulated_s=steps / 10, wall_ms=wall * 1000, controller=f"controllers/dock.py{text}",
            stdout="" if good else f"aisle blocked, turning\nbearing 0.{seed}\n{text}", stderr=text,
            attempts=[] if good else [f"open('/etc/passwd') was refused{text}"],
            error=text, curves=curves_of(steps, good, like),
        )],
        replay=f"pytest 'tests/test_dock.py::{test}[seed-{seed:04}]' --microsim-replay v1-{seed:04x}{text}",
        failure="" if good else failure,
        console="" if good else f"[    0.412] island: up\n[    3.118] microsim: adopted seed {seed}\n{text}",
        island="198.18.0.4/30, none",
    )  # fmt: skip


def curves_of(steps: int, good: bool, draw: random.Random) -> list[Curve]:
    """Return five curves of up to 40 points."""
    at = sorted({round(index * steps / 39) for index in range(40)})
    start, wobble = draw.uniform(6, 8), draw.uniform(0.1, 0.6)
    decay = 3.5 / steps if good else 0.9 / steps
    distance: list[float | None] = [start * math.exp(-decay * step) + wobble * math.sin(step / 25) / 4 for step in at]
    reward = [None if step == at[3] or value is None else -value / 10 for step, value in zip(at, distance, strict=True)]
    return [
        Curve(name="observation[19]", steps=at, values=distance),
        Curve(name="observation[20]", steps=at, values=[wobble * math.cos(step / 30) for step in at]),
        Curve(name="action[0]", steps=at, values=[0.8 - wobble * abs(math.sin(step / 40)) for step in at]),
        Curve(name="action[1]", steps=at, values=[wobble * math.sin(step / 15) for step in at]),
        Curve(name="reward", steps=at, values=reward),
    ]  # fmt: skip


def baseline_of(rollouts: list[RolloutResult], draw: random.Random, *, worse: bool) -> BaselineResult:
    """Return what rollouts are measured against: the same in another order of magnitude of noise."""
    shift = 0.06 if worse else 0.0
    old: dict[str, dict[str, float | None]] = {
        rollout.seed: {
            name: None if value is None else value * (1 - shift) + draw.gauss(0, 0.01)
            for name, value in rollout.metrics.items()
        }
        for rollout in rollouts
    }
    trends = [
        trend_of("pass rate", 0.99, 0.93, "higher", "indistinguishable", p=0.03),
        trend_of("time_s", 24.1, 25.6, "lower", "worse" if worse else "better", p=1e-7),
    ]
    return BaselineResult(
        standing="different" if worse else "identical", recorded="2026-11-20T01:00:00+00:00",
        path="tests/baselines/test_dock.jsonl",
        environment=["the world's digest differs: 9f2c41d07be3, in the baseline 1a2b3c4d5e6f"] if worse else [],
        identical=0 if worse else len(rollouts), different=len(rollouts) if worse else 0,
        differences=[SeedDifference(seed=rollouts[0].seed, column="observation[19]", step=41, baseline=3.21, now=3.34)]
        if worse else [],
        trends=trends if worse else trends[:1], variance=["jerk: spread 0.52 to 0.31, p = 0.002"] if worse else [],
        metrics=old,
    )  # fmt: skip


def trend_of(metric: str, baseline: float, now: float, better: Better, trend: Trend, p: float) -> MetricTrend:
    """Return what became of one metric."""
    return MetricTrend(
        metric=metric, better=better, baseline=baseline, now=now, difference=now - baseline, low=now - baseline - 0.04,
        high=now - baseline + 0.04, confidence=0.95, effect=None, p=p, p_corrected=4 * p, test="exact", trend=trend,
    )  # fmt: skip
