"""The summary at the end of a run: one line per world, and what the gates said."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator

import pytest

from ..gates.verdicts import Outcome
from .verdicts import Verdicts, WorldSummary

_MOST_LISTED = 20


def write_summary(terminal: pytest.TerminalReporter, verdicts: Verdicts) -> None:
    """Write the section, if any test used a world."""
    if not verdicts.worlds and not verdicts.verdicts:
        return
    terminal.section("microsim", "-")
    for name, world in sorted(verdicts.worlds.items()):
        terminal.line(_world_line(name, world))
    for name, world in sorted(verdicts.worlds.items()):
        for finding in world.findings:
            terminal.line(f"FINDING in {name}: {finding}", yellow=True, bold=True)
    for line, loud in _verdict_lines(verdicts):
        terminal.line(line, yellow=loud)


def _world_line(name: str, world: WorldSummary) -> str:
    counts = [(len(world.fork_ms), "rollout"), (len(world.other_ms), "further machine")]
    forks = ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts if count) or "0 rollouts"
    if times := [*world.fork_ms.values(), *world.other_ms.values()]:
        forks += f", fork p50 {statistics.median(times):.0f} ms"
    how = "warmed in this run" if world.warmed else "snapshot reused"
    return f"{name} ({world.facts['digest'][:12]}): {world.facts['engine']}; {how}; {forks}"


def _verdict_lines(verdicts: Verdicts) -> Iterator[tuple[str, bool]]:
    """Yield lines, and whether each deserves attention. Failed groups are reported as failures, above."""
    if not verdicts.verdicts:
        return
    counts = Counter(verdict.outcome for verdict in verdicts.verdicts)
    listed = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])
    yield f"groups of seeds: {listed}", False
    for verdict in verdicts.verdicts:
        if verdict.outcome is Outcome.WARNED:
            yield f"WARNING {verdict}", True
    partial = [verdict for verdict in verdicts.verdicts if verdict.outcome is Outcome.NOT_ASSESSED]
    for verdict in partial[:_MOST_LISTED]:
        yield f"not assessed: {verdict.group}: {verdict.message}", True
    if len(partial) > _MOST_LISTED:
        yield f"not assessed: {len(partial) - _MOST_LISTED} more groups", True
