"""Where two trajectories first differ."""

from __future__ import annotations

import math
import random
import struct
import time
from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
import pytest
from microsim_vm.episode import Column

from pytest_microsim.gates.differences import Difference, first_difference, ulps


def columns(**arrays: object) -> dict[str, Column]:
    found = {}
    for name, values in arrays.items():
        array = np.ascontiguousarray(values)
        found[name] = Column(name, array.dtype.str, array.shape, array.tobytes())
    return found


def difference(first: Mapping[str, Column], second: Mapping[str, Column]) -> Difference:
    found = first_difference([first], [second])
    assert found is not None
    return found


def test_equal_trajectories_have_no_difference() -> None:
    one = columns(observation=np.arange(12.0).reshape(4, 3), reward=[math.nan, 1.0, 2.0])
    two = columns(observation=np.arange(12.0).reshape(4, 3), reward=[math.nan, 1.0, 2.0])
    assert first_difference([one], [two]) is None
    assert first_difference([], []) is None


def test_step_column_index_values_and_distance_are_named() -> None:
    array = np.linspace(0.1, 1.0, 24).reshape(6, 2, 2)
    other = array.copy()
    other[3, 1, 0] = np.nextafter(other[3, 1, 0], 9.0)
    found = difference(columns(observation=array), columns(observation=other))
    assert (found.step, found.column, found.index, found.distance) == (3, "observation", (1, 0), 1)
    assert found.values == (repr(float(array[3, 1, 0])), repr(float(other[3, 1, 0])))
    assert f"at step 3, observation[3, 1, 0]: {found.values[0]} and {found.values[1]}, 1 ULP apart" in found.text


def test_the_earliest_step_wins_whatever_the_column() -> None:
    # Row 0 of observations is the reset; row 0 of actions, rewards is step 1.
    one = columns(observation=np.zeros((5, 1)), action=np.zeros((4, 1)), reward=np.zeros(4))
    two = columns(observation=np.zeros((5, 1)), action=np.zeros((4, 1)), reward=np.zeros(4))

    def changed(name: str, row: int) -> dict[str, Column]:
        array = np.frombuffer(bytearray(two[name].data)).reshape(two[name].shape)
        array[row] = 1.0
        return two | columns(**{name: array})

    two = changed("reward", 1)
    assert (difference(one, two).step, difference(one, two).column) == (2, "reward")
    two = changed("observation", 2)
    assert (difference(one, two).step, difference(one, two).column) == (2, "observation")
    two = changed("action", 1)
    assert (difference(one, two).step, difference(one, two).column) == (2, "action")
    two = changed("observation", 1)
    assert (difference(one, two).step, difference(one, two).column) == (1, "observation")
    two = changed("observation", 0)
    assert "is at the reset, observation[0, 0]" in difference(one, two).text


def test_keys_of_an_observation_count_as_observations() -> None:
    one, two = {}, {}
    for target, value in ((one, 0.0), (two, 1.0)):
        target["observation.pose"] = columns(x=[0.0, 0.0, value])["x"]
    assert difference(one, two).step == 2


@pytest.mark.parametrize(
    ("kind", "first", "second", "distance"),
    [
        ("<f8", 1.0, 1.0 + 2**-52, 1),
        ("<f8", 0.0, -0.0, 0),
        ("<f8", 5e-324, -5e-324, 2),
        ("<f8", 1.7976931348623157e308, math.inf, 1),
        ("<f4", 1.0, 1.0 + 2**-22, 2),
        ("<f4", 0.1, 0.2, 1 << 23),
        ("<f2", 1.0, 1.0 + 2**-10, 1),
        ("<f8", math.nan, 1.0, None),
        ("<i8", -5, 3, 8),
        ("<u8", 0, 2**64 - 1, 2**64 - 1),
        ("|u1", 1, 255, 254),
        ("|b1", True, False, None),
        (">f8", 1.0, 1.0 + 2**-52, 1),
        (">i4", -2, 3, 5),
    ],
)
def test_distances(kind: str, first: float, second: float, distance: int | None) -> None:
    one, two = ({"x": Column("x", kind, (1,), np.array([value], dtype=kind).tobytes())} for value in (first, second))
    assert difference(one, two).distance == distance
    assert difference(two, one).distance == distance


def test_short_types_print_short() -> None:
    one, two = columns(x=np.array([0.1], np.float32)), columns(x=np.array([0.2], np.float32))
    assert difference(one, two).values == ("0.1", "0.2")
    one, two = columns(x=np.array([3.4028235e38], np.float32)), columns(x=np.array([np.inf], np.float32))
    assert difference(one, two).values == ("3.4028235e+38", "inf")


def test_ulps_agree_with_walking_through_the_floats() -> None:
    rng = random.Random(4)
    for _ in range(50):
        value = start = rng.uniform(-1, 1) * 10 ** rng.randint(-320, 300)
        steps = rng.randrange(20)
        for _ in range(steps):
            value = math.nextafter(value, math.inf)
        assert ulps(struct.pack("<d", start), struct.pack("<d", value)) == steps


def test_payloads_of_nan_are_compared_and_shown_as_bits() -> None:
    quiet, other = struct.pack("<Q", 0x7FF8000000000000), struct.pack("<Q", 0x7FF8000000000001)
    found = difference({"x": Column("x", "<f8", (1,), quiet)}, {"x": Column("x", "<f8", (1,), other)})
    assert found.values == ("nan (0x7ff8000000000000)", "nan (0x7ff8000000000001)")
    assert found.distance is None
    assert "with a NaN" in found.text


@pytest.mark.parametrize(
    ("second", "words", "step"),
    [
        (columns(state=[0.0, 1.0]), "columns 'reward'", None),
        (columns(state=np.zeros(2, np.float32), reward=[0.0]), "column 'state' is <f8 in one run and <f4", None),
        (columns(state=np.zeros((2, 3)), reward=[0.0]), "row of 'state' has the shape () in one run and (3,)", None),
        (
            columns(state=[0.0, 1.0, 2.0], reward=[0.0]),
            "equal up to step 1, where one ends: column 'state' has 2 rows in one and 3",
            2,
        ),
        (columns(state=[0.0, 1.0, 2.0], reward=[0.0, 0.0]), "column 'reward' has 1 rows in one and 2", 2),
        (columns(state=[0.0, 5.0, 2.0], reward=[0.0]), "state[1]: 1.0 and 5.0", 1),
    ],
)
def test_other_shapes_are_said_as_such(second: dict[str, Column], words: str, step: int | None) -> None:
    found = difference(columns(state=[0.0, 1.0], reward=[0.0]), second)
    assert words in found.text
    assert found.step == step


def test_lengths_are_said_beside_a_differing_value() -> None:
    assert "one run has 2 rows, the other 3" in difference(columns(x=[0.0, 1.0]), columns(x=[0.0, 2.0, 3.0])).text


def test_the_episode_is_named() -> None:
    same, one, two = columns(x=[0.0]), columns(x=[1.0]), columns(x=[2.0])
    found = first_difference([same, one], [same, two])
    assert found is not None
    assert found.episode == 1
    assert "the first difference of episode 1 is at step 1" in found.text
    longer = first_difference([same], [same, one])
    assert longer is not None
    assert longer.text == "one run has 1 episodes, the other 2"


def test_bytes_that_do_not_fit_the_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="column 'x' of <f8"):
        first_difference([columns(x=[0.0])], [{"x": Column("x", "<f8", (1,), bytes(7))}])


def test_it_crosses_processes_as_simple_types() -> None:
    found = difference(columns(x=[0.0]), columns(x=[1.0]))
    facts = asdict(found)
    assert Difference(**facts) == found


def test_a_hundred_thousand_steps_take_no_time() -> None:
    array = np.random.default_rng(5).normal(size=(100_000, 24))
    for row in (0, 61_803, 99_999):
        other = array.copy()
        other[row, 17] += 1e-9
        one, two = columns(observation=array), columns(observation=other)
        started = time.process_time()
        found = difference(one, two)
        assert time.process_time() - started < 1.0
        assert (found.step, found.index) == (row, (17,))
