"""The table of groups at the end of a run, and the seeds that stand out."""

from __future__ import annotations

import pytest
from results_samples import baseline_of, episode_of, group_of, rollout_of

from pytest_microsim.report.standouts import standouts
from pytest_microsim.report.table import against, percent, shortened, table_of
from pytest_microsim.results.gathering import rate_of
from pytest_microsim.results.model import Phase


def test_the_table_fits_80_columns_and_long_names_have_a_line_of_their_own() -> None:
    name = "tests/scenarios/test_warehouse.py::TestDocking::test_robot_docks_with_a_load[heavy-wet_floor]"
    groups = [
        group_of(*(rollout_of(seed, "failed" if seed == 3 else "passed") for seed in range(64))),
        group_of(*(rollout_of(seed) for seed in range(8)), name=name, baseline=baseline_of("different", "worse")),
        group_of(rollout_of(1), name="test_a.py::test_alone", expected=64),
        group_of(rollout_of(7, "failed"), name="test_a.py::test_single"),
        group_of(rollout_of(7), name="test_b.py::test_single"),
    ]
    lines = list(table_of(groups, 80))
    assert lines == [
        "group          seeds  passed  pass rate (95 %)  N_eff  baseline  fork ms  ep. ms",
        "test_it           64      63  98.4 (91.6-99.9)    8.0         -      100     250",
        "TestDocking::test_robot_docks_with_a_load[heavy-wet_floor]",
        "                   8       8    100 (63.1-100)    8.0     worse      100     250",
        "test_alone      1/64       1     100 (2.5-100)    8.0         -      100     250",
        "2 tests of one seed",
        "                   2       1                 -      -         -      100     250",
    ]


def test_a_run_without_groups_has_no_table() -> None:
    assert list(table_of([], 80)) == []
    assert list(table_of([group_of(rollout_of(1))], 80)) == []


def test_tests_of_one_name_have_their_files_before_it_and_long_lists_are_cut() -> None:
    names = [f"a{number:02}/test_x.py::test_it" for number in range(50)]
    lines = list(table_of([group_of(rollout_of(1), rollout_of(2), name=name) for name in names], 200))
    assert lines[1].startswith("a00/test_x.py::test_it ")
    assert len(lines) == 42
    assert lines[-1].startswith("... and 10 more groups")


def test_a_group_of_which_nothing_ran_shows_nothing() -> None:
    _, line = table_of([group_of(expected=4, n_eff=None, name="t.py::t")], 80)
    assert line.split() == ["t", "0/4", "-", "-", "-", "-", "-"]


@pytest.mark.parametrize(
    ("passed", "total", "text"),
    [(0, 8, "0 (0-36.9)"), (8, 8, "100 (63.1-100)"), (4999, 5000, "99.9 (99.9-99.9)"), (1, 5000, "0.1 (0.1-0.1)")],
)
def test_nearly_all_is_not_all_and_nearly_nothing_not_nothing(passed: int, total: int, text: str) -> None:
    outcomes = ["passed"] * passed + ["failed"] * (total - passed)
    assert percent(rate_of(rollout_of(seed, outcome) for seed, outcome in enumerate(outcomes))) == text


@pytest.mark.parametrize(
    ("standing", "trends", "text"),
    [
        ("identical", (), "identical"),
        ("different", ("indistinguishable", "better"), "better"),
        ("different", ("better", "shifted", "worse"), "worse"),
        ("different", ("indistinguishable",), "different"),
        ("not comparable", ("indistinguishable",), "not comparable"),
        ("missing", (), "missing"),
    ],
)
def test_a_group_comes_to_its_worst_trend(standing: str, trends: tuple[str, ...], text: str) -> None:
    assert against(baseline_of(standing, *trends)) == text
    assert against(None) == "-"


def test_names_are_cut_in_the_middle() -> None:
    assert shortened("test_robot", 10) == "test_robot"
    assert shortened("test_robot_docks_at_night", 14) == "test..at_night"


def test_lost_seeds_are_the_worst_and_then_those_of_least_reward() -> None:
    group = group_of(
        rollout_of(1, reward=5.0),
        rollout_of(2, reward=-3.0, episodes=[episode_of(-3.0), episode_of(1.0)]),
        rollout_of(3, "missed", reward=9.0, failure="dock.yaml:4: distance is 0.3\nmore"),
        rollout_of(4, "skipped", episodes=[]),
        rollout_of(5, "failed", reward=None),
        rollout_of(6, reward=2.0, duration_s=9.0),
    )
    lines = list(standouts([group]))
    assert lines[: lines.index("slowest seeds:")] == [
        "worst seeds:",
        "  test_it, seed 3: missed, total reward 9; dock.yaml:4: distance is 0.3",
        "    pytest 'test_a.py::test_it[seed-0003]'",
        "  test_it, seed 5: failed",
        "    pytest 'test_a.py::test_it[seed-0005]'",
        "  test_it, seed 2: passed, total reward -2",
        "    pytest 'test_a.py::test_it[seed-0002]'",
    ]


def test_the_slowest_say_what_took_long_and_a_command_is_said_once() -> None:
    phases = [Phase(name="queue", start_s=0, duration_s=2.0), Phase(name="episode", start_s=2, duration_s=0.5)]
    group = group_of(rollout_of(1), rollout_of(2, duration_s=3.0, phases=phases), rollout_of(3, "failed"))
    assert list(standouts([group])) == [
        "worst seeds:",
        "  test_it, seed 3: failed, total reward 1",
        "    pytest 'test_a.py::test_it[seed-0003]'",
        "slowest seeds:",
        "  test_it, seed 2: 3.00 s (queue 2.00 s, episode 0.50 s)",
        "    pytest 'test_a.py::test_it[seed-0002]'",
        "  test_it, seed 1: 1.00 s (fork 0.10 s)",
        "    pytest 'test_a.py::test_it[seed-0001]'",
        "  test_it, seed 3: 1.00 s (fork 0.10 s)",
    ]


def test_many_groups_have_ten_seeds_between_them_and_one_seed_never_stands_out() -> None:
    groups = [
        group_of(*(rollout_of(seed, "failed", test=f"t.py::g{number}") for seed in range(9)), name=f"t.py::g{number}")
        for number in range(9)
    ]
    lines = list(standouts(groups))
    assert sum(": failed" in line for line in lines) == 10
    assert lines.index("slowest seeds:") == 21
    assert list(standouts([group_of(rollout_of(1, "failed"))])) == []
