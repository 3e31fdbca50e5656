"""Options for a world's reset: what is taken, and what is refused on the host and by a world without them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from microsim_guest import resetting
from microsim_vm import reset_options
from microsim_vm.controllers import Controller
from microsim_vm.errors import OptionsError
from microsim_vm.templates.spec import ControllerLimits

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=4), part, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=4))
def test_what_json_holds_passes_unchanged_and_in_one_order(options: dict[str, Any]) -> None:
    plain = reset_options.checked(options)
    assert plain == options
    assert list(plain) == sorted(options)
    assert json.loads(reset_options.text_of(plain)) == options
    backwards = dict(reversed(list(options.items())))
    assert reset_options.text_of(reset_options.checked(backwards)) == reset_options.text_of(plain)


def test_numpys_numbers_and_tuples_become_plain_ones() -> None:
    plain = reset_options.checked({"n": np.int32(3), "x": np.float32(0.5), "pose": (1, 2.0)})
    assert plain == {"n": 3, "x": 0.5, "pose": [1, 2.0]}
    assert [type(value) for value in plain.values()] == [int, list, float]
    assert reset_options.checked(None) == {}


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"a": [1, {"b": float("nan")}]}, r"options\['a'\]\[1\]\['b'\] is nan"),
        ({"a": {1: 2}}, r"a name in options\['a'\] is 1"),
        ({"a": b"x"}, r"options\['a'\] is b'x'"),
        ({"a": np.zeros(2)}, r"options\['a'\] is array"),
        ([("a", 1)], "a dict by name"),
        ({"a": "x" * (1 << 20)}, "larger than 1024 KiB"),
    ],
)
def test_what_json_cannot_hold_is_refused_where_it_is(options: Any, where: str) -> None:
    with pytest.raises(OptionsError, match=where):
        reset_options.checked(options)


def test_endless_nesting_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["a"] = loop
    with pytest.raises(OptionsError, match="nested more than 16 deep"):
        reset_options.checked(loop)


def test_options_change_the_digest_of_what_ran_and_none_leave_it_as_it_was() -> None:
    pilot, limits = Controller(b"x", "x.py"), ControllerLimits()
    without = pilot.digest(limits, 10, None)
    assert pilot.digest(limits, 10, None, {}) == without
    assert len({without, *(pilot.digest(limits, 10, None, {"friction": value}) for value in (0.5, 0.6, None))}) == 4


class Old:
    """A world of the time before options."""

    def reset(self, seed: int | None = None) -> tuple[int | None, dict[str, Any]]:
        """Return the seed."""
        return seed, {}


class Wrapped:
    """A world whose reset passes on whatever it is given."""

    def reset(self, **given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return all of it."""
        return given, {}


def test_reset_is_given_options_where_there_are_any_and_it_takes_them() -> None:
    assert resetting.reset(Wrapped(), 3, {}) == ({"seed": 3}, {})
    assert resetting.reset(Wrapped(), 3, {"a": 1}) == ({"seed": 3, "options": {"a": 1}}, {})
    assert resetting.reset(Old(), 3, {}) == resetting.reset(Old(), 3, None) == (3, {})
    with pytest.raises(resetting.NoOptions, match="takes no options, and is given some: a, b"):
        resetting.reset(Old(), 3, {"b": 1, "a": 2})
