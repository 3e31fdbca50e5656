"""Results as the types of :mod:`~pytest_microsim.results.model`, from what tests' reports carry and gates say."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import psutil

from ..gates.variance import GATE
from ..gates.verdicts import Outcome as GateOutcome
from ..gates.verdicts import Verdict
from ..statistics.intervals import clopper_pearson
from .model import AskedRate, GateResult, GroupResult, Host, Outcome, Phase, Rate, RolloutResult, WorldResult

TRIED = ("passed", "failed", "missed")
"""Outcomes of rollouts in which the test had its say: the others tell nothing of what it tests."""

LOST = ("failed", "error", "missed")
"""Outcomes of rollouts that nobody wants."""

_ASSESSED = (GateOutcome.PASSED, GateOutcome.WARNED, GateOutcome.FAILED)


def finite(values: Mapping[str, object]) -> dict[str, float | None]:
    """Return numbers by name as JSON can have them: null for what is not finite."""
    return {name: number(value) for name, value in values.items()}


def number(value: object) -> float | None:
    """Return a number as JSON can have it, or None."""
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def phases_of(spans: Iterable[Sequence[Any]], began: float) -> list[Phase]:
    """Return phases, from names, seconds since 1970 and seconds.

    Args:
        spans: In any order.
        began: When the run began, in seconds since 1970.
    """
    ordered = sorted(spans, key=lambda span: float(span[1]))
    return [
        Phase(name=name, start_s=round(start - began, 6), duration_s=round(took, 6)) for name, start, took in ordered
    ]


def rollout_of(
    facts: Mapping[str, Any], *, nodeid: str, outcome: Outcome, duration_s: float, phases: list[Phase]
) -> RolloutResult:
    """Return one rollout, from what :func:`pytest_microsim.report.rollouts.facts_of` says of it."""
    known = {name: value for name, value in facts.items() if name in RolloutResult.__struct_fields__}
    return msgspec.convert(
        {**known, "nodeid": nodeid, "outcome": outcome, "duration_s": round(duration_s, 6), "phases": phases},
        RolloutResult,
    )


def group_of(facts: Mapping[str, Any], rollouts: Iterable[RolloutResult], verdicts: Sequence[Verdict]) -> GroupResult:
    """Return one group.

    Args:
        facts: What its tests' reports say of it.
        rollouts: All that ended, in any order.
        verdicts: Of the gates.
    """
    ordered = sorted(rollouts, key=lambda rollout: (int(rollout.seed), rollout.run))
    path, line, _ = facts["location"]
    group = GroupResult(
        key=facts["key"],
        name=named(facts),
        location=f"{path}:{(line or 0) + 1}",
        scenario=facts["scenario"],
        tags=list(facts["tags"]),
        world=facts["world"],
        environment=dict(facts["environment"]),
        expected=facts["expected"],
        schedules=facts["schedules"],
        rollouts=ordered,
        pass_rate=rate_under_schedules(ordered) if facts["schedules"] else rate_of(ordered),
        asked_rate=None if facts["asked_rate"] is None else AskedRate(**facts["asked_rate"]),
        n_eff=next((v.n_eff for v in verdicts if v.gate == GATE and v.outcome in _ASSESSED), None),
    )
    add_verdicts(group, verdicts)
    return group


def named(facts: Mapping[str, Any]) -> str:
    """Return a group's name: the test, with its other parameters."""
    parameters = facts["parameters"]
    return f"{facts['test']}[{parameters}]" if parameters else str(facts["test"])


def rate_of(rollouts: Iterable[RolloutResult]) -> Rate | None:
    """Return the share of seeds that passed, of those whose first run ended with a verdict of the test's."""
    return _share(rollout for rollout in rollouts if rollout.run == 1)


def rate_under_schedules(rollouts: Iterable[RolloutResult]) -> Rate | None:
    """Return the share of seeds that passed under all schedules under which they were run.

    Args:
        rollouts: In order of seeds and runs.
    """
    found: dict[str, RolloutResult] = {}
    for rollout in rollouts:
        known = found.setdefault(rollout.seed, rollout)
        if known.outcome not in LOST and rollout.outcome in LOST:
            found[rollout.seed] = rollout
    return _share(found.values())


def _share(rollouts: Iterable[RolloutResult]) -> Rate | None:
    tried = [rollout for rollout in rollouts if rollout.outcome in TRIED]
    if not tried:
        return None
    passed = sum(rollout.outcome == "passed" for rollout in tried)
    low, high = clopper_pearson(passed, len(tried))
    return Rate(passed=passed, total=len(tried), low=low, high=high)


def complete(group: GroupResult) -> bool:
    """Tell whether each of a group's seeds had its first run, and the test its say in it."""
    return group.pass_rate is not None and group.pass_rate.total == group.expected


def add_verdicts(group: GroupResult, verdicts: Iterable[Verdict]) -> None:
    """Add what judges say to a group."""
    group.verdicts += [
        GateResult(
            gate=verdict.gate,
            outcome=verdict.outcome.value,
            metric=verdict.metric,
            message=verdict.message,
            n=verdict.n,
            n_eff=verdict.n_eff,
            clusters=[[str(seed) for seed in cluster] for cluster in verdict.clusters],
            cause=verdict.cause,
            next_step=verdict.next_step,
        )
        for verdict in verdicts
    ]


def world_of(
    name: str, facts: Mapping[str, Any], *, warmed: bool, findings: Iterable[str], began: float
) -> WorldResult:
    """Return one world.

    Args:
        name: Its name.
        facts: As :meth:`pytest_microsim.worlds.WorldPool.facts` gives them, with the ``warm_ups`` of all processes.
        warmed: Any process had to warm it.
        findings: All of them.
        began: When the run began, in seconds since 1970.
    """
    return WorldResult(
        name=name,
        digest=facts["digest"],
        snapshot=facts["snapshot"],
        engine=facts["engine"],
        isolation=facts["isolation"],
        warmed=warmed,
        phases=phases_of((("warm-up", start, took) for start, took in facts["warm_ups"]), began),
        findings=list(findings),
    )


def this_host() -> Host:
    """Describe the machine that this process runs on."""
    from microsim_vm.engines import hostcpu

    return Host(
        cpu=hostcpu.model(),
        cores=os.cpu_count() or 1,
        memory_mib=psutil.virtual_memory().total >> 20,
        kernel=platform.release(),
        system=_system(),
    )


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):  # a machine without that file
        return platform.system()
