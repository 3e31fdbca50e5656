"""The results of a run, as they are written to one JSON file; the published schema is made from these types.

Numbers that are not finite are null: JSON has none. Seeds are text, since they may have 128 bits and many readers of
JSON keep 53.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SCHEMA_VERSION = 1

Outcome = Literal["passed", "failed", "missed", "error", "skipped"]
Standing = Literal["identical", "within tolerance", "different", "missing", "stale", "not comparable", "updated"]
Trend = Literal["better", "worse", "indistinguishable", "shifted"]
Better = Literal["higher", "lower", "unknown"]


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    """What every part of the results has in common."""


class Phase(_Part, kw_only=True):
    """Something that took time, for the timeline of a run.

    Attributes:
        name: "warm-up", "queue" (a fork waits for memory), "fork", "episode", "exec" or "test" (the whole of it).
        start_s: When it began, in seconds since the run did.
        duration_s: How long it took, in seconds.
    """

    name: str
    start_s: float
    duration_s: float


class Curve(_Part, kw_only=True):
    """One number of a trajectory over its steps, thinned out for a picture.

    Attributes:
        name: The column, and the index in it where there are several: "observation[3]".
        steps: Which steps are left, ascending.
        values: The number at each of these; null where it is not finite.
    """

    name: str
    steps: list[int]
    values: list[float | None]


class EpisodeResult(_Part, kw_only=True):
    """One episode; see :class:`pytest_microsim.episode.Episode` for what the names mean."""

    seed: str | None
    steps: int
    terminated: bool
    truncated: bool
    limit: str
    total_reward: float | None
    metrics: dict[str, float | None]
    fingerprint: str
    late_steps: int
    simulated_s: float | None
    wall_ms: float
    controller: str = ""
    options: dict[str, Any] = {}
    error: str = ""
    attempts: list[str] = []
    stdout: str = ""
    stderr: str = ""
    curves: list[Curve] = []


class RolloutResult(_Part, kw_only=True):
    """One rollout: one test with one seed.

    Attributes:
        nodeid: The test's id.
        seed: Its seed.
        run: Which run of the seed it is, from 1.
        schedule: Of a deterministic machine, the number of the order in which its threads take turns, as text; else
            null.
        run_digest: Of all that was in that machine at the end, hex; else empty.
        worker: The worker that ran it, such as "gw0"; empty where there was one process.
        outcome: "missed" is a seed that did not reach what a scenario expects, where the group is judged by its
            pass rate; "error" a test whose fixtures failed.
        duration_s: The test's set-up, call and teardown together.
        phases: What took how long.
        metrics: The scalars the gates look at: metrics of episodes, and what the test recorded.
        parameters: What a scenario set for this seed.
        fingerprint: Of all its episodes; empty where one was not finished.
        episodes: In order.
        replay: The command that runs this rollout alone again.
        failure: What the report of its failure says, or why it missed.
        console: The guest's last lines, of a failed one.
        files: Paths of what it left, relative to the results file where it can be: "video", "trajectory", "pcap".
        island: Its network in one line.
    """

    nodeid: str
    seed: str
    run: int = 1
    schedule: str | None = None
    run_digest: str = ""
    worker: str = ""
    outcome: Outcome
    duration_s: float = 0.0
    phases: list[Phase] = []
    metrics: dict[str, float | None] = {}
    parameters: dict[str, Any] = {}
    fingerprint: str = ""
    episodes: list[EpisodeResult] = []
    replay: str = ""
    failure: str = ""
    console: str = ""
    files: dict[str, str] = {}
    island: str = ""


class Rate(_Part, kw_only=True):
    """A share of rollouts, with an exact (Clopper-Pearson) two-sided interval."""

    passed: int
    total: int
    low: float
    high: float
    confidence: float = 0.95


class AskedRate(_Part, kw_only=True):
    """How many of a group's seeds have to pass; see :class:`pytest_microsim.scenarios.spec.PassRate`."""

    at_least: float
    confidence: float
    by: str


class GateResult(_Part, kw_only=True):
    """What one gate, or another judge of a whole group, said; see :class:`~pytest_microsim.gates.verdicts.Verdict`."""

    gate: str
    outcome: str
    metric: str
    message: str
    n: int
    n_eff: float
    clusters: list[list[str]]
    cause: str = ""
    next_step: str = ""


class MetricTrend(_Part, kw_only=True):
    """One metric of a group against its baseline, paired by seed.

    Attributes:
        metric: Its name; "pass rate" is the share of seeds that passed.
        better: Which direction is the better one.
        baseline, now: Mean over the paired seeds (a share for "pass rate").
        difference: Now minus baseline.
        low, high: Its interval.
        confidence: Of the interval.
        effect: The paired differences' mean over their standard deviation; null where there is none.
        p: Of the test, before correction.
        p_corrected: After correction over all scenarios and metrics of the run.
        test: Which test it was.
        trend: What it comes to; "shifted" is a difference in a direction nobody has called better.
    """

    metric: str
    better: Better
    baseline: float | None
    now: float | None
    difference: float | None
    low: float | None
    high: float | None
    confidence: float
    effect: float | None
    p: float | None
    p_corrected: float | None
    test: str
    trend: Trend


class SeedDifference(_Part, kw_only=True):
    """Where a seed's trajectory first leaves what its baseline allows."""

    seed: str
    column: str
    step: int
    baseline: float | None
    now: float | None


class BaselineResult(_Part, kw_only=True):
    """A group against its baseline.

    Attributes:
        standing: What the trajectories come to.
        recorded: Date and time of the recording, in ISO 8601.
        path: The baseline's file.
        environment: In what the two environments differ; said before any number.
        identical, within, different, missing: How many seeds are so.
        differences: Where seeds first differ, worst first.
        trends: Metric by metric.
        variance: Metrics whose spread over seeds shrank beyond chance, a line each.
        metrics: The baseline's metrics by seed, for pictures.
    """

    standing: Standing
    recorded: str
    path: str
    environment: list[str] = []
    identical: int = 0
    within: int = 0
    different: int = 0
    missing: int = 0
    differences: list[SeedDifference] = []
    trends: list[MetricTrend] = []
    variance: list[str] = []
    metrics: dict[str, dict[str, float | None]] = {}


class GroupResult(_Part, kw_only=True):
    """All rollouts of one test that differ by nothing but the seed; a test with one seed of its own is one too.

    Attributes:
        key: What tells it from the others, the same in every run.
        name: The test, with its other parameters.
        location: File and line.
        scenario: The scenario file; empty for a test in Python.
        tags: The scenario's, or the test's own marks.
        world: The world's name.
        environment: Every knob that changes a trajectory beside the seed.
        expected: How many seeds it has.
        schedules: Under how many schedules each seed is run, one run each; 0 where its runs are meant to be the same.
        rollouts: In order of seeds and runs.
        pass_rate: Of the seeds: of their first runs, and where they are run under several schedules, of those that
            passed under all that were run; null where nothing ran.
        asked_rate: What a scenario asks for; null where every seed has to pass.
        n_eff: How many independent episodes it amounts to; null where that was not assessed.
        verdicts: Of all judges.
        baseline: Null where there is none, or nobody asked.
    """

    key: str
    name: str
    location: str
    scenario: str = ""
    tags: list[str] = []
    world: str
    environment: dict[str, Any] = {}
    expected: int
    schedules: int = 0
    rollouts: list[RolloutResult] = []
    pass_rate: Rate | None = None
    asked_rate: AskedRate | None = None
    n_eff: float | None = None
    verdicts: list[GateResult] = []
    baseline: BaselineResult | None = None


class WorldResult(_Part, kw_only=True):
    """A world that rollouts were forked from."""

    name: str
    digest: str
    snapshot: str
    engine: str
    isolation: str
    warmed: bool
    phases: list[Phase] = []
    findings: list[str] = []


class Host(_Part, kw_only=True):
    """The machine that it ran on."""

    cpu: str
    cores: int
    memory_mib: int
    kernel: str
    system: str


class RunResult(_Part, kw_only=True):
    """One run of pytest.

    Attributes:
        schema_version: Of this format.
        version: Of pytest-microsim.
        started: Date and time, in ISO 8601 with a time zone.
        duration_s: In seconds.
        command: What was typed.
        exit_status: pytest's.
        workers: How many processes ran tests.
        host: The machine.
        worlds: In order of names.
        groups: In order of the tests.
        baselines: What is to be said of baselines as a whole: stale, missing and orphaned ones, a line each.
        shard: Which part of the suite it was, such as "1/2"; of several parts that are not all, those. Empty where it
            was the whole.
    """

    schema_version: int = SCHEMA_VERSION
    version: str
    started: str
    duration_s: float
    command: str
    exit_status: int
    workers: int
    host: Host
    worlds: list[WorldResult] = []
    groups: list[GroupResult] = []
    baselines: list[str] = []
    shard: str = ""
