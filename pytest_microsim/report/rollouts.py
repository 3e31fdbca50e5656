"""What a report carries of its rollout for the results of the run: simple types, which cross from a worker.

The parts that are large are left out where nobody asked for results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from microsim_vm.errors import MicrosimError

from ..markers import microsim_mark
from ..results.curves import budget, curves_of
from ..results.gathering import finite, number
from ..state import RUN, ItemState
from .samples import scalars_of
from .sections import network_lines, replay_command, shown

if TYPE_CHECKING:
    from ..episode import Episode
    from ..rollout import Rollout

MOST_EPISODES = 100
"""Most episodes of a rollout that results have; its fingerprint and phases are those of all."""

MOST_TEXT = 16 * 1024
"""Most bytes of one stream, or of a failure's text."""

_QUEUED_S = 0.05  # what a fork takes beside its phases is bookkeeping, up to here


def fork_phases(asked: float, ended: float, fork_s: float) -> Iterator[tuple[str, float, float]]:
    """Yield the phases of a fork as :attr:`~pytest_microsim.state.ItemState.phases` has them.

    Args:
        asked: When it was asked for, in seconds since 1970.
        ended: When it was there.
        fork_s: What its own steps took. The rest it waited for memory, or for addresses.
    """
    waited = max(ended - asked - fork_s, 0.0)
    if waited > _QUEUED_S:
        yield "queue", asked, waited
    yield "fork", ended - fork_s, fork_s


def facts_of(item: pytest.Item, state: ItemState, report: pytest.TestReport) -> dict[str, Any]:
    """Return the fields of a :class:`~pytest_microsim.results.model.RolloutResult` that are known where it ran.

    Further ones are "phases", as in the state, and "missed", why its seed counts as missed. To be called before our
    own section is added to the report, which says the same for people.
    """
    facts: dict[str, Any] = {
        "seed": str(state.seed),
        "run": state.param.run if state.param else 1,
        "worker": getattr(item.config, "workerinput", {}).get("workerid", ""),
        "schedule": None if state.param is None or state.param.schedule is None else str(state.param.schedule),
        "replay": replay_command(item, state),
        "failure": failure_of(report) or state.missed,
        "missed": state.missed,
        "parameters": dict(state.parameters),
        "phases": [list(phase) for phase in state.phases],
    }
    if state.rollout is not None:
        detailed, lost = item.config.stash[RUN].detailed, report.failed or bool(state.missed)
        facts |= {
            "metrics": finite(scalars_of(state.rollout, microsim_mark(item).unchecked)),
            "schedule": None if state.rollout.schedule is None else str(state.rollout.schedule),
            "run_digest": state.rollout.run_digest,
            "fingerprint": state.rollout.fingerprint() or "",
            "episodes": list(
                _episodes(state, state.rollout, item.session.testscollected, detailed=detailed, lost=lost)
            ),
            "island": next(network_lines(state.rollout, {})).removeprefix("network: "),
            "console": _console(state.rollout) if detailed and lost else "",
        }
        spans, took = state.rollout.machine.spans, state.rollout.machine.timings.get("fork", 0.0) / 1000.0
        if state.rollout.schedule is not None and spans:  # the first thing that it was asked began with its fork
            facts["phases"] += [["fork", spans[0][1], took]]
        facts["phases"] += [list(span) for span in spans]
    return facts


def ended_facts(state: ItemState, report: pytest.TestReport) -> dict[str, Any]:
    """Return what is known only once a test is over: the files that it left, and why its tear-down failed."""
    return {
        "files": {what: str(path.absolute()) for what, path in left_by(state) if path.exists()},
        "failure": failure_of(report),
    }


def left_by(state: ItemState) -> Iterator[tuple[str, Any]]:
    """Yield what a rollout has left on disk, and where."""
    yield from state.files.items()
    if state.pcap is not None:
        yield "pcap", state.pcap


def failure_of(report: pytest.TestReport) -> str:
    """Return why a test failed, and after an empty line what its report says; empty for one that did not."""
    if not report.failed:
        return ""
    text: str = report.longreprtext
    message = str(getattr(getattr(report.longrepr, "reprcrash", None), "message", ""))
    if message and not text.startswith(message):
        text = f"{message}\n\n{text}"
    return _text(text.encode("utf-8", "replace"))


def _episodes(
    state: ItemState, rollout: Rollout, tests: int, *, detailed: bool, lost: bool
) -> Iterator[dict[str, Any]]:
    curves, points = budget(state.param.group_size if state.param else 1, tests)
    for episode in islice(rollout.episodes, MOST_EPISODES):
        facts = _episode(episode)
        if detailed:
            facts["curves"] = curves_of(episode.trajectory, curves=curves, points=points)
            if lost or episode.error is not None:
                facts |= {"stdout": _text(episode.stdout_bytes), "stderr": _text(episode.stderr_bytes)}
        yield facts


def _episode(episode: Episode) -> dict[str, Any]:
    return {
        "seed": None if episode.seed is None else str(episode.seed),
        "steps": episode.steps,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "limit": episode.limit,
        "total_reward": number(episode.total_reward),
        "metrics": finite(episode.metrics),
        "fingerprint": episode.fingerprint,
        "late_steps": episode.late_steps,
        "simulated_s": None if episode.simulated_seconds is None else number(episode.simulated_seconds),
        "wall_ms": episode.wall_ms,
        "controller": episode.controller,
        "options": _plain(episode.options),
        "error": "" if episode.error is None else _text(str(episode.error).encode("utf-8", "replace")),
        "attempts": [shown(line.encode("utf-8", "replace")) for line in episode.attempts],
    }


def _plain(value: Any) -> Any:
    """Return a JSON-like value as JSON can have it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    return number(value)


def _console(rollout: Rollout) -> str:
    try:
        return _text(rollout.console().encode("utf-8", "replace"))
    except (MicrosimError, OSError):  # the report's section says why
        return ""


def _text(data: bytes) -> str:
    return shown(data, MOST_TEXT)
