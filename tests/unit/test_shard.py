"""A suite in parts: each test in one of them, the seeds of a group together, and the parts of a size."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_microsim.results import file
from pytest_microsim.shard import MOST_SHARDS, Shard

SUITE = """
import pytest

@pytest.mark.seeds(range(6))
def test_a(rollout): ...

@pytest.mark.parametrize("load", ["light", "heavy"])
@pytest.mark.seeds(range(3))
def test_b(rollout, load): ...

def test_without_a_world(): ...

@pytest.mark.microsim(repeat=2)
def test_one_seed(rollout): ...
"""
UNITS = ("test_a", "test_b[light", "test_b[heavy", "test_without_a_world", "test_one_seed")


@given(st.dictionaries(st.text(), st.integers(1, 500), max_size=40), st.integers(1, 9))
def test_each_unit_is_in_one_part_and_no_part_is_too_large(units: dict[str, int], total: int) -> None:
    parts = [Shard(number, total).of(units) for number in range(1, total + 1)]

    assert sorted(key for part in parts for key in part) == sorted(units)
    loads = [sum(units[key] for key in part) for part in parts]
    assert max(loads) - min(loads) <= max(units.values(), default=0)
    again = dict(reversed(units.items()))
    assert parts == [Shard(number, total).of(again) for number in range(1, total + 1)]


@pytest.mark.parametrize("text", ["", "1", "0/4", "5/4", "1/0", "a/b", "-1/4", "1/4/2", "1/99999999999", "²/4"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="no part of a suite"):
        Shard.parse(text)


def test_a_part_is_written_as_it_is_read() -> None:
    assert str(Shard.parse(f"3/{MOST_SHARDS}")) == f"3/{MOST_SHARDS}"


def collected(folder: Path, *arguments: str) -> tuple[int, set[str]]:
    """Return pytest's exit status and the tests that it would run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command += ["--microsim-world", "cartpole", *arguments, str(folder)]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    return result.returncode, {line.partition("::")[2] for line in result.stdout.splitlines() if "::" in line}


def test_the_seeds_of_a_group_stay_together(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    _, everything = collected(tmp_path)

    parts = [collected(tmp_path, "--microsim-shard", f"{number}/3") for number in (1, 2, 3)]

    assert [status for status, _ in parts] == [0, 0, 0]
    assert sorted(name for _, names in parts for name in names) == sorted(everything)
    for unit in UNITS:
        assert sum(any(name.startswith(unit) for name in names) for _, names in parts) == 1, unit


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["n0", "n2"])
def test_a_part_without_a_test_passes_and_a_suite_without_one_does_not(
    pytester: pytest.Pytester, workers: list[str]
) -> None:
    pytester.makepyfile(test_it="def test_only(): ...")
    parts = [
        pytester.runpytest_subprocess(
            *workers, "--microsim-shard", f"{k}/2", "--microsim-results", f"{k}.json", timeout=60
        )
        for k in (1, 2)
    ]
    assert [part.ret for part in parts] == [0, 0]
    assert sorted(part.parseoutcomes().get("passed", 0) for part in parts) == [0, 1]
    results = [file.read(pytester.path / f"{k}.json") for k in (1, 2)]
    assert [(each.shard, each.exit_status) for each in results] == [("1/2", 0), ("2/2", 0)]

    pytester.makepyfile(test_it="")
    part = pytester.runpytest_subprocess(*workers, "--microsim-shard", "1/2", timeout=60)
    assert part.ret == pytest.ExitCode.NO_TESTS_COLLECTED
