"""``microsim report``: the results of a run as one HTML file, and two runs compared."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output, printable, table

if TYPE_CHECKING:
    from microsim_vm.cli.common import Commands

    from ..results.comparison import Comparison
    from ..results.model import MetricTrend, Rate, RunResult

TEXT = """Show the results of a run, from the file that pytest --microsim-results wrote, and make the HTML report of it.
Of two files the second run is measured against the first: in what their environments differ, which seeds broke and
which were mended, and metric by metric, paired by seed, what is better, worse or not to be told apart."""
MOST_SEEDS = 8


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "report", run, " ".join(TEXT.split()))
    parser.add_argument(
        "results", nargs="+", type=Path, metavar="FILE", help="a results file; or two, the earlier run first"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the report to this HTML file, which is replaced"
    )
    parser.add_argument(
        "--fail-on-worse",
        action="store_true",
        help="end with status 1 if anything is worse than in the first file, or gone",
    )


def run(args: argparse.Namespace, output: Output) -> int:
    """Show one run, or compare two."""
    from ..errors import ReportError
    from ..results.file import read

    if len(args.results) > 2:
        raise ReportError(
            f"{len(args.results)} results files were given, and two can be compared",
            hint="give the earlier run and the later one",
        )
    runs = [read(path) for path in args.results]
    if len(runs) == 1:
        if args.fail_on_worse:
            raise ReportError("--fail-on-worse compares two runs, and one was given", hint="give the earlier run first")
        return _one(runs[0], args, output)
    return _two(runs[0], runs[1], args, output)


def _one(found: RunResult, args: argparse.Namespace, output: Output) -> int:
    from ..report.table import table_of

    if args.output:
        _write(args, found, None, output)
    lines = list(table_of(found.groups, shutil.get_terminal_size().columns))
    document = {
        "groups": [
            {"name": group.name, "expected": group.expected, "pass_rate": _plain(group.pass_rate),
             "verdicts": {verdict.gate: verdict.outcome for verdict in group.verdicts}}
            for group in found.groups
        ],
        "report": str(args.output) if args.output else None,
    }  # fmt: skip
    output.result(document, "\n".join(map(printable, lines)) or "no group of seeds")
    return 0


def _two(before: RunResult, now: RunResult, args: argparse.Namespace, output: Output) -> int:
    from ..results.comparison import against, compare

    first, second = args.results
    names = (first.name, second.name) if first.name != second.name else (str(first), str(second))
    comparison = compare(before, now, names)
    if args.output:
        _write(args, against(before, now, comparison), _plain(comparison), output)
    output.result(_plain(comparison), "\n".join(_lines(comparison)))
    # What is no longer run is not known to be any better.
    return 1 if args.fail_on_worse and (comparison.trend == "worse" or comparison.only_before) else 0


def _write(args: argparse.Namespace, found: RunResult, comparison: dict[str, Any] | None, output: Output) -> None:
    from ..report.html.writing import write

    write(args.output, found, comparison=comparison)
    output.progress(f"report: {args.output}")


def _lines(comparison: Comparison) -> Iterator[str]:
    """Yield the comparison as text; in what the environments differ comes before any number."""
    yield f"before: {comparison.before.name}, {comparison.before.started}"
    yield f"now:    {comparison.now.name}, {comparison.now.started}"
    apart = dict.fromkeys(comparison.environment)
    for group in comparison.groups:
        apart.update(dict.fromkeys(group.environment))
    yield from ["", "the environments differ:", *(f"  {printable(line)}" for line in apart)] if apart else []
    if comparison.groups:
        yield ""
        header = ("GROUP", "TREND", "SEEDS", "SAME", "BEFORE", "NOW", "BROKE", "MENDED")
        yield table(header, [
            (group.name, group.trend, str(group.paired), str(group.identical), _rate(group.before), _rate(group.now),
             _seeds(group.broke), _seeds(group.mended))
            for group in comparison.groups
        ])  # fmt: skip
    changed = [(group, trend) for group in comparison.groups for trend in group.trends
               if trend.trend != "indistinguishable"]  # fmt: skip
    if changed:
        yield ""
        header = ("GROUP", "METRIC", "TREND", "BEFORE", "NOW", "DIFFERENCE", "INTERVAL", "P")
        yield table(header, [
            (group.name, trend.metric, trend.trend, _number(trend.baseline), _number(trend.now),
             _number(trend.difference, sign="+"), _interval(trend), _number(trend.p_corrected))
            for group, trend in changed
        ])  # fmt: skip
    elif comparison.groups:
        yield "no metric differs beyond chance"
    for what, names in (("before", comparison.only_before), ("now", comparison.only_now)):
        yield from ["", f"only {what}:", *(f"  {printable(name)}" for name in names)] if names else []


def _rate(rate: Rate | None) -> str:
    return "-" if rate is None else f"{rate.passed}/{rate.total}"


def _seeds(seeds: list[str]) -> str:
    more = f" +{len(seeds) - MOST_SEEDS}" if len(seeds) > MOST_SEEDS else ""
    return ",".join(seeds[:MOST_SEEDS]) + more if seeds else "-"


def _number(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.4g}"


def _interval(trend: MetricTrend) -> str:
    if trend.low is None or trend.high is None:
        return "-"
    return f"{trend.low:+.4g} to {trend.high:+.4g} ({trend.confidence:.0%})"


def _plain(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value)
