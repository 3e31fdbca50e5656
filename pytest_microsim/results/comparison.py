"""Two runs compared: the environments first, then the same seeds of the same groups, then and now.

It computes with :mod:`pytest_microsim.statistics`, and so needs numpy.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import ReportError
from ..gates.comparability import compare as compare_environments
from .model import (
    BaselineResult,
    Better,
    GroupResult,
    MetricTrend,
    Rate,
    RolloutResult,
    RunResult,
    Trend,
)

_CALLED = ("before", "now")


class RunName(msgspec.Struct):
    """Which run it is.

    Attributes:
        name: Of its file.
        started: Date and time, in ISO 8601.
        command: What was typed.
        version: Of pytest-microsim.
    """

    name: str
    started: str
    command: str
    version: str


class GroupComparison(msgspec.Struct, kw_only=True):
    """One group in both runs.

    Attributes:
        key, name: As in :class:`~pytest_microsim.results.model.GroupResult`.
        trend: The worst of its metrics' trends.
        environment: In what its environments differ, a line each.
        before, now: The two pass rates.
        paired: Seeds that ran in both.
        identical: Seeds among these whose episodes are the same bit by bit.
        broke: Seeds that passed, and no longer do.
        mended: Seeds that did not pass, and now do.
        trends: Metric by metric.
        variance: Metrics whose spread over seeds shrank beyond chance, a line each.
    """

    key: str
    name: str
    trend: Trend
    environment: list[str]
    before: Rate | None
    now: Rate | None
    paired: int
    identical: int
    broke: list[str]
    mended: list[str]
    trends: list[MetricTrend]
    variance: list[str]


class Comparison(msgspec.Struct, kw_only=True):
    """Two runs.

    Attributes:
        before, now: Which they are.
        environment: In what their machines and worlds differ, a line each; to be read before any number.
        groups: Those that both have, in the order of the later run.
        only_before, only_now: Names of groups that only one of them has.
    """

    before: RunName
    now: RunName
    environment: list[str]
    groups: list[GroupComparison]
    only_before: list[str]
    only_now: list[str]

    @property
    def trend(self) -> Trend:
        """The worst trend of all groups."""
        from ..statistics.trends import worst

        return worst([trend for group in self.groups for trend in group.trends])


def compare(before: RunResult, now: RunResult, names: tuple[str, str]) -> Comparison:
    """Compare two runs.

    Args:
        before: What the other one is measured against.
        now: The later one.
        names: What the two are called.

    Raises:
        ReportError: numpy is missing.
    """
    try:
        from ..statistics.trends import Pairs, compare_groups, worst
    except ModuleNotFoundError as error:
        raise _without(error) from None

    old = {group.key: group for group in before.groups}
    both = [(old[group.key], group) for group in now.groups if group.key in old]
    paired = [_paired(*pair) for pair in both]
    wanted = [
        Pairs(
            passed=[(_passed(then), _passed(after)) for then, after in seeds],
            metrics={
                name: [(then.metrics.get(name), after.metrics.get(name)) for then, after in seeds]
                for name in sorted({name for pair in seeds for rollout in pair for name in rollout.metrics})
            },
            better=_directions(*pair),
        )
        for pair, seeds in zip(both, paired, strict=True)
    ]
    try:
        found = compare_groups(wanted)
    except ModuleNotFoundError as error:
        raise _without(error) from None
    groups = [
        GroupComparison(
            key=group.key,
            name=group.name,
            trend=worst(compared.trends),
            environment=list(compare_environments(earlier.environment, group.environment, called=_CALLED).differences),
            before=earlier.pass_rate,
            now=group.pass_rate,
            paired=len(seeds),
            identical=sum(bool(then.fingerprint) and then.fingerprint == after.fingerprint for then, after in seeds),
            broke=[after.seed for then, after in seeds if _passed(then) and not _passed(after)],
            mended=[after.seed for then, after in seeds if not _passed(then) and _passed(after)],
            trends=compared.trends,
            variance=compared.spread,
        )
        for (earlier, group), seeds, compared in zip(both, paired, found, strict=True)
    ]
    return Comparison(
        before=RunName(names[0], before.started, before.command, before.version),
        now=RunName(names[1], now.started, now.command, now.version),
        environment=list(compare_environments(_machine(before), _machine(now), called=_CALLED).differences),
        groups=groups,
        only_before=[group.name for group in before.groups if group.key not in {each.key for each in now.groups}],
        only_now=[group.name for group in now.groups if group.key not in old],
    )


def against(before: RunResult, now: RunResult, comparison: Comparison) -> RunResult:
    """Return the later run with the earlier one as the baseline of each group, for pictures."""
    old = {group.key: group for group in before.groups}
    compared = {group.key: group for group in comparison.groups}
    groups = [
        msgspec.structs.replace(
            group,
            baseline=_as_baseline(old[group.key], compared[group.key], comparison, group)
            if group.key in compared
            else None,
        )
        for group in now.groups
    ]
    return msgspec.structs.replace(now, groups=groups)


def _as_baseline(
    earlier: GroupResult, found: GroupComparison, comparison: Comparison, group: GroupResult
) -> BaselineResult:
    return BaselineResult(
        standing="identical" if found.identical == found.paired else "different",
        recorded=comparison.before.started,
        path=comparison.before.name,
        environment=found.environment,
        identical=found.identical,
        different=found.paired - found.identical,
        missing=len(_first_runs(group)) - found.paired,
        trends=found.trends,
        variance=found.variance,
        metrics={seed: rollout.metrics for seed, rollout in _first_runs(earlier).items()},
    )


def _first_runs(group: GroupResult) -> dict[str, RolloutResult]:
    return {rollout.seed: rollout for rollout in group.rollouts if rollout.run == 1 and rollout.outcome != "skipped"}


def _paired(before: GroupResult, now: GroupResult) -> Sequence[tuple[RolloutResult, RolloutResult]]:
    old = _first_runs(before)
    return [(old[seed], rollout) for seed, rollout in _first_runs(now).items() if seed in old]


def _passed(rollout: RolloutResult) -> bool:
    return rollout.outcome == "passed"


def _directions(*groups: GroupResult) -> dict[str, Better]:
    """Return which direction of a metric is the better one, as far as either run's own baseline says so."""
    trends = [trend for group in groups if group.baseline is not None for trend in group.baseline.trends]
    return {trend.metric: trend.better for trend in trends if trend.better != "unknown"}


def _machine(run: RunResult) -> dict[str, object]:
    """Return what the machine is; the worlds' digests are in the environments of their groups."""
    host = run.host
    return {
        "host": {"cpu": host.cpu, "cores": host.cores, "memory_mib": host.memory_mib, "kernel": host.kernel,
                 "system": host.system},
        "pytest-microsim": run.version,
        "worlds": {world.name: {"engine": world.engine, "isolation": world.isolation} for world in run.worlds},
    }  # fmt: skip


def _without(error: ModuleNotFoundError) -> ReportError:
    return ReportError(
        f"two runs cannot be compared without {error.name}",
        hint="install what the statistics need: pip install 'pytest-microsim[baselines]'",
    )
