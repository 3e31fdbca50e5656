"""Trajectories thinned out for pictures."""

from __future__ import annotations

import array
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from microsim_vm.episode import Column

from pytest_microsim.results.curves import WIDEST, budget, curves_of, thinned

NUMBERS = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf])


def column(name: str, rows: Sequence[Sequence[float]], *shape: int) -> Column:
    flat = array.array("d", [value for row in rows for value in row])
    return Column(name, "<f8", (len(rows), *shape), flat.tobytes())


@given(values=st.lists(NUMBERS, max_size=400), points=st.integers(4, 64))
def test_few_points_are_left_and_among_them_what_a_picture_must_not_lose(values: list[float], points: int) -> None:
    kept = thinned(values, points)
    assert kept == sorted(set(kept))
    assert len(kept) <= max(points, min(len(values), points))
    if not values:
        assert kept == []
        return
    assert {0, len(values) - 1} <= set(kept)
    left = [values[step] for step in kept]
    if all(map(math.isfinite, values)):
        assert (min(left), max(left)) == (min(values), max(values))
    else:
        assert not all(map(math.isfinite, left))


def test_one_peak_among_many_steps_stays() -> None:
    values = [0.0] * 100_000
    values[77_123] = 1.0
    assert 77_123 in thinned(values, 64)


def test_short_curves_are_whole_and_each_number_has_its_name() -> None:
    columns = {
        "observation": column("observation", [[1, 2, 3, 4], [5, 6, 7, math.nan]], 2, 2),
        "reward": column("reward", [[0.5]]),
    }
    curves = {curve["name"]: curve for curve in curves_of(columns)}
    assert list(curves) == ["reward", *(f"observation[{place}]" for place in ("0,0", "0,1", "1,0", "1,1"))]
    assert curves["reward"] == {"name": "reward", "steps": [0], "values": [0.5]}
    assert curves["observation[1,0]"]["values"] == [3.0, 7.0]
    assert curves["observation[1,1]"]["values"] == [4.0, None]


def test_pictures_have_no_curves_and_wide_columns_get_what_is_left() -> None:
    columns = {
        "observation.camera": column("observation.camera", [[0.0] * (WIDEST + 1)], WIDEST + 1),
        "observation.ranges": column("observation.ranges", [[0.0] * 30], 30),
        "nothing": column("nothing", [[], []], 0),
        "reward": column("reward", []),
    }
    names = [curve["name"] for curve in curves_of(columns, curves=24)]
    assert names == ["reward", *(f"observation.ranges[{place}]" for place in range(23))]


@pytest.mark.parametrize(
    ("dtype", "code", "expected"),
    [("<f4", "f", [0.1, 3.0]), ("<i8", "q", [-7.0, 2.0**53]), ("|b1", "B", [1.0, 0.0]), ("<u2", "H", [65535.0, 0.0])],
)
def test_every_kind_of_number_becomes_one(dtype: str, code: str, expected: list[float]) -> None:
    data = array.array(code, [value if code == "f" else int(value) for value in expected]).tobytes()
    (curve,) = curves_of({"state": Column("state", dtype, (2,), data)})
    assert curve["values"] == [pytest.approx(value, rel=1e-6) for value in expected]


def test_the_larger_the_group_the_less_of_each() -> None:
    sizes = [size * curves * points for size in (128, 512, 5000) for curves, points in [budget(size)]]
    assert sizes == [196_608, 196_608, 480_000]
    assert budget(1, 1024) == budget(128) != budget(128, 1025) == budget(1, 5000) == budget(512)
