"""All groups of a run against their baselines: what is the same, what differs, and whether it got worse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..gates.comparability import compare
from ..results.gathering import TRIED, complete
from ..results.model import BaselineResult, Better, GroupResult, RolloutResult, SeedDifference, Standing
from ..statistics.trends import ALPHA, TOTAL_REWARD, Compared, Pairs, compare_groups
from .divergence import Divergence
from .store import Baseline, Entry
from .wishes import Wishes

MOST_DIFFERENCES = 50
_CALLED = ("in the baseline", "now")


@dataclass(frozen=True)
class GroupNow:
    """A group, and all that is known of its baseline.

    Attributes:
        group: What it gave now.
        path: Where its baseline is, or would be.
        baseline: The baseline; None where there is none.
        environment: What it ran in now, flat.
        host: On what, as :attr:`~pytest_microsim.baselines.store.Entry.host` has it.
        seeds: What each seed's trajectory comes to, as :func:`~pytest_microsim.baselines.seeds.compared` says it.
        wishes: What the test says of its baseline.
        better: Which direction of a metric is the better one.
        problem: Why the baseline cannot be read; empty where it can.
        narrowed: The seeds were chosen on the command line, and are not all that the test has.
        lost: Seeds whose rollouts ended by an error of the world or the engine, which says nothing of the test.
    """

    group: GroupResult
    path: Path
    baseline: Baseline | None
    environment: Mapping[str, Any]
    host: str
    seeds: Mapping[int, Mapping[str, Any]]
    wishes: Wishes = field(default_factory=Wishes)
    better: Mapping[str, Better] = field(default_factory=dict)
    problem: str = ""
    narrowed: bool = False
    lost: frozenset[int] = frozenset()

    @property
    def rollouts(self) -> dict[int, RolloutResult]:
        """The first run of each seed in which the test had its say."""
        tried = [each for each in self.group.rollouts if each.run == 1 and each.outcome in TRIED]
        return {int(each.seed): each for each in tried if int(each.seed) not in self.lost}


@dataclass(frozen=True)
class Compare:
    """What a group comes to against its baseline.

    Attributes:
        now: The group.
        result: For reports.
        compared: Its metrics; None where they are not to be compared.
        assessed: All of its seeds were run, so that its metrics tell something of the group.
        stale: What the baseline has and the group no more, or the other way round, a line each.
        reasons: Why seeds differ that have no first difference, each once.
        elsewhere: How many of its seeds have a baseline from an environment that cannot be compared.
    """

    now: GroupNow
    result: BaselineResult
    compared: Compared | None
    assessed: bool
    stale: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    elsewhere: int = 0


def compare_all(groups: Sequence[GroupNow], *, alpha: float = ALPHA) -> list[Compare]:
    """Compare all groups of a run; the correction for many tests is over all of them.

    Args:
        groups: In any order.
        alpha: The chance that anything is called different where nothing is.

    Returns:
        One for each, in the same order.
    """
    sorted_out = [_SortedOut(now) for now in groups]
    tested = [each for each in sorted_out if each.usable and each.assessed]
    compared = iter(compare_groups([each.pairs() for each in tested], alpha=alpha) if tested else [])
    return [each.finished(next(compared) if each.usable and each.assessed else None) for each in sorted_out]


def metrics_of(rollout: RolloutResult) -> dict[str, float | None]:
    """Return the metrics of a rollout that a baseline keeps: those that gates see, and the total reward."""
    rewards = [episode.total_reward for episode in rollout.episodes]
    finite = [reward for reward in rewards if reward is not None]
    total = {TOTAL_REWARD: math.fsum(finite)} if rewards and len(finite) == len(rewards) else {}
    return {**total, **rollout.metrics}


def parameters_of(rollout: RolloutResult) -> dict[str, str]:
    """Return a rollout's parameters as a baseline keeps them."""
    return {name: value if isinstance(value, str) else repr(value) for name, value in rollout.parameters.items()}


class _SortedOut:
    """The seeds of a group, by whether they can be compared with their baselines."""

    def __init__(self, now: GroupNow) -> None:
        self.now = now
        self.assessed = complete(now.group) and not now.lost
        self.rollouts = now.rollouts
        baseline = now.baseline
        entries = {} if baseline is None else baseline.seeds
        self.environment, foreign = _environments(
            now, {seed: entries[seed] for seed in self.rollouts if seed in entries}
        )
        both = [seed for seed in sorted(self.rollouts) if seed in entries]
        self.elsewhere = [seed for seed in both if entries[seed].environment in foreign]
        near = [seed for seed in both if entries[seed].environment not in foreign]
        self.stale = [seed for seed in near if parameters_of(self.rollouts[seed]) != entries[seed].parameters]
        self.usable = [seed for seed in near if seed not in set(self.stale)]
        self.missing = [seed for seed in self.rollouts if seed not in entries]
        self.entries = entries

    def pairs(self) -> Pairs:
        """Return what the seeds that can be compared gave, then and now."""
        both = [(self.entries[seed], self.rollouts[seed]) for seed in self.usable]
        then = [entry.metrics for entry, _ in both]
        now = [metrics_of(rollout) for _, rollout in both]
        names = _names(then) & _names(now)
        return Pairs(
            [(entry.outcome == "passed", rollout.outcome == "passed") for entry, rollout in both],
            {name: [(a.get(name), b.get(name)) for a, b in zip(then, now, strict=True)] for name in names},
            self.now.better,
            self.now.wishes.metrics,
        )

    def finished(self, compared: Compared | None) -> Compare:
        """Return the whole comparison, once the metrics of all groups are compared."""
        standings = {seed: self.now.seeds.get(seed, {"standing": "missing"}) for seed in self.usable}
        count = {kind: [seed for seed, each in standings.items() if each["standing"] == kind] for kind in _COUNTED}
        unfinished = [seed for seed, each in standings.items() if each["standing"] == "unfinished"]
        baseline = self.now.baseline
        recorded = None if baseline is None else baseline.recorded
        result = BaselineResult(
            standing=self._standing(count),
            recorded="" if recorded is None else recorded.isoformat(),
            path=str(self.now.path),
            environment=self.environment,
            identical=len(count["identical"]) + len(unfinished),
            within=len(count["within"]),
            different=len(count["different"]),
            missing=len(self.missing),
            differences=_differences(standings),
            trends=[] if compared is None else compared.trends,
            variance=[] if compared is None else compared.spread,
            metrics={str(seed): dict(self.entries[seed].metrics) for seed in self.usable + self.elsewhere},
        )
        reasons = dict.fromkeys(each["why"] for each in standings.values() if "why" in each)
        return Compare(
            self.now, result, compared, self.assessed, tuple(self._lines()), tuple(reasons), len(self.elsewhere)
        )

    def _standing(self, count: Mapping[str, Sequence[int]]) -> Standing:
        if not self.usable:
            return "not comparable" if self.elsewhere else "stale" if self.stale else "missing"
        if count["different"]:
            return "different"
        return "within tolerance" if count["within"] else "identical"

    def _lines(self) -> list[str]:
        """Say what is stale."""
        lines = []
        if self.stale:
            lines.append(f"recorded with other parameters: {_seeds(self.stale)}")
        if self.missing and self.entries:
            lines.append(f"not recorded: {_seeds(self.missing)}")
        gone = sorted(set(self.entries) - set(self.rollouts))
        if gone and self.assessed and not self.now.narrowed:
            lines.append(f"recorded, and not run now: {_seeds(gone)}")
        then = _names([self.entries[seed].metrics for seed in self.usable])
        now = _names([metrics_of(self.rollouts[seed]) for seed in self.usable])
        if self.usable and then - now:
            lines.append(f"metrics that are no more: {', '.join(sorted(then - now))}")
        if self.usable and now - then:
            lines.append(f"metrics that are not recorded: {', '.join(sorted(now - then))}")
        return lines


_COUNTED = ("identical", "within", "different")


def _environments(now: GroupNow, entries: Mapping[int, Entry]) -> tuple[list[str], set[str]]:
    """Return in what the environments differ, a sentence each, and the names of those that cannot be compared."""
    lines: dict[str, None] = {}
    foreign: set[str] = set()
    for name in sorted({entry.environment for entry in entries.values()}):
        assert now.baseline is not None
        found = compare(now.baseline.environments[name], now.environment, called=_CALLED)
        lines.update(dict.fromkeys(found.differences))
        if any(knob.partition(".")[0] not in now.wishes.across for knob in found.knobs):
            foreign.add(name)
    for host in sorted({entry.host for entry in entries.values()} - {now.host}):
        lines[f"the host is {host!r} in the baseline and {now.host!r} now"] = None
    return list(lines), foreign


def _differences(standings: Mapping[int, Mapping[str, Any]]) -> list[SeedDifference]:
    """Return where seeds first differ, the one that is furthest off first."""
    found = [
        (seed, Divergence(**each["divergence"])) for seed, each in standings.items() if each.get("divergence")
    ]  # fmt: skip
    found.sort(key=lambda pair: (-pair[1].over, pair[1].episode, pair[1].step, pair[0]))
    return [
        SeedDifference(
            seed=str(seed),
            column=each.column + (f" of episode {each.episode + 1}" if each.episode else ""),
            step=each.step,
            baseline=each.baseline,
            now=each.now,
        )
        for seed, each in found[:MOST_DIFFERENCES]
    ]


def _names(metrics: Sequence[Mapping[str, Any]]) -> set[str]:
    return {name for each in metrics for name in each}


def _seeds(seeds: Sequence[int]) -> str:
    shown = ", ".join(map(str, seeds[:8]))
    return f"seed {shown}" if len(seeds) == 1 else f"{len(seeds)} seeds ({shown}{', ...' if len(seeds) > 8 else ''})"
