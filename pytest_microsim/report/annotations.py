"""What a build server's own log commands say of failed seeds, so that a pull request shows them where they belong.

GitHub's runner turns ``::error file=...`` into a remark beside the line. GitLab's has no such command: its merge
requests show the JUnit file; in the log, each group that failed becomes a section to unfold.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..results.gathering import LOST

if TYPE_CHECKING:
    from ..results.model import GroupResult, RolloutResult, RunResult

GITHUB, GITLAB, OFF, AUTO = "github", "gitlab", "off", "auto"
CHOICES = (AUTO, GITHUB, GITLAB, OFF)
MOST_REMARKS = 10
"""GitHub shows so many errors of one step, and drops the rest."""
MOST_SEEDS = 8
_DATA = {"%": "%25", "\n": "%0A"}
_PROPERTY = {**_DATA, ":": "%3A", ",": "%2C"}
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def runner_of(asked: str, environment: Mapping[str, str]) -> str:
    """Return whose commands to write: of what is asked for, and by "auto" of the runner that this is, or "off"."""
    if asked != AUTO:
        return asked
    for name, variable in ((GITHUB, "GITHUB_ACTIONS"), (GITLAB, "GITLAB_CI")):
        if environment.get(variable) == "true":
            return name
    return OFF


def remarks(run: RunResult, runner: str, *, rootdir: Path, checkout: Path) -> Iterator[str]:
    """Yield the lines to print, each from the first column on.

    Args:
        run: What the run found.
        runner: "github", "gitlab" or "off".
        rootdir: What the locations of groups are relative to.
        checkout: The root of the checked out repository, which the runner's paths are relative to.
    """
    failed = [(group, lines) for group in run.groups if (lines := list(_told(group)))]
    failed.sort(key=lambda each: -len(_missing(each[0])))
    if runner == GITLAB:
        yield from _sections(failed)
    elif runner == GITHUB:
        shown = failed if len(failed) <= MOST_REMARKS else failed[: MOST_REMARKS - 1]
        for group, lines in shown:
            path, _, line = group.location.rpartition(":")
            where = os.path.relpath(rootdir / path, checkout)
            yield _remark(f"file={_escaped(where, _PROPERTY)},line={line},", _title(group), lines)
        if rest := [_title(group) for group, _ in failed[len(shown) :]]:
            yield _remark("", f"{len(rest)} more groups failed", rest)


def _told(group: GroupResult) -> Iterator[str]:
    """Yield what is to be said of a group; nothing of one that is as it should be."""
    verdicts = [verdict for verdict in group.verdicts if verdict.outcome in ("failed", "error")]
    missing = _missing(group)
    if not verdicts and all(rollout.outcome == "missed" for rollout in missing):
        return  # the group as a whole reached what it has to
    for verdict in verdicts:
        yield f"{verdict.gate}: {verdict.message}"
        yield from (text for text in (verdict.cause, verdict.next_step) if text)
    for rollout in missing[:MOST_SEEDS]:
        yield f"seed {rollout.seed}: {_first_line(rollout.failure) or rollout.outcome}"
        if rollout.replay:
            yield f"  replay: {rollout.replay}"
    if len(missing) > MOST_SEEDS:
        yield f"and {len(missing) - MOST_SEEDS} more seeds: {', '.join(each.seed for each in missing[MOST_SEEDS:])}"


def _missing(group: GroupResult) -> list[RolloutResult]:
    return [rollout for rollout in group.rollouts if rollout.outcome in LOST]


def _title(group: GroupResult) -> str:
    name = group.name.rpartition("::")[2] or group.name
    seeds = len({rollout.seed for rollout in group.rollouts})
    lost = len({rollout.seed for rollout in _missing(group)})
    return f"{name}: {lost} of {seeds} seeds failed" if lost else f"{name}: the group failed"


def _remark(where: str, title: str, lines: list[str]) -> str:
    return f"::error {where}title={_escaped(title, _PROPERTY)}::{_escaped(chr(10).join(lines), _DATA)}"


def _sections(failed: list[tuple[GroupResult, list[str]]]) -> Iterator[str]:
    for number, (group, lines) in enumerate(failed):
        name, now = f"microsim_{number}", int(time.time())
        yield f"\x1b[0Ksection_start:{now}:{name}[collapsed=true]\r\x1b[0K{_plain(_title(group))}"
        yield from (_plain(line) for line in lines)
        yield f"\x1b[0Ksection_end:{now}:{name}\r\x1b[0K"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _escaped(text: str, table: Mapping[str, str]) -> str:
    return "".join(table.get(character, character) for character in _plain(text))


def _plain(text: str) -> str:
    # A controller's words may be in it: they are no commands of the runner's.
    return _CONTROLS.sub("?", text)
