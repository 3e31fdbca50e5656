"""Results of jobs that each ran a part of one suite, put together."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import ResultsError
from ..shard import SEPARATOR, missing
from .model import GroupResult, Phase, RolloutResult, RunResult, WorldResult


def merged(runs: Sequence[RunResult], names: Sequence[str]) -> RunResult:
    """Return the results of a whole suite.

    Each part keeps its own time: the timeline has the workers of each from its own beginning on. The machine is that
    of the first part; what the others' rollouts ran in is in their groups' environments.

    Args:
        runs: One per part, at least one.
        names: What each is called, in messages and before the names of its workers.

    Raises:
        ResultsError: Two of them have the same group, so that they are no parts of one suite.
    """
    shards = [run.shard for run in runs if run.shard]
    groups: dict[str, tuple[str, GroupResult]] = {}
    worlds: dict[str, WorldResult] = {}
    for run, name in zip(runs, names, strict=True):
        for group in run.groups:
            if group.key in groups:
                raise ResultsError(
                    f"{name} and {groups[group.key][0]} both have the group {group.name}",
                    cause="they are two runs of the same tests, or jobs without --microsim-shard",
                    hint="compare two runs with microsim report A B; merge what --microsim-shard 1/N to N/N have left",
                )
            groups[group.key] = name, _of_part(group, name)
        for world in run.worlds:
            worlds[world.name] = _both(worlds[world.name], world) if world.name in worlds else world
    return msgspec.structs.replace(
        runs[0],
        started=min(run.started for run in runs),
        duration_s=max(run.duration_s for run in runs),
        command="; ".join(dict.fromkeys(run.command for run in runs)),
        exit_status=max(run.exit_status for run in runs),
        workers=sum(run.workers for run in runs),
        worlds=[worlds[name] for name in sorted(worlds)],
        groups=[group for _, group in groups.values()],
        baselines=list(dict.fromkeys(line for run in runs for line in run.baselines)),
        shard=SEPARATOR.join(shards) if missing(shards) else "",
    )


def _of_part(group: GroupResult, name: str) -> GroupResult:
    return msgspec.structs.replace(group, rollouts=[_by(rollout, name) for rollout in group.rollouts])


def _by(rollout: RolloutResult, name: str) -> RolloutResult:
    return msgspec.structs.replace(rollout, worker=f"{name} {rollout.worker}".rstrip())


def _both(first: WorldResult, second: WorldResult) -> WorldResult:
    phases: list[Phase] = [*first.phases, *second.phases]
    findings = list(dict.fromkeys([*first.findings, *second.findings]))
    return msgspec.structs.replace(first, warmed=first.warmed or second.warmed, phases=phases, findings=findings)
