"""What of a rollout its test's report carries to the gates."""

from __future__ import annotations

from typing import Any, cast

from microsim_vm.episode import Column, EpisodeRecord
from microsim_vm.errors import ControllerError
from microsim_vm.machine import Machine
from microsim_vm.templates.spec import ControllerLimits

from pytest_microsim.episode import Episode
from pytest_microsim.gates.verdicts import Sample
from pytest_microsim.report.samples import sample_facts, sample_of
from pytest_microsim.rollout import Rollout
from pytest_microsim.state import ItemState


def machine() -> Machine:
    """Return a machine whose guest is never asked for anything."""
    return Machine(cast(Any, None), cast(Any, None), seed=1, limits=ControllerLimits())


def episode(metrics: dict[str, float], *, failed: bool = False) -> Episode:
    columns = {"reward": Column("reward", "<f8", (1,), bytes(8))}
    error = ControllerError("it failed") if failed else None
    return Episode(EpisodeRecord(7, 1, True, False, 1.0, metrics, columns, 1.0, b"", b"", error))


def state_of(*episodes: Episode) -> ItemState:
    rollout = Rollout(machine(), seed=7, world="w", controller_folders=[])
    rollout.episodes += episodes
    return ItemState(world="w", seed=7, rollout=rollout)


def scalars(state: ItemState, *unchecked: str) -> dict[str, Any]:
    return dict(sample_of(sample_facts(state, worker="gw1", unchecked=unchecked)).scalars)


def test_a_rollout_whose_fork_failed_has_nothing_but_its_seed() -> None:
    facts = sample_facts(ItemState(world="w", seed=7), worker="gw1", unchecked=())
    assert sample_of(facts) == Sample(7, None, worker="gw1")


def test_further_machines_and_further_episodes_have_their_names_before_what_is_theirs() -> None:
    state = state_of(episode({"score": 1.0}), episode({"score": 2.0, "late": True}))
    assert state.rollout is not None
    other = machine()
    state.rollout.machine.probes = {"world.wind": "a"}
    other.probes = {"world.wind": "b", "python.random": "c"}
    state.rollout.machine.machines = {"sim": state.rollout.machine, "controller": other}
    sample = sample_of(sample_facts(state, worker="", unchecked=()))
    assert sample.probes == {"world.wind": "a", "controller/world.wind": "b", "controller/python.random": "c"}
    assert sample.scalars == {"score": 1.0, "episode 1/score": 2.0, "episode 1/late": True}


def test_failed_episodes_and_what_is_no_number_give_no_scalars_and_recorded_numbers_win() -> None:
    odd: dict[str, Any] = {"score": 1.0, "text": "x", "none": None}
    state = state_of(episode({"lost": 1.0}, failed=True), episode(odd), episode(odd))
    assert state.rollout is not None
    state.rollout.record("episode 1/score", 5)
    assert scalars(state) == {"episode 1/score": 5.0, "episode 2/score": 1.0}


def test_unchecked_names_are_left_out_in_every_episode_or_in_one() -> None:
    state = state_of(episode({"port": 1.0, "score": 3.0}), episode({"port": 2.0, "score": 4.0}))
    assert state.rollout is not None
    state.rollout.record("level", 2)
    assert scalars(state, "port", "level") == {"score": 3.0, "episode 1/score": 4.0}
    assert scalars(state, "episode 1/port", "score") == {"port": 1.0, "level": 2.0}
