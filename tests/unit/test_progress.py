"""The line that says how far a group has come."""

from __future__ import annotations

from typing import Any

from pytest_microsim.report.progress import GroupProgress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def payload(fingerprint: str | None, run: int = 1) -> dict[str, Any]:
    return {"sample": {"fingerprint": fingerprint}, "repeat": {"run": run}}


def ran(group: GroupProgress, nodeid: str, fingerprint: str | None = None, *, lost: bool = False) -> None:
    group.begin(nodeid)
    group.hear(nodeid, lost=lost, payload=payload(fingerprint))
    group.end(nodeid)


def test_it_says_what_is_done_what_passed_what_it_amounts_to_and_how_long_the_rest_takes() -> None:
    clock = Clock()
    group = GroupProgress("test_it", 64, clock=clock)
    assert group.line(80) == "test_it: 0 of 64"
    for number in range(8):
        clock.now += 10
        ran(group, f"t{number}", str(number % 2), lost=number == 0)
    assert group.line(80) == "test_it: 8 of 64, 7 passed (87.5 %), N_eff 2.0, 9:20 left"
    assert not group.finished


def test_the_last_one_finishes_it() -> None:
    clock = Clock()
    group = GroupProgress("test_it", 2, clock=clock)
    ran(group, "a", "x")
    clock.now += 7.25
    ran(group, "b", "y")
    assert group.finished
    assert group.summary(80) == "test_it: 2 of 2, 2 passed (100 %), N_eff 2.0, in 7.2 s"


def test_a_rerun_takes_the_place_of_what_was_before() -> None:
    group = GroupProgress("test_it", 2)
    ran(group, "a", "x")
    ran(group, "b", "x", lost=True)
    assert "1 passed (50 %), N_eff 1.0" in group.line(80)
    group.begin("b")
    assert not group.finished
    group.hear("b", lost=False, payload=payload("y"))
    group.end("b")
    assert "2 passed (100 %), N_eff 2.0" in group.line(80)


def test_runs_of_one_seed_are_no_copies_and_lost_episodes_count_for_nothing() -> None:
    group = GroupProgress("test_it", 4)
    ran(group, "a", "x")
    group.hear("a2", lost=False, payload=payload("x", run=2))
    group.hear("b", lost=True, payload=payload(None))
    group.hear("c", lost=True, payload=None)
    assert "N_eff 1.0" in group.line(80)


def test_it_fits_the_terminal_and_nearly_all_is_not_all() -> None:
    group = GroupProgress("test_robot_docks_at_night[heavy]", 10_000, over_seeds=False)
    for number in range(2000):
        ran(group, str(number), lost=number == 7)
    line = group.line(50)
    assert len(line) <= 50
    assert "1999 passed (99.9 %)" in line
    assert line.startswith("te..avy]: ")
    assert len(group.line(10)) == 10
