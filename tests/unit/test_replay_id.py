"""The id of a rollout, and what is said of a replay."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_microsim.replay import NOTHING, ReplayId, digest_of, verdict


def world(digest: str = "d", key: str = "k", contents: str = "", **others: Any) -> Any:
    snapshot = SimpleNamespace(key=key, contents=contents)
    return SimpleNamespace(digest=digest, snapshot=snapshot, others=others, deterministic=bool(contents))


def rollout(controllers: list[str], traces: list[str], schedule: int | None = None, run_digest: str = "") -> Any:
    return SimpleNamespace(controllers=controllers, traces=lambda: traces, schedule=schedule, run_digest=run_digest)


BEGUN = ReplayId.of("tests/test_x.py::test[é-\udc80]", 7, world(), 1735776000.0)
ENDED = BEGUN.ended(rollout(["c"], ["t"]))
DETERMINISTIC = BEGUN.ended(rollout(["c"], ["t"], 2**63 - 1, "ab" * 32))


@pytest.mark.parametrize("clock", [None, 1735776000.0, 1735776000.125, 4102444799.999999])
@pytest.mark.parametrize("seed", [0, 2**128 - 1])
@pytest.mark.parametrize("base", [BEGUN, ENDED, DETERMINISTIC, replace(DETERMINISTIC, run=NOTHING)])
def test_an_id_is_read_as_it_was_written(base: ReplayId, seed: int, clock: float | None) -> None:
    one = replace(base, seed=seed, wall_clock=clock)
    assert ReplayId.parse(f" {one}\n") == one
    assert set(str(one)) <= set("0123456789abcdefnows.")  # no shell has to quote it


@pytest.mark.parametrize(
    "text", ["", "7", "none", f"{ENDED}.", f"{ENDED}0"[1:], str(ENDED).replace(".7.", ".-7."), "x" * 10**6]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not what a failed rollout printed"):
        ReplayId.parse(text)


def test_every_part_follows_from_one_thing_alone() -> None:
    def differing(other: ReplayId) -> list[str]:
        return [name for name in BEGUN.__dataclass_fields__ if getattr(BEGUN, name) != getattr(other, name)]

    name = "tests/test_x.py::test[é-\udc80]"
    assert differing(ReplayId.of(name + "x", 7, world(), 1735776000.0)) == ["test"]
    assert differing(ReplayId.of(name, 7, world("e"), 1735776000.0)) == ["image"]
    assert differing(ReplayId.of(name, 7, world(key="l"), 1735776000.0)) == ["snapshot"]
    assert differing(ReplayId.of(name, 7, world(other=world()), 1735776000.0)) == ["image", "snapshot"]
    assert ReplayId.of(name, 7, world(contents="a"), 1.0) != ReplayId.of(name, 7, world(contents="b"), 1.0)
    assert differing(BEGUN.ended(rollout([], []))) == []
    assert differing(ENDED) == ["controllers", "episodes"]
    assert digest_of("ab", "c") != digest_of("a", "bc")


@pytest.mark.parametrize(
    ("changes", "same", "words"),
    [
        ({}, True, f"bit by bit the episodes of that rollout ({ENDED.episodes})"),
        ({"snapshot": "00000000"}, True, "; not the same as then: the world's snapshot"),
        ({"episodes": "00000000"}, False, "something that the seed does not govern: --microsim-repeat 2"),
        (
            {"episodes": "00000000", "controllers": "00000000"},
            False,
            "; not the same as then: the controller, or what it was run with",
        ),
        ({"episodes": NOTHING, "wall_clock": None}, False, "not the same as then: where the wall clock starts"),
    ],
)
def test_a_replay_is_said_to_be_one_only_if_every_bit_is(changes: dict[str, Any], same: bool, words: str) -> None:
    was, line = verdict(ENDED, replace(ENDED, **changes))
    assert was is same
    assert words in line


def test_without_episodes_there_is_nothing_to_compare() -> None:
    assert verdict(BEGUN, BEGUN) == (True, "no episode to compare, then or now")
    assert verdict(BEGUN, replace(BEGUN, snapshot="0" * 8))[0] is False


@pytest.mark.parametrize(
    ("changes", "same", "words"),
    [
        ({}, True, "to the last bit of the machine's memory the run of that rollout (abababab)"),
        (
            {"run": "00000000"},
            False,
            "another run of the whole machine than that rollout's (00000000 now, abababab then)",
        ),
        ({"run": "00000000"}, False, "; the test asks something else of it"),
        ({"run": "00000000", "schedule": 3}, False, "not the same as then: in which order threads take turns"),
        ({"run": "00000000", "episodes": "00000000"}, False, "other episodes than that rollout's"),
        ({"run": "00000000", "snapshot": "00000000"}, False, "the world's snapshot (another warm-up, engine or"),
    ],
)
def test_of_a_deterministic_machine_all_of_it_is_compared(changes: dict[str, Any], same: bool, words: str) -> None:
    was, line = verdict(DETERMINISTIC, replace(DETERMINISTIC, **changes))
    assert was is same
    assert words in line
