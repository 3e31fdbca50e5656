"""What a test's report carries to the process that judges: simple types, which cross from a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ..collection import PARAMETER, group_key, names_of, other_parameters
from ..environment import FROM_SEED, as_text, digest_of
from ..markers import microsim_mark
from ..scenarios.collection import asked_rate
from ..state import ITEM, RUN, ItemState, Run
from .rollouts import facts_of
from .samples import sample_facts

if TYPE_CHECKING:
    from ..rollout import Rollout

ATTRIBUTE = "microsim"
ENDED = "microsim_ended"
"""The attribute of a teardown's report: what is known only then."""

PHASES = ("fork", "exec", "episode")
_DEMANDS = ("variance", "deterministic", "reseed", "support", "min_effective_seeds", "strict")
"""What of a marker the gates are told, under the names of :class:`~pytest_microsim.gates.verdicts.Group`."""

_SETTINGS = {"seeds", "microsim", "interleavings", "parametrize", "usefixtures", "skip", "skipif", "xfail",
             "filterwarnings", "timeout", "flaky", "repeat", "xdist_group"}  # fmt: skip


def attach_properties(item: pytest.Item) -> None:
    """Set the JUnit properties of a test that uses a rollout. Repeating it (a rerun) changes nothing else."""
    state = item.stash.get(ITEM, None)
    if state is None:
        return
    properties: dict[str, Any] = {"microsim_seed": state.seed, "microsim_world": state.world}
    if state.snapshot:
        properties["microsim_snapshot"] = state.snapshot
    if state.param is not None and state.param.runs > 1:
        properties["microsim_run"] = state.param.run
    if state.rollout is not None and state.rollout.schedule is not None:
        properties["microsim_schedule"] = state.rollout.schedule
        properties["microsim_run_digest"] = state.rollout.run_digest
    if state.environment:
        properties["microsim_environment"] = digest_of(state.environment)
        properties["microsim_knobs"] = as_text(state.environment)
    if state.rollout is not None:
        island = state.rollout.machine.island
        properties["microsim_network"] = "none" if island is None else island.network.policy
        if island is not None:
            properties["microsim_subnet"] = str(island.subnet.network)
        for phase, milliseconds in _timings(state.rollout).items():
            properties[f"microsim_{phase}_ms"] = round(milliseconds, 3)
        for name, value in state.rollout.recorded.items():
            properties[f"microsim_record_{name}"] = value
    kept = [(name, value) for name, value in item.user_properties if not name.startswith("microsim_")]
    item.user_properties[:] = [*kept, *properties.items()]


def payload_of(item: pytest.Item, report: pytest.TestReport, *, ended: bool) -> dict[str, Any] | None:
    """Return what the judging process needs to know of one test, or None if it used no world.

    Args:
        item: The test.
        report: What it is to ride on, without our own section.
        ended: Its call has ended. A run of several is then compared with those that have ended before it.
    """
    run = item.config.stash[RUN]
    names = getattr(item, "fixturenames", ())
    if run.pool is None or not {PARAMETER, "warm_world"} & set(names):
        return None
    worker = getattr(item.config, "workerinput", {}).get("workerid", "")
    payload: dict[str, Any] = {"worlds": run.pool.facts(), "worker": worker}
    state = item.stash.get(ITEM, None)
    if state is not None:
        payload["rollout"] = _rollout(state)
        payload["group"] = _group(item, state)
        if ended or (report.when == "setup" and not report.passed):
            payload["result"] = facts_of(item, state, report)
        if state.param is not None:
            payload["sample"] = sample_facts(state, worker=worker, unchecked=microsim_mark(item).unchecked)
            payload["repeat"] = _repeat(run, payload["group"]["key"], state, ended=ended)
    return payload


def _rollout(state: ItemState) -> dict[str, Any]:
    facts: dict[str, Any] = {"world": state.world, "environment": dict(state.environment)}
    if state.rollout is not None:
        facts["timings"] = _timings(state.rollout)
        facts["findings"] = list(state.rollout.machine.findings)
        facts["others"] = [
            {"world": world, "findings": list(machine.findings), "fork_ms": machine.timings["fork"]}
            for name, world in state.others.items()
            if (machine := state.rollout.machines.get(name)) is not None
        ]
    return facts


def _timings(rollout: Rollout) -> dict[str, float]:
    """Return milliseconds by phase, for the phases that took place."""
    return {phase: rollout.machine.timings[phase] for phase in PHASES if phase in rollout.machine.timings}


def _repeat(run: Run, key: str, state: ItemState, *, ended: bool) -> dict[str, Any]:
    """Say which run of its seed a rollout was, and in what it differs from others that have ended."""
    assert state.param is not None
    differences: list[dict[str, Any]] = []
    if ended and state.param.runs > 1 and state.param.schedule is None and state.rollout is not None:
        name = f"{key}\0{state.seed}"
        differences = run.repeats.leave(name, state.param.run, state.param.runs, state.rollout)
    return {"run": state.param.run, "differences": differences}


def _group(item: pytest.Item, state: ItemState) -> dict[str, Any]:
    """Describe the group of seeds that a test belongs to, from what it is made of and never from its node id.

    A test that has no seeds, and is not repeated, is a group of one that no gate judges.
    """
    before, after = other_parameters(item)
    path, names = item.location[0], names_of(item)
    mark = microsim_mark(item)
    return {
        "key": group_key(item),
        "test": "::".join([path, *names]),
        "parameters": "-".join(part for part in (before, after) if part),
        "location": [path, item.location[1], ".".join(names)],
        "scenario": state.scenario,
        "asked_rate": asked_rate(item),
        "tags": list(state.tags or _tags(item)),
        "environment": _shared(state),
        "expected": state.param.group_size if state.param else 1,
        "over_seeds": state.param is not None and state.param.seed is not None,
        "runs": state.param.runs if state.param else 1,
        "schedules": state.param.runs if state.param and state.param.schedule is not None else 0,
        "demands": {name: getattr(mark, name) for name in _DEMANDS},
    }


def _tags(item: pytest.Item) -> list[str]:
    """Return the names of a test's marks that are the project's own, and not a setting of pytest's or ours."""
    names = {mark.name for mark in item.iter_markers()}
    return sorted(names - _SETTINGS)


def _shared(state: ItemState) -> dict[str, Any]:
    """Return a rollout's environment as its whole group has it."""
    from microsim_guest import streams

    environment = dict(state.environment)
    if environment.get("hash_seed") == str(streams.hash_seed(state.seed)):
        environment["hash_seed"] = FROM_SEED
    if state.param is not None and state.param.schedule is not None:
        environment["schedule"] = "each of several"
    return environment
