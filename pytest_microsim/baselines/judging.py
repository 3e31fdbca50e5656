"""What a comparison with a baseline amounts to: the verdict over a group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..gates.verdicts import Outcome, Verdict
from ..results.model import MetricTrend
from ..statistics.trends import PASS_RATE, worst
from .comparison import Compare, metrics_of

GATE = "baseline"
UPDATE = "pytest --microsim-baseline update"
_MOST_METRICS = 6
_MOST_LINES = 6


def verdict_of(compare: Compare) -> Verdict:
    """Return the verdict over one group.

    It fails where a metric or the pass rate got worse beyond chance, where a trajectory is not what the test says it
    must be, and where the baseline cannot be read. Whatever else is not as it was warns.
    """
    now, result = compare.now, compare.result
    if now.problem:
        return _verdict(compare, Outcome.ERROR, now.problem)
    if result.standing in ("missing", "stale", "not comparable"):
        return _nothing_to_compare(compare)
    outcome, message = _of_metrics(compare)
    broken = _broken(compare)
    if broken:
        outcome, message = Outcome.FAILED, f"{broken}; {message}"
    worse = compare.compared is not None and worst(compare.compared.trends) == "worse"
    environment = "".join(f"{line}; " for line in result.environment[:_MOST_LINES])
    return _verdict(
        compare,
        outcome,
        f"{environment}{_counts(compare)}; {message}",
        cause=_cause(compare) if outcome in (Outcome.FAILED, Outcome.WARNED) else "",
        next_step=_next_step(outcome, worse=worse),
    )


def _nothing_to_compare(compare: Compare) -> Verdict:
    must, standing = compare.now.wishes.must, compare.result.standing
    if standing == "missing":
        outcome, message = Outcome.WARNED, "there is no baseline of these seeds"
        cause, next_step = "", f"record one: {UPDATE}"
    elif standing == "stale":
        outcome, message = Outcome.WARNED, f"the baseline is of another test: {'; '.join(compare.stale)}"
        cause, next_step = "the scenario was changed since", f"record it again: {UPDATE}"
    else:
        outcome = Outcome.INCONCLUSIVE
        environment = "; ".join(compare.result.environment[:_MOST_LINES])
        message = f"not comparable: {environment}; not compared: {_side_by_side(compare)}"
        cause = "the baseline was recorded on another machine, or with another world"
        next_step = (
            f"compare on such a machine, or record it here: {UPDATE}; if the metrics should not depend on it, name the "
            'knob: baseline={"across": ["digest"]}'
        )
    if must:
        outcome = Outcome.FAILED
        message += f"; the test says that it must be {'identical' if must == 'identical' else 'within tolerance'}"
    return _verdict(compare, outcome, message, cause=cause, next_step=next_step)


def _of_metrics(compare: Compare) -> tuple[Outcome, str]:
    """Judge the metrics, and say what they come to."""
    different = compare.result.standing == "different"
    if not compare.assessed:
        total = len(compare.now.rollouts)
        return Outcome.NOT_ASSESSED, (
            f"{total} of {compare.now.group.expected} seeds were run to their end, so the metrics are not compared"
        )
    assert compare.compared is not None
    trends = compare.compared.trends
    spread = "".join(f"; {line}" for line in compare.compared.spread)
    comes_to = worst(trends)
    if comes_to == "indistinguishable":
        few = "; so few seeds differ that no test could have told" if compare.compared.powerless else ""
        said = "no metric differs" if all(trend.p is None for trend in trends) else "indistinguishable"
        said += f"{_closest(trends)}{few}{spread}"
        return Outcome.WARNED if different or spread else Outcome.PASSED, said
    told = [trend for trend in trends if trend.trend == comes_to]
    others = [trend for trend in trends if trend.trend not in (comes_to, "indistinguishable")]
    shown = sorted(told, key=_by_p) + sorted(others, key=_by_p)
    lines = [described(trend) for trend in shown[:_MOST_METRICS]]
    if len(shown) > _MOST_METRICS:
        lines.append(f"{len(shown) - _MOST_METRICS} more")
    said = f"{comes_to}: {'; '.join(lines)}{spread}"
    return Outcome.FAILED if comes_to == "worse" else Outcome.WARNED, said


def described(trend: MetricTrend) -> str:
    """Return one metric in words: from what to what, by how much, and how sure that is."""
    then, now = (_number(trend, value) for value in (trend.baseline, trend.now))
    between = ""
    if trend.low is not None and trend.high is not None:
        ends = f"{_signed(trend, trend.low)} to {_signed(trend, trend.high)}"
        between = f", {trend.confidence:.0%} interval {ends}"
    of_ranks = " in the typical seed that changed" if trend.test.startswith("signed rank") else ""
    effect = "" if trend.effect is None else f", effect {trend.effect:+.2f}"
    direction = "no direction is said to be better" if trend.better == "unknown" else f"{trend.better} is better"
    p = "" if trend.p_corrected is None else f", p = {trend.p_corrected:.1g} corrected"
    difference = f"{_signed(trend, trend.difference)}{of_ranks}{between}{effect}{p}, {direction}"
    return f"{trend.metric} {then} -> {now} ({difference})"


def _counts(compare: Compare) -> str:
    result = compare.result
    parts = [
        (result.identical, "identical"),
        (result.within, "within tolerance"),
        (result.different, "different"),
        (result.missing, "without a baseline"),
        (compare.elsewhere, "recorded in another environment"),
    ]
    seeds = sum(number for number, _ in parts)
    told = ", ".join(f"{number} {what}" for number, what in parts if number)
    recorded = result.recorded[:10]
    return f"{seeds} {'seed' if seeds == 1 else 'seeds'} against the baseline of {recorded}: {told}"


def _broken(compare: Compare) -> str:
    """Say in what the test's own demand is not met; empty where it is, or there is none."""
    must, result = compare.now.wishes.must, compare.result
    if must and (result.different or (must == "identical" and result.within)):
        return f"all must be {'identical' if must == 'identical' else 'within tolerance'}"
    return f"all must have a baseline ({result.missing} have none)" if must and result.missing else ""


def _cause(compare: Compare) -> str:
    """Say where trajectories first differ."""
    lines = []
    if compare.result.differences:
        first = min(compare.result.differences, key=lambda each: each.step)
        values = "" if first.column == "" or first.baseline is None else f": {first.baseline!r} then, {first.now!r} now"
        where = f"{first.column} " if first.column else ""
        lines.append(f"seed {first.seed} first differs at step {first.step}, {where}".rstrip(", ") + values)
    lines += compare.reasons[: _MOST_LINES - len(lines)]
    return "; ".join(lines)


def _next_step(outcome: Outcome, *, worse: bool) -> str:
    if worse:
        return f"replay one of its seeds; if the change is meant, record it: {UPDATE}"
    return f"if the change is meant, record it: {UPDATE}" if outcome in (Outcome.FAILED, Outcome.WARNED) else ""


def _side_by_side(compare: Compare) -> str:
    """Return the metrics' means then and now, without a word on what that means."""
    kept = [dict(each) for each in compare.result.metrics.values()]
    rollouts = [metrics_of(each) for each in compare.now.rollouts.values()]
    names = sorted({name for each in kept for name in each} & {name for each in rollouts for name in each})
    told = [f"{name} {_mean(rollouts, name)} ({_mean(kept, name)} then)" for name in names[:_MOST_METRICS]]
    return ", ".join(told) or "no metric"


def _mean(metrics: Sequence[dict[str, Any]], name: str) -> str:
    numbers = [each[name] for each in metrics if each.get(name) is not None]
    return f"{math.fsum(numbers) / len(numbers):.4g}" if numbers else "none"


def _closest(trends: Sequence[MetricTrend]) -> str:
    """Return the metric that came closest to being told apart, if any seed differs."""
    found = min((trend for trend in trends if trend.p_corrected is not None), key=_by_p, default=None)
    return "" if found is None else f"; closest is {described(found)}"


def _by_p(trend: MetricTrend) -> float:
    return 1.0 if trend.p_corrected is None else trend.p_corrected


def _number(trend: MetricTrend, value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:.1%}" if trend.metric == PASS_RATE else f"{value:.4g}"


def _signed(trend: MetricTrend, value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{100 * value:+.1f} points" if trend.metric == PASS_RATE else f"{round(value, 12):+.3g}"


def _verdict(compare: Compare, outcome: Outcome, message: str, *, cause: str = "", next_step: str = "") -> Verdict:
    name = compare.now.group.name
    return Verdict(
        gate=GATE,
        group=name,
        outcome=outcome,
        # A failure is reported under the group's name; what is listed only is not.
        message=f"{name}: {message}" if outcome in (Outcome.WARNED, Outcome.INCONCLUSIVE) else message,
        n=len(compare.now.rollouts),
        cause=cause,
        next_step=next_step,
    )
