"""The summary at the end of a run: one line per world, and what the gates said."""

from __future__ import annotations

import shutil
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from ..gates.verdicts import Outcome, Verdict
from ..interleavings.judging import GATE as SCHEDULES
from ..results.model import GroupResult
from .collecting import Collecting
from .sections import shown
from .standouts import standouts
from .table import names_of, table_of
from .verdicts import Verdicts, WorldSummary

_MOST_LISTED = 20

# A group is off only if no gate looked at it.
_WORST_FIRST = (
    Outcome.FAILED,
    Outcome.ERROR,
    Outcome.WARNED,
    Outcome.INCONCLUSIVE,
    Outcome.NOT_ASSESSED,
    Outcome.PASSED,
    Outcome.OFF,
)

_LISTED = {
    Outcome.WARNED: "WARNING {0}",
    Outcome.INCONCLUSIVE: "inconclusive: {0.gate}: {0.message}",
    Outcome.NOT_ASSESSED: "not assessed: {0.group}: {0.message}",
}
"""What is listed besides failures, and how."""


def write_summary(
    terminal: pytest.TerminalReporter,
    verdicts: Verdicts,
    collecting: Collecting,
    replayed: tuple[bool, str] | None,
) -> None:
    """Write the section, if any test used a world, or results were asked for.

    Args:
        terminal: Where.
        verdicts: What became known of worlds and groups.
        collecting: The results.
        replayed: Whether the one rollout that was replayed came out as it was, and a line on it.
    """
    written = collecting.written()
    if not verdicts.worlds and not verdicts.judged and written is None:
        return
    terminal.section("microsim", "-")
    for name, world in sorted(verdicts.worlds.items()):
        terminal.line(_world_line(name, world))
    for name, world in sorted(verdicts.worlds.items()):
        for finding in world.findings:
            terminal.line(_safe(f"FINDING in {name}: {finding}"), yellow=True, bold=True)
    if replayed:
        same, line = replayed
        terminal.line(f"replay: {line}", green=same, yellow=not same, bold=True)
    for line, loud in _verdict_lines(verdicts.judged):
        terminal.line(_safe(line), yellow=loud)
    for line, failed in _schedule_lines(collecting.groups):
        terminal.line(_safe(line), yellow=failed, bold=failed)
    for line in _group_lines(collecting.groups, terminal.verbosity):
        terminal.line(_safe(line))
    for line in collecting.baselines:
        terminal.line(_safe(f"baseline: {line}"), yellow=True)
    if written is not None:
        line, problem = written
        terminal.line(line, red=problem, bold=problem)


def _safe(line: str) -> str:
    """Return a line in which what a guest or a test's name put there moves no cursor: metrics have names, too."""
    return shown(line.encode("utf-8", "backslashreplace"))


def _group_lines(groups: Sequence[GroupResult], verbosity: int) -> Iterator[str]:
    """Yield the table of groups, and the seeds that stand out; with -q no seeds, and with -qq nothing."""
    if verbosity > -2:
        yield from table_of(groups, shutil.get_terminal_size().columns)
    if verbosity > -1:
        yield from standouts(groups)


def _schedule_lines(groups: Sequence[GroupResult]) -> Iterator[tuple[str, bool]]:
    """Yield what the race finder has to say, also of seeds for which all is well, and whether it found something."""
    names = names_of(groups)
    for group in groups:
        for verdict in group.verdicts:
            if verdict.gate == SCHEDULES:
                yield f"{verdict.gate}: {names[group.key]}: {verdict.message}", bool(verdict.next_step)
                if verdict.next_step:
                    yield f"  {verdict.next_step}", False


def _world_line(name: str, world: WorldSummary) -> str:
    counts = [(len(world.fork_ms), "rollout"), (len(world.other_ms), "further machine")]
    forks = ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts if count) or "0 rollouts"
    if times := [*world.fork_ms.values(), *world.other_ms.values()]:
        forks += f", fork p50 {statistics.median(times):.0f} ms"
    how = "warmed in this run" if world.warmed else "snapshot reused"
    return f"{name} ({world.facts['digest'][:12]}): {world.facts['engine']}; {how}; {forks}"


def _verdict_lines(judged: list[list[Verdict]]) -> Iterator[tuple[str, bool]]:
    """Yield lines, and whether each deserves attention. Failed groups are reported as failures, above."""
    if not judged:
        return
    counts = Counter(min((verdict.outcome for verdict in verdicts), key=_WORST_FIRST.index) for verdicts in judged)
    listed = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])
    yield f"gates: {listed}", False
    # What is said of schedules has lines of its own.
    verdicts = [verdict for group in judged for verdict in group if verdict.gate != SCHEDULES]
    # What is said of a whole group comes before what is said of its many metrics.
    verdicts.sort(key=lambda verdict: bool(verdict.metric))
    for outcome, form in _LISTED.items():
        found = [form.format(verdict) for verdict in verdicts if verdict.outcome is outcome]
        lines = list(dict.fromkeys(found))
        for line in lines[:_MOST_LISTED]:
            yield line, True
        if len(lines) > _MOST_LISTED:
            yield f"{outcome.value}: {len(lines) - _MOST_LISTED} more", True
