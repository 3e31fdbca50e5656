"""Parameters of rollouts: the same for the same seed always, and distributed as the file says."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenario_files import scenario
from scipy import stats

from pytest_microsim.scenarios.draws import Point, drawn, points
from pytest_microsim.scenarios.spec import Normal, Parameter

SEEDS = range(2000)


def draws(parameter: Parameter, name: str = "x", parameters_seed: int = 0) -> list[Any]:
    return [drawn({name: parameter}, {}, seed, parameters_seed)[name] for seed in SEEDS]


def test_draws_never_change() -> None:
    """Whoever changes one of these changes what all scenarios of all users run."""
    parameters = {
        "friction": Parameter(uniform=(0.4, 1.0)),
        "mass": Parameter(log_uniform=(0.1, 10.0)),
        "bias": Parameter(normal=Normal(mean=0.0, sd=0.02)),
        "clipped": Parameter(normal=Normal(mean=0.0, sd=1.0, min=0.5, max=1.5)),
        "pallets": Parameter(integers=(0, 8)),
        "floor": Parameter(choice=("wood", "concrete", None)),
        "lights": Parameter(value="on"),
    }
    assert [drawn(parameters, {}, seed) for seed in (0, 1, 2**70)] == GOLDEN
    assert drawn(parameters, {}, 0, 1) != GOLDEN[0]


def test_a_draw_depends_on_its_own_name_alone() -> None:
    one = Parameter(uniform=(0.0, 1.0))
    alone = drawn({"a": one}, {}, 5)
    beside = drawn({"b": one, "c": Parameter(integers=(1, 3)), "a": one}, {}, 5)
    assert beside["a"] == alone["a"]
    assert beside["b"] != alone["a"]


def test_neighbouring_seeds_have_nothing_in_common() -> None:
    values = draws(Parameter(uniform=(0.0, 1.0)))
    others = draws(Parameter(uniform=(0.0, 1.0)), parameters_seed=1)
    assert len(set(values)) == len(values)
    assert abs(statistics.correlation(values[:-1], values[1:])) < 0.08
    assert not set(values) & set(others)


@pytest.mark.parametrize(
    ("parameter", "distribution"),
    [
        (Parameter(uniform=(-3.0, 5.0)), stats.uniform(-3, 8)),
        (Parameter(log_uniform=(0.1, 10.0)), stats.loguniform(0.1, 10)),
        (Parameter(normal=Normal(mean=2.0, sd=0.5)), stats.norm(2, 0.5)),
        (Parameter(normal=Normal(mean=0.0, sd=1.0, min=-0.5, max=2.0)), stats.truncnorm(-0.5, 2.0)),
        (Parameter(normal=Normal(mean=0.0, sd=1.0, min=2.0)), stats.truncnorm(2.0, 100.0)),
    ],
)
def test_draws_are_distributed_as_written(parameter: Parameter, distribution: Any) -> None:
    assert stats.kstest(draws(parameter), distribution.cdf).pvalue > 1e-3


def test_integers_include_both_ends_and_favour_none() -> None:
    counts = [draws(Parameter(integers=(-1, 4))).count(value) for value in range(-1, 5)]
    assert sum(counts) == len(SEEDS)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_choices_are_as_likely_as_each_other() -> None:
    counts = [draws(Parameter(choice=("a", [1, 2], {"b": 1}))).count(value) for value in ("a", [1, 2], {"b": 1})]
    assert stats.chisquare(counts).pvalue > 1e-3


@given(
    low=st.floats(-1e300, 1e300), high=st.floats(-1e300, 1e300), seed=st.integers(0, 2**128 - 1),
    name=st.from_regex(r"[^\W\d]\w{0,9}", fullmatch=True),
)  # fmt: skip
def test_uniform_draws_stay_within_their_ends(low: float, high: float, seed: int, name: str) -> None:
    low, high = min(low, high), max(low, high)
    assert low <= drawn({name: Parameter(uniform=(low, high))}, {}, seed)[name] <= high


@given(low=st.floats(1e-300, 1e300), high=st.floats(1e-300, 1e300), seed=st.integers(0, 2**64))
def test_log_uniform_draws_stay_within_their_ends(low: float, high: float, seed: int) -> None:
    low, high = min(low, high), max(low, high)
    assert low <= drawn({"x": Parameter(log_uniform=(low, high))}, {}, seed)["x"] <= high


@given(first=st.integers(-(2**53), 2**53), size=st.integers(0, 2**54), seed=st.integers(0, 2**64))
def test_integers_stay_within_their_ends(first: int, size: int, seed: int) -> None:
    last = min(first + size, 2**53)
    assert first <= drawn({"x": Parameter(integers=(first, last))}, {}, seed)["x"] <= last


def test_points_of_grids(tmp_path: Path) -> None:
    found = scenario(
        tmp_path,
        "parameters:\n  payload: {grid: [0, 2.5]}\n  friction: {uniform: [0, 1]}\n"
        "  floor: {grid: [wood, 'a b', true, null, [1]]}\n",
    )
    parameters = found.document.parameters
    grid = points(parameters)
    assert [point.id for point in grid[:5]] == [
        "payload=0-floor=wood", "payload=0-floor=item1", "payload=0-floor=true", "payload=0-floor=null",
        "payload=0-floor=item4",
    ]  # fmt: skip
    assert (len(grid), grid[5].id) == (10, "payload=2.5-floor=wood")
    first, last = (drawn(parameters, point.values, 3) for point in (grid[0], grid[-1]))
    assert list(first) == ["payload", "friction", "floor"]
    assert (first["payload"], first["floor"], last["floor"]) == (0, "wood", [1])
    # Groups of one grid differ by nothing but the grid.
    assert first["friction"] == last["friction"]
    assert points({}) == [Point()]


GOLDEN: list[dict[str, Any]] = [
    {
        "friction": 0.511927406779,
        "mass": 3.13366156239,
        "bias": -0.012075118616,
        "clipped": 1.0198388338,
        "pallets": 8,
        "floor": "concrete",
        "lights": "on",
    },
    {
        "friction": 0.622892005367,
        "mass": 0.304307080725,
        "bias": 0.00885957880278,
        "clipped": 0.905038440169,
        "pallets": 2,
        "floor": None,
        "lights": "on",
    },
    {
        "friction": 0.405276758321,
        "mass": 1.59849808581,
        "bias": -0.00999706599921,
        "clipped": 0.638817253534,
        "pallets": 8,
        "floor": "concrete",
        "lights": "on",
    },
]
