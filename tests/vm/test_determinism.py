"""The same seed gives the same bits; a partial restore of a simulator does not, and it shows at its first step."""

from __future__ import annotations

import math

import pytest
from hosting import Warmed
from microsim_vm.episode import Column, EpisodeRecord
from microsim_vm.world import WarmWorld

from pytest_microsim.gates import differences

pytestmark = pytest.mark.timeout(300)

STEPS = 200
ACTIONS = [[12.0 * math.sin(0.3 * step) + 4.0, 0.0] for step in range(STEPS)]
REWIND_AT = 40
REWIND = [0.0, 1.0]
FIELDS = ("observation", "reward", "state")


def script(actions: list[list[float]]) -> bytes:
    """Return a controller that plays a list of actions, whatever it sees."""
    return f"actions = iter({actions!r})\ndef act(observation):\n    return next(actions)\n".encode()


def first_difference(a: EpisodeRecord, b: EpisodeRecord, offset: int) -> tuple[int, str] | None:
    """Return step and field of the first row that differs by a bit, the rows of ``b`` counted from an offset."""
    for step in range(STEPS):
        for field in FIELDS:
            row = step if field == "reward" else step + 1  # row 0 of the others is the initial one
            if a.columns[field].row_bytes(row) != b.columns[field].row_bytes(row + offset):
                return step, field
    return None


@pytest.fixture(scope="module")
def boxes(warmed: Warmed) -> WarmWorld:
    return warmed("boxes")


@pytest.fixture(scope="module")
def episode(boxes: WarmWorld) -> EpisodeRecord:
    """One episode of 200 actions in a fork."""
    return play(boxes, ACTIONS)


def play(world: WarmWorld, actions: list[list[float]], seed: int = 11) -> EpisodeRecord:
    with world.fork(seed) as machine:
        record = machine.run_episode(script(actions), filename="replay.py", max_steps=len(actions))
    assert (record.error, record.steps) == (None, len(actions))
    return record


def test_two_forks_of_a_seed_are_bit_identical_at_every_step(boxes: WarmWorld, episode: EpisodeRecord) -> None:
    again = play(boxes, ACTIONS)
    assert set(episode.columns) == {"observation", "action", "reward", "state"}
    assert episode.columns["state"].shape[0] == STEPS + 1
    assert first_difference(episode, again, 0) is None
    assert episode.columns == again.columns, "bit by bit, all rows, the initial ones too"
    assert (episode.metrics, episode.total_reward) == (again.metrics, again.total_reward)
    # The boxes did move, so that this says something.
    assert len({episode.columns["state"].row_bytes(row) for row in range(STEPS + 1)}) == STEPS + 1


def test_another_seed_is_another_trajectory(boxes: WarmWorld, episode: EpisodeRecord) -> None:
    other = play(boxes, ACTIONS, seed=12)
    assert first_difference(episode, other, 0) == (0, "observation")
    assert other.columns["action"] == episode.columns["action"]


def test_a_second_episode_in_the_same_fork_is_bit_identical(boxes: WarmWorld, episode: EpisodeRecord) -> None:
    with boxes.fork(99) as machine:
        machine.run_episode(script(ACTIONS[:30]), filename="replay.py", max_steps=30)
        again = machine.run_episode(script(ACTIONS), filename="replay.py", seed=11, max_steps=STEPS)
    assert episode.columns == again.columns


def test_driving_by_hand_gives_the_same_bits(boxes: WarmWorld, episode: EpisodeRecord) -> None:
    with boxes.fork(11) as machine:
        rows = [machine.reset()[0].tobytes()]
        rows += [machine.step(action)[0].tobytes() for action in ACTIONS[:20]]
    assert rows == [episode.columns["observation"].row_bytes(row) for row in range(21)]


def test_restoring_positions_and_velocities_alone_is_caught_at_its_first_step(
    boxes: WarmWorld, episode: EpisodeRecord
) -> None:
    """The solver's warm start is left behind. The difference starts at 1e-14: any tolerance would hide it."""
    replay = play(boxes, [*ACTIONS[:REWIND_AT], REWIND, *ACTIONS])
    start = REWIND_AT + 1
    # Before the restore, all is as in the other fork; after it, positions are back at the start, exactly.
    for step in range(REWIND_AT):
        assert replay.columns["state"].row_bytes(step) == episode.columns["state"].row_bytes(step)
    assert replay.columns["observation"].row_bytes(start) == episode.columns["observation"].row_bytes(0)
    # The state recorded at the start names the cause already.
    assert replay.columns["state"].row_bytes(start) != episode.columns["state"].row_bytes(0)
    found = first_difference(episode, replay, start)
    assert found is not None, "the warm start made no difference: the boxes are not in contact"
    assert found[0] == 0


def test_the_gate_names_the_step_and_field_at_which_a_partial_restore_differs(
    boxes: WarmWorld, episode: EpisodeRecord
) -> None:
    replay = play(boxes, [*ACTIONS[:REWIND_AT], REWIND, *ACTIONS])
    restored = {
        name: rows_of(column, REWIND_AT + 1, len(episode.columns[name])) for name, column in replay.columns.items()
    }
    found = differences.first_difference([episode.columns], [restored])
    assert found is not None
    assert (found.step, found.column) == (0, "state"), "the solver's warm start is part of it"
    # What a controller sees is the same then: it differs a step later, by what only a comparison of bits shows.
    seen = [{"observation": columns["observation"]} for columns in (episode.columns, restored)]
    later = differences.first_difference([seen[0]], [seen[1]])
    assert later is not None
    assert (later.step, later.column) == (1, "observation")
    assert later.distance is not None
    assert later.distance > 0
    values = [float(value) for value in later.values]
    assert math.isclose(*values, rel_tol=1e-6, abs_tol=1e-9)
    assert f"{later.distance} ULP apart" in later.text


def rows_of(column: Column, start: int, count: int) -> Column:
    data = b"".join(column.row_bytes(row) for row in range(start, start + count))
    return Column(column.name, column.dtype, (count, *column.shape[1:]), data)
