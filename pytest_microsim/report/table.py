"""The table of groups at the end of a run: one line each, in 80 columns where that is all there is."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ..results.gathering import rate_of
from ..results.model import BaselineResult, GroupResult, Rate

MOST_ROWS = 40
MIN_NAME = 7
"""Columns of names, at least: longer ones have a line of their own."""

_HEAD = ("seeds", "passed", "pass rate (95 %)", "N_eff")
_BASELINE = "baseline"
_TIMES = ("fork ms", "ep. ms")
_ORDER = ("worse", "shifted", "better")


def shortened(text: str, width: int) -> str:
    """Cut a name in the middle, so that its beginning and its end are left."""
    if len(text) <= width:
        return text
    end = (width - 2) * 2 // 3
    return f"{text[: width - 2 - end]}..{text[len(text) - end :]}"


def table_of(groups: Sequence[GroupResult], width: int) -> Iterator[str]:
    """Yield the lines of the table: the groups of several seeds, and in one line all tests that have but one.

    Args:
        groups: Of the run, in its order.
        width: Columns of the terminal.
    """
    many = [group for group in groups if of_seeds(group)]
    single = [group for group in groups if not of_seeds(group)]
    if not many:
        return
    compared = any(group.baseline is not None for group in groups)
    short = names_of(many)
    rows = [(short[group.key], _cells(group, compared=compared)) for group in many[:MOST_ROWS]]
    if single:
        what = "test" if len(single) == 1 else "tests"
        rows.append((f"{len(single)} {what} of one seed", _together(single, compared=compared)))
    head = [*_HEAD, *([_BASELINE] if compared else []), *_TIMES]
    widths = [max(len(cells[place]) for cells in [head, *(cells for _, cells in rows)]) for place in range(len(head))]
    room = max(MIN_NAME, width - sum(widths) - 2 * len(widths))
    names = min(room, max(len(name) for name, _ in rows))
    yield _row("group", head, names, widths)
    for name, cells in rows:
        if len(name) > names:
            yield shortened(name, width)
            name = ""
        yield _row(name, cells, names, widths)
    if len(many) > MOST_ROWS:
        yield f"... and {len(many) - MOST_ROWS} more groups: --microsim-results FILE writes all of them"


def names_of(groups: Sequence[GroupResult]) -> dict[str, str]:
    """Return what groups are called by their keys: without the file where no other one is called so."""
    inside = {group.key: in_file(group.name, group.location.rpartition(":")[0]) for group in groups}
    often = Counter(inside.values())
    return {group.key: inside[group.key] if often[inside[group.key]] == 1 else group.name for group in groups}


def in_file(name: str, path: str) -> str:
    """Return a test's name without its file's."""
    return name.removeprefix(f"{path}::")


def of_seeds(group: GroupResult) -> bool:
    """Tell whether a group has a line of its own: it has several seeds or schedules, a baseline, or a scenario file."""
    return group.expected > 1 or group.schedules > 1 or group.baseline is not None or bool(group.scenario)


def against(baseline: BaselineResult | None) -> str:
    """Return what a group comes to against its baseline, in one or two words: the worst trend, else the standing."""
    if baseline is None:
        return "-"
    found = {trend.trend for trend in baseline.trends}
    worst = next((name for name in _ORDER if name in found), None)
    return worst or baseline.standing


def percent(rate: Rate | None) -> str:
    """Return a pass rate with its interval, such as ``98.4 (91.6-100)``; in percent."""
    if rate is None:
        return "-"
    return f"{_short(rate.passed / rate.total)} ({_short(rate.low)}-{_short(rate.high)})"


def _cells(group: GroupResult, *, compared: bool) -> list[str]:
    seeds = len({rollout.seed for rollout in group.rollouts})
    cells = [
        str(seeds) if seeds == group.expected else f"{seeds}/{group.expected}",
        "-" if group.pass_rate is None else str(group.pass_rate.passed),
        percent(group.pass_rate),
        "-" if group.n_eff is None else f"{group.n_eff:.1f}",
    ]
    return [*cells, *([against(group.baseline)] if compared else []), *_times([group])]


def _together(groups: Sequence[GroupResult], *, compared: bool) -> list[str]:
    rate = rate_of(rollout for group in groups for rollout in group.rollouts)
    seeds = str(sum(bool(group.rollouts) for group in groups))
    # An interval of a share of different tests would be one of nothing.
    cells = [seeds, "-" if rate is None else str(rate.passed), "-", "-"]
    return [*cells, *(["-"] if compared else []), *_times(groups)]


def _times(groups: Iterable[GroupResult]) -> list[str]:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    forks = [phase.duration_s for rollout in rollouts for phase in rollout.phases if phase.name == "fork"]
    episodes = [episode.wall_ms / 1000.0 for rollout in rollouts for episode in rollout.episodes]
    return [f"{statistics.median(times) * 1000:.0f}" if times else "-" for times in (forks, episodes)]


def _short(share: float) -> str:
    # A share below 1 is not shown as 100, nor one above 0 as 0.
    if share in (0.0, 1.0):
        return str(round(100 * share))
    return f"{min(max(100 * share, 0.1), 99.9):.1f}"


def _row(name: str, cells: Sequence[str], names: int, widths: Sequence[int]) -> str:
    columns = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return f"{name.ljust(names)}  {columns}".rstrip()
