"""A recording in place of a controller: which row each step takes, and when it ends. The guest's side, without one."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from microsim_guest import driver, episode, recorded
from microsim_vm.episode import Column
from microsim_vm.errors import RecordingError

from pytest_microsim.trajectories.recordings import Recording


class World:
    """Notes what it is given; its time passes by a step's length, in a sum as worlds have it."""

    def __init__(self, step_s: float | None, space: Any = None) -> None:
        self.action_space = space
        self.taken: list[Any] = []
        self._step_s = step_s
        if step_s is not None:
            self.time = 5.0

    def reset(self, seed: int | None = None) -> tuple[float, dict[str, Any]]:
        return 0.0, {}

    def step(self, action: Any) -> tuple[float, float, bool, bool, dict[str, Any]]:
        self.taken.append(action)
        if self._step_s is not None:
            self.time += self._step_s
        return 0.0, 1.0, False, False, {}


class Space:
    """A box of floats."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.dtype = np.dtype("float32")


def recording(rows: list[Any], **how: Any) -> Recording:
    values = np.asarray(rows)
    return Recording("drive.csv", {"action": Column("action", values.dtype.str, values.shape, values.tobytes())}, **how)


def played(given: Recording, world: World, **limits: Any) -> dict[str, Any]:
    controller = given.controller()
    asked = {"max_steps": given.most_steps, "timeout_s": 10.0, "filename": controller.filename, **limits}
    result, _ = episode.run(world, 1, asked, recorded.Recorded(asked, controller.data))
    return result


def test_row_by_row_it_needs_no_time_and_ends_with_the_last_row() -> None:
    world = World(None)
    result = played(recording([1, 0, 1]), world)
    assert (result["error"], result["truncated"], result["limit"]) == (None, True, "recording")
    assert world.taken == [1, 0, 1]
    assert [type(action) for action in world.taken] == [int] * 3
    short = World(None)
    assert played(recording([1, 0, 1]), short, max_steps=2)["limit"] == "steps"
    assert short.taken == [1, 0]


@given(st.integers(1, 200), st.sampled_from([0.001, 0.02, 0.1, 1 / 3]), st.booleans())
def test_a_recording_in_the_worlds_own_steps_gives_each_row_to_its_step(count: int, step_s: float, told: bool) -> None:
    """Also where the world's time is a sum, and the recording's is rounded to nanoseconds."""
    times = [round(row * step_s * 1e9) / 1e9 for row in range(count)]
    given = recording(list(range(count)), times=times, by="time", step_seconds=None if told else step_s)
    world = World(step_s if told else None)
    result = played(given, world)
    assert result["limit"] == "recording"
    assert world.taken == list(range(count))


def test_between_two_rows_the_one_before_is_held_or_a_line_is_drawn() -> None:
    times = {"times": [0.0, 0.25, 0.5], "by": "time"}
    held, drawn = World(0.1), World(0.1)
    played(recording([0.0, 1.0, 3.0], **times), held)
    assert held.taken == [0.0, 0.0, 0.0, 1.0, 1.0, 3.0, 3.0, 3.0]  # the last one for as long as the one before it
    played(recording([0.0, 1.0, 3.0], hold="linear", **times), drawn)
    assert drawn.taken == pytest.approx([0.0, 0.4, 0.8, 1.4, 2.2, 3.0, 3.0, 3.0])


def test_a_single_row_is_one_step() -> None:
    world = World(0.1)
    played(recording([0.5], times=[0.0], by="time"), world)
    assert world.taken == [0.5]


def test_rows_take_the_shape_that_the_world_wants() -> None:
    one, grid = World(0.1, Space(1)), World(0.1, Space(2, 2))
    played(recording([0.5, 0.25]), one)
    assert [action.tolist() for action in one.taken] == [[0.5], [0.25]]
    assert one.taken[0].dtype == np.float32
    played(recording([[1.0, 2.0, 3.0, 4.0]]), grid)
    assert grid.taken[0].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_parts_of_an_action_become_a_dict() -> None:
    parts = {"action.gear": Column("action.gear", "|b1", (2,), b"\0\1"),
             "action.wheel": Column("action.wheel", "<f4", (2, 2), np.arange(4, dtype="<f4").tobytes())}  # fmt: skip
    world = World(None)
    assert played(Recording("e.mcap", parts), world)["error"] is None
    assert [action["gear"] for action in world.taken] == [False, True]
    assert world.taken[1]["wheel"].tolist() == [2.0, 3.0]
    assert world.taken[1]["wheel"].dtype == np.float32


@pytest.mark.parametrize(
    ("rows", "space", "words"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], Space(3), "row 0 of drive.csv is an action of shape [2], the world takes [3]"),
        ([[1.0], [float("nan")]], None, "row 1 of drive.csv is an action that is not finite"),
    ],
)
def test_what_the_world_does_not_take_is_said_with_file_and_row(rows: list[Any], space: Any, words: str) -> None:
    error = played(recording(rows), World(0.1, space))["error"]
    assert error["kind"] == "recording"
    assert words in error["message"]


def test_without_a_time_nothing_can_follow_it() -> None:
    with pytest.raises(recorded.NoClock, match="the world tells none"):
        played(recording([1, 2], times=[0.0, 1.0], by="time"), World(None))


def test_the_wall_clock_limit_holds_for_it_too() -> None:
    error = played(recording([1, 2]), World(None), timeout_s=0.0)["error"]
    assert error["kind"] == "controller_timeout"
    assert "drive.csv was still being played" in error["message"]


def test_the_form_that_goes_to_a_guest_follows_from_all_of_it() -> None:
    made = [recording([1.0, 2.0], times=times, **how) for times, how in (
        ([0.0, 1.0], {"by": "time"}), ([0.0, 2.0], {"by": "time"}), ([0.0, 1.0], {"by": "time", "hold": "linear"}),
        ([0.0, 1.0], {"by": "time", "step_seconds": 0.1}), ((), {}),
    )]  # fmt: skip
    forms = [each.controller().data for each in made]
    assert all(first != second for first, second in itertools.combinations(forms, 2))
    assert made[0].controller() == recording([1.0, 2.0], times=[0.0, 1.0], by="time").controller()


@pytest.mark.parametrize(
    ("rows", "how", "words"),
    [
        ([], {}, "is empty"),
        ([1, 2], {"by": "time", "times": [0.0, 0.0]}, "row 1 is 0 s after row 0"),
        ([1, 2, 3], {"by": "time", "times": [0.0, 2.0, 1.0]}, "row 2 is -1 s after row 1"),
        ([1, 2], {"by": "time", "times": [0.0, float("nan")]}, "the time of row 1 is nan"),
        ([1, 2], {"by": "time", "times": [0.0]}, "2 rows of actions, and 1 times"),
        ([1], {"by": "steps"}, "by is one of time, step, not 'steps'"),
        ([1], {"hold": "cubic"}, "hold is one of previous, linear"),
        ([1], {"hold": "linear"}, "nothing between two rows"),
        ([1], {"step_seconds": 0}, "step_seconds is a number of seconds"),
    ],
)
def test_what_cannot_be_played_is_refused(rows: list[Any], how: dict[str, Any], words: str) -> None:
    with pytest.raises(RecordingError) as caught:
        recording(rows, **how)
    assert words in str(caught.value)


def test_it_is_a_driver_like_a_controller() -> None:
    assert issubclass(recorded.Recorded, driver.Driver)
    assert msgspec.json.encode(recorded.NOTHING)
