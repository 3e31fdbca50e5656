"""Which lists of seeds are accepted, and how seeds are named and derived."""

from __future__ import annotations

import array
from collections import deque

import numpy as np
import pytest
from microsim_vm.errors import SeedError

from pytest_microsim.seeds import (
    check_seed,
    check_seeds,
    parse_seeds,
    seed_ids,
    seed_of_episode,
    seed_of_test,
)


@pytest.mark.parametrize(
    "values",
    [
        range(1, 4),
        [1, 2, 3],
        (1, 2, 3),
        deque([1, 2, 3]),
        array.array("i", [1, 2, 3]),
        np.array([1, 2, 3], dtype=np.uint8),
        np.arange(1, 4),
        [np.int64(1), np.uint32(2), 3],
    ],
)
def test_ordered_lists_become_plain_ints(values: object) -> None:
    seeds = check_seeds(values)
    assert seeds == [1, 2, 3]
    assert [type(seed) for seed in seeds] == [int, int, int]


def test_the_order_given_is_kept() -> None:
    assert check_seeds([9, 1, 5]) == [9, 1, 5]


def test_big_seeds_are_kept_exactly() -> None:
    big = [1, 2**32, 1 + 2**32, 1 + 2**40, 2**64, 2**128 - 1]
    assert check_seeds(big) == big


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({1, 2}, "a set is not"),
        (frozenset({1}), "a frozenset is not"),
        ({1: 2}, "a dict is not"),
        ({1: 2}.keys(), "a dict_keys is not"),
        ((seed for seed in range(3)), "a generator is not"),
        (iter([1, 2]), "a list_iterator is not"),
        ([True, 2], "True is a bool"),
        ([np.True_], "not a seed"),
        ([-1], "-1 is negative"),
        ([1.0], "a float, not a seed"),
        ([float("nan")], "a float, not a seed"),
        (["1"], "a str, not a seed"),
        ([None], "a NoneType, not a seed"),
        ("0:8", "is text"),
        (b"12", "is text"),
        ([], "holds no seed"),
        (range(0), "holds no seed"),
        ([3, 1, 3, 1, 2], "repeated seeds: 1, 3"),
        ([2**128], "129 bits"),
        (np.array([1.0, 2.0]), "float64"),
        (np.array([True]), "bool"),
        (np.array([[1, 2]]), "shape (1, 2)"),
        (np.array([], dtype=int), "holds no seed"),
        (7, "seeds(range(7)) for 7 seeds, or seeds([7])"),
        (np.int64(7), "seeds(range(7))"),
        (True, "a bool is not a list of seeds"),
        (None, "a NoneType is not a list of seeds"),
        (range(10**9), "at most 100000"),
    ],
)
def test_what_is_no_list_of_seeds_is_refused(values: object, words: str) -> None:
    with pytest.raises(SeedError) as caught:
        check_seeds(values)
    assert words in str(caught.value)


def test_one_seed_is_checked_like_many() -> None:
    assert check_seed(np.uint64(2**63)) == 2**63
    with pytest.raises(SeedError, match="bool"):
        check_seed(False)


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("0:4", [0, 1, 2, 3]),
        (":3", [0, 1, 2]),
        ("0:64:16", [0, 16, 32, 48]),
        ("1,7,9", [1, 7, 9]),
        (" 9, 1 ", [9, 1]),
        ("7", [7]),
        ("4294967296", [2**32]),
    ],
)
def test_seeds_of_the_command_line(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text",
    ["", "a", "1:", ":", "-1", "1.5", "8:0", "0:8:0", "0:8:-1", "1,,2", "1,1", "0:8,9", "²", "0:1000000000"],
)
def test_bad_seeds_of_the_command_line_are_refused(text: str) -> None:
    with pytest.raises(SeedError):
        parse_seeds(text)


def test_ids_have_one_width() -> None:
    assert seed_ids([1, 10, 100]) == ["seed-0001", "seed-0010", "seed-0100"]
    assert seed_ids([1, 123456]) == ["seed-000001", "seed-123456"]
    assert not any("seed-0001" in other for other in seed_ids(list(range(5000))) if other != "seed-0001")


def test_the_seed_of_a_test_is_the_same_for_ever() -> None:
    assert seed_of_test("tests/test_a.py::test_b") == 352877004
    assert seed_of_test("tests/test_a.py::test_c") != seed_of_test("tests/test_a.py::test_b")
    assert 0 <= seed_of_test("é\udcff") < 2**32


def test_each_episode_of_a_rollout_has_a_seed_of_its_own() -> None:
    assert seed_of_episode(7, 0) == 7
    drawn = {seed_of_episode(seed, episode) for seed in range(64) for episode in range(16)}
    assert len(drawn) == 64 * 16
    assert seed_of_episode(7, 1) == seed_of_episode(7, 1) < 2**32
