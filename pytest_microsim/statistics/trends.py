"""Many groups and metrics of one run against those of another: better, worse, shifted, or not to be told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..results.model import Better, MetricTrend, Trend
from .corrections import holm
from .paired import Pair, Paired, paired_numbers, paired_shares
from .spread import Spread, compare_spread

PASS_RATE = "pass rate"
TOTAL_REWARD = "total_reward"
ALPHA = 0.01
"""The chance that a run in which nothing changed is called different anywhere."""

CONFIDENCE = 0.95
RELATIVE = 1e-6
"""Differences of a metric up to this share of it count as none, where nobody says otherwise."""

HIGHER = (PASS_RATE, TOTAL_REWARD)


@dataclass(frozen=True)
class Allowed:
    """Differences of one metric that count as none: up to ``absolute + relative * |baseline|``."""

    absolute: float = 0.0
    relative: float = RELATIVE


@dataclass(frozen=True)
class Pairs:
    """The seeds that two runs of one group have in common.

    Attributes:
        passed: Whether each seed passed, then and now.
        metrics: The numbers of each seed, then and now, by metric; None where there is none.
        better: Which direction of a metric is the better one, where somebody says; of the pass rate and the total
            reward it is "higher".
        allowed: What differences of a metric count as none, where somebody says.
    """

    passed: Sequence[tuple[bool, bool]]
    metrics: Mapping[str, Sequence[Pair]]
    better: Mapping[str, Better] = field(default_factory=dict)
    allowed: Mapping[str, Allowed] = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    """What came of one group.

    Attributes:
        trends: One per metric, the pass rate first, then by name.
        spread: A line for each metric whose spread over seeds shrank beyond chance.
        powerless: True if so few seeds changed that no metric could have been told apart.
    """

    trends: list[MetricTrend]
    spread: list[str]
    powerless: bool = False


def compare_groups(groups: Sequence[Pairs], *, alpha: float = ALPHA, confidence: float = CONFIDENCE) -> list[Compared]:
    """Compare all groups of a run at once, since the correction has to know how many tests there are.

    Metrics of which no seed differs are not among them: whether any does is known without looking at the signs, by
    which the tests decide.

    Args:
        groups: Both runs' numbers.
        alpha: The chance of calling anything different where nothing is.
        confidence: Of each interval by itself.

    Returns:
        One result for each group, in order.
    """
    tested = [_tested(group, confidence) for group in groups]
    corrected = _corrected([[each.p if each.changed else None for each in group.values()] for group in tested])
    spreads = [_spreads(group) for group in groups]
    shrunk = _corrected([[spread.p for spread in group.values()] for group in spreads])
    results = []
    for group, found, p_values, spread, p_spread in zip(groups, tested, corrected, spreads, shrunk, strict=True):
        trends = [
            _trend(name, each, p, group.better.get(name, "higher" if name in HIGHER else "unknown"), alpha, confidence)
            for (name, each), p in zip(found.items(), p_values, strict=True)
        ]
        lines = [
            f"{name}: the spread over seeds (standard deviation) shrank from {each.baseline:.4g} to {each.now:.4g} "
            f"(p = {p:.2g}, corrected)"
            for (name, each), p in zip(spread.items(), p_spread, strict=True)
            if each.shrank and p is not None and p <= alpha
        ]
        differing = [each for each in found.values() if each.changed]
        powerless = bool(differing) and all(each.least_p > alpha for each in differing)
        results.append(Compared(trends, lines, powerless))
    return results


def worst(trends: Sequence[MetricTrend]) -> Trend:
    """Return what a group comes to: worse before shifted before better before indistinguishable."""
    order: tuple[Trend, ...] = ("worse", "shifted", "better")
    return next((kind for kind in order if any(trend.trend == kind for trend in trends)), "indistinguishable")


def _tested(group: Pairs, confidence: float) -> dict[str, Paired]:
    found = {PASS_RATE: paired_shares(group.passed, confidence=confidence)} if group.passed else {}
    for name in sorted(group.metrics):
        allowed = group.allowed.get(name, Allowed())
        found[name] = paired_numbers(
            group.metrics[name], absolute=allowed.absolute, relative=allowed.relative, confidence=confidence
        )
    return found


def _spreads(group: Pairs) -> dict[str, Spread]:
    found = {}
    for name in sorted(group.metrics):
        both = [(then, now) for then, now in group.metrics[name] if then is not None and now is not None]
        if len(both) > 1 and any(then != now for then, now in both):
            found[name] = compare_spread([then for then, _ in both], [now for _, now in both])
    return found


def _corrected(groups: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
    """Correct the p-values of all groups together; None is no test."""
    tests = iter(holm([p for group in groups for p in group if p is not None]))
    return [[None if p is None else next(tests) for p in group] for group in groups]


def _trend(
    name: str, found: Paired, p_corrected: float | None, better: Better, alpha: float, confidence: float
) -> MetricTrend:
    trend: Trend = "indistinguishable"
    if p_corrected is not None and p_corrected <= alpha and found.difference:
        rises = found.difference > 0.0
        trend = "shifted" if better == "unknown" else "better" if rises == (better == "higher") else "worse"
    left_out = f" ({found.left_out} seeds lack a number)" if found.left_out else ""
    return MetricTrend(
        metric=name,
        better=better,
        baseline=found.baseline,
        now=found.now,
        difference=found.difference,
        low=found.low,
        high=found.high,
        confidence=confidence,
        effect=found.effect,
        p=found.p if found.changed else None,
        p_corrected=p_corrected,
        test=found.test + left_out,
        trend=trend,
    )
