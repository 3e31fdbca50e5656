"""Where a trajectory leaves what its baseline allows."""

import math
import struct

import pytest
from microsim_vm.episode import Column

from pytest_microsim.baselines.divergence import Divergence, first_divergence
from pytest_microsim.baselines.wishes import Tolerance, Tolerances, Wishes, wishes_of
from pytest_microsim.statistics.trends import Allowed

Numbers = list[list[float]]


def column(name: str, rows: Numbers, kind: str = "<f8") -> Column:
    width = len(rows[0]) if rows else 1
    code = {"<f8": "d", "<f4": "f", "<i8": "q"}[kind]
    return Column(
        name, kind, (len(rows), width), struct.pack(f"<{len(rows) * width}{code}", *(n for row in rows for n in row))
    )


def episode(observation: Numbers, reward: Numbers) -> dict[str, Column]:
    return {"observation": column("observation", observation), "reward": column("reward", reward)}


OURS = episode([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [[1.0], [2.0]])


def against(now: dict[str, Column], tolerance: object = (), **named: object) -> Divergence | None:
    wishes = wishes_of({"tolerance": dict(tolerance), **named})  # type: ignore[call-overload]
    return first_divergence([OURS], [now], wishes.tolerances, step_s=[0.5])


def test_the_same_is_the_same() -> None:
    assert against(OURS) is None


def test_without_a_tolerance_one_bit_is_a_difference() -> None:
    now = episode([[0.0, 1.0], [2.0, 3.0], [4.0, math.nextafter(5.0, 6.0)]], [[1.0], [2.0]])
    found = against(now)
    assert found == Divergence(2, "observation[1]", 5.0, math.nextafter(5.0, 6.0), math.inf)
    assert against(episode([[-0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [[1.0], [2.0]])) is not None


def test_the_earliest_step_is_said_and_within_it_what_comes_first() -> None:
    # Reward 0 is earned at step 1, and so is observation 1; observations come first.
    now = episode([[0.0, 1.0], [2.5, 3.0], [9.0, 9.0]], [[0.0], [0.0]])
    found = against(now)
    assert found is not None
    assert (found.step, found.column) == (1, "observation[0]")
    found = against(now, {"observation": 0.6})
    assert found is not None
    assert (found.step, found.column) == (1, "reward[0]")
    found = against(now, {"observation": 0.6, "reward": 5})
    assert found is not None
    assert (found.step, found.column, found.over) == (2, "observation[0]", pytest.approx(5.0 / 0.6))


def test_relative_growing_and_early() -> None:
    now = episode([[0.0, 1.0], [2.1, 3.0], [4.2, 5.0]], [[1.0], [2.0]])
    assert against(now, {"observation": {"relative": 0.06}}) is None
    assert against(now, {"observation": {"relative": 0.04}}) is not None
    # A step is half a second: 0.1 at 0.5 s, and 0.2 at 1 s.
    assert against(now, {"observation": {"per_s": 0.201}}) is None
    assert against(now, {"observation": {"per_s": 0.199}}) is not None
    assert against(now, {"observation": {"until_s": 0.4}}) is None
    assert against(now, {"observation": {"until_s": 0.5}}) is not None
    assert against(now, {"*": 0.2001}) is None


def test_nan_is_near_to_nan_alone() -> None:
    nan = episode([[0.0, 1.0], [math.nan, 3.0], [math.inf, 5.0]], [[1.0], [2.0]])
    tolerances = Tolerances({"*": Tolerance(absolute=1.0)})
    assert first_divergence([nan], [nan], tolerances, step_s=[1.0]) is None
    found = first_divergence([nan], [OURS], tolerances, step_s=[1.0])
    assert found == Divergence(1, "observation[0]", None, 2.0, math.inf)


def test_an_episode_that_is_longer_or_shorter() -> None:
    shorter = episode([[0.0, 1.0], [2.0, 3.0]], [[1.0]])
    found = against(shorter)
    assert found is not None
    assert (found.step, found.column, found.baseline) == (2, "observation", None)
    assert against(shorter, steps=1) is None
    assert against(shorter, {"*": {"until_s": 0.5}}) is None


def test_columns_that_changed() -> None:
    assert against({**OURS, "more": OURS["reward"]}) is None  # the baseline did not keep it
    missing = against({"observation": OURS["observation"]})
    assert missing is not None
    assert (missing.step, missing.column) == (0, "reward")
    single = {**OURS, "reward": column("reward", [[1.0], [2.0]], "<f4")}
    assert against(single, {"*": 1.0}) is not None


def test_whole_numbers_and_no_rows() -> None:
    then = {"action": column("action", [[2**62], [1]], "<i8"), "state": Column("state", "<f8", (0, 3), b"")}
    now = {"action": column("action", [[2**62], [3]], "<i8"), "state": Column("state", "<f8", (0, 3), b"")}
    found = first_divergence([then], [now], Tolerances(), step_s=[1.0])
    assert found == Divergence(2, "action[0]", 1.0, 3.0, math.inf)
    assert first_divergence([then], [now], Tolerances({"action": Tolerance(2.0)}), step_s=[1.0]) is None


def test_several_episodes() -> None:
    later = first_divergence([OURS, OURS], [OURS, episode([[9.0, 1.0]] * 3, [[1.0]] * 2)], Tolerances(), step_s=[1, 1])
    assert later is not None
    assert (later.episode, later.step) == (1, 0)
    fewer = first_divergence([OURS, OURS], [OURS], Tolerances(), step_s=[1, 1])
    assert fewer is not None
    assert (fewer.episode, fewer.column) == (1, "")


def test_wishes() -> None:
    wishes = wishes_of(
        {
            "tolerance": {"observation": 1e-6, "state": {"relative": 0.1, "until_s": 2}},
            "steps": 2,
            "metrics": {"time_s": 0.2, "d": {"relative": 0.01}},
            "must": "tolerance",
            "across": ["digest"],
            "columns": ["action", "observation"],
        }
    )
    assert wishes.tolerances.of("observation.camera") == Tolerance(absolute=1e-6)
    assert wishes.tolerances.of("reward") == Tolerance()
    assert wishes.metrics == {"time_s": Allowed(0.2, 0.0), "d": Allowed(0.0, 0.01)}
    assert [wishes.keeps(name) for name in ("observation.camera", "state", "action")] == [True, False, True]
    assert wishes_of({}) == Wishes()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (3, "baseline is a dict with any of"),
        ({"tolerances": {}}, "unknown name 'tolerances'; did you mean 'tolerance'"),
        ({"tolerance": {"x": -1}}, "absolute is a number, 0 or more, not -1"),
        ({"tolerance": {"x": {"growth": 1}}}, "x: unknown name 'growth'"),
        ({"tolerance": {"x": True}}, "not True"),
        ({"tolerance": 1e-6}, "tolerance is a dict by name"),
        ({"metrics": {"x": math.nan}}, "not nan"),
        ({"must": "same"}, "must is 'same'; it can be identical, tolerance"),
        ({"across": "digest"}, "across is a list of names"),
        ({"steps": 1.5}, "steps is a number of steps"),
    ],
)
def test_wishes_that_cannot_be_meant(given: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        wishes_of(given)
