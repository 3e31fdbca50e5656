"""Options of a reset, and recorded actions, in real guests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hosting import ON_ANY_ENGINE, REPOSITORY
from microsim_vm.errors import ControllerTimeoutError, RecordingError, WorldError
from microsim_vm.world import WarmWorld

from pytest_microsim.rollout import Rollout
from pytest_microsim.trajectories.mcap import write_episode
from pytest_microsim.trajectories.recordings import Recording

pytestmark = [pytest.mark.timeout(180), ON_ANY_ENGINE]

BALANCE = REPOSITORY / "example_tests/controllers/balance.py"
STEP_S = 0.02  # of cartpole


def forked(world: WarmWorld, seed: int) -> Rollout:
    return Rollout(world.fork(seed), seed=seed, world=world.template.name, controller_folders=[REPOSITORY])


@pytest.fixture
def poles(cartpole: WarmWorld) -> Iterator[Rollout]:
    made = forked(cartpole, 3)
    yield made
    made.close()


def test_options_reach_the_worlds_reset(poles: Rollout) -> None:
    usual, same, longer = (
        poles.run(BALANCE, seed=1, max_steps=60, options=options) for options in (None, {}, {"pole_m": 1.5})
    )
    assert usual.fingerprint == same.fingerprint != longer.fingerprint
    assert (usual.options, longer.options) == ({}, {"pole_m": 1.5})
    first, second, third = poles.controllers
    assert first == second != third
    assert poles.reset(seed=1)[0] == usual.trajectory["observation"][0]
    with pytest.raises(WorldError, match="wheels"):
        poles.reset(options={"wheels": 3})


def test_an_episode_replayed_from_a_file_is_the_same_bit_by_bit(poles: Rollout, tmp_path: Path) -> None:
    episode = poles.run(BALANCE, seed=1, max_steps=100)
    file, table = tmp_path / "e.mcap", tmp_path / "e.csv"
    write_episode(file, episode.trajectory, step_s=STEP_S, metadata={})
    actions = enumerate(episode.trajectory["action"])
    table.write_text("time,push\n" + "".join(f"{7.5 + row * STEP_S:.9f},{action!r}\n" for row, action in actions))
    for recording in (
        Recording.open(file),
        Recording.of_trajectory(episode.trajectory),
        Recording.open(file, by="time", step_seconds=STEP_S),
        Recording.open(table),  # by the world's own time
        Recording.open(table, step_seconds=STEP_S),
        Recording.open(table, by="step"),
    ):
        again = poles.run(recording, seed=1)
        assert (again.fingerprint, again.steps, again.limit) == (episode.fingerprint, 100, "recording")
        assert again.metrics == episode.metrics
    assert poles.run(Recording.open(file), seed=2).fingerprint != episode.fingerprint
    assert poles.run(Recording.open(file), seed=1, max_steps=10).limit == "steps"
    with pytest.raises(ControllerTimeoutError, match=r"e\.mcap was still being played"):
        poles.run(Recording.open(file), seed=1, timeout_seconds=1e-6)


def test_a_world_with_a_space_takes_rows_of_its_form(pendulum: WarmWorld, tmp_path: Path) -> None:
    pilot, file, table = tmp_path / "pilot.py", tmp_path / "e.mcap", tmp_path / "two.csv"
    pilot.write_text("def act(observation):\n    return [observation[1] * 1.7 - 0.1]\n")
    rollout = forked(pendulum, 3)
    try:
        with pytest.raises(WorldError, match=r"ignored options: wheels$"):  # Gymnasium looks for its own alone
            rollout.reset(options={"x_init": 0.1, "wheels": 3})
        episode = rollout.run(pilot, max_steps=50, options={"x_init": 0.1, "y_init": 0.2}, seed=3)
        assert episode.trajectory["action"].dtype == "<f4"
        write_episode(file, episode.trajectory, step_s=None, metadata={})
        again = rollout.run(Recording.open(file), seed=3, options=episode.options)
        assert again.fingerprint == episode.fingerprint
        table.write_text("time,push\n0,1\n1,0\n")
        with pytest.raises(WorldError, match="the world tells none") as caught:
            rollout.run(Recording.open(table))
        assert "step_seconds" in caught.value.hint
        table.write_text("left,right\n1,2\n")
        with pytest.raises(
            RecordingError, match=r"row 0 of two\.csv is an action of shape \[2\], the world takes \[1\]"
        ):
            rollout.run(Recording.open(table, by="step"))
    finally:
        rollout.close()
