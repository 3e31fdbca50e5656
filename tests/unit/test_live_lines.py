"""How far groups have come, on a terminal of their own and in a log, seen as the terminal shows it.

The tests of the runs below put on their reports what a rollout's test would; no guest is involved.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pexpect
import pyte
import pytest

pytestmark = pytest.mark.timeout(120)

COLUMNS, ROWS = 80, 30
DRAWN = rb"(?<=\x1b8)"  # after the lines below are drawn, the cursor is put back
CONFTEST = """
    import pytest

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if "seed" not in params or call.when == "teardown":
            return report
        path, line, _ = item.location
        seed, group = params["seed"], f"{item.originalname}[{params['gain']}]"
        report.microsim = {
            "worlds": {}, "worker": "",
            "rollout": {"world": "w", "environment": {}},
            "group": {"key": group, "test": f"{path}::{item.originalname}", "parameters": str(params["gain"]),
                      "location": [path, line, item.originalname], "expected": 4, "demands": {}, "over_seeds": True,
                      "runs": 1, "scenario": "", "tags": [], "environment": {}, "asked_rate": None, "schedules": 0},
            "sample": {"seed": seed, "worker": "", "fingerprint": str(seed), "episode_seeds": (seed,), "probes": {},
                       "scalars": {}, "run_digest": ""},
            "repeat": {"run": 1, "differences": []},
        }
        if call.when == "call":
            report.microsim["result"] = {"seed": str(seed), "missed": "", "phases": [], "failure": "", "replay": "r"}
        return report
"""
SUITE = """
    import time
    import pytest

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("gain", [1, 2])
    def test_it(gain, seed):
        time.sleep(0.1)
        assert seed != 2

    def test_plain():
        print("plain")
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Path:
    pytester.makeini("[pytest]\naddopts = -p no:randomly --tb=no\n")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=SUITE)
    return pytester.path


def watched(suite: Path, *arguments: str, **env: str) -> tuple[list[str], list[str]]:
    """Run pytest on a terminal; return the lines that it showed, each once, and all that is left in the end."""
    usual = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    child = pexpect.spawn(
        sys.executable, ["-m", "pytest", *arguments], cwd=str(suite), timeout=60, dimensions=(ROWS, COLUMNS),
        env={**usual, "TERM": "xterm-256color", **env},
    )  # fmt: skip
    screen = pyte.HistoryScreen(COLUMNS, ROWS, history=10_000, ratio=1)
    stream = pyte.ByteStream(screen)
    shown: dict[str, None] = {}
    try:
        while True:
            # However much is read at once, what is drawn and erased again in it is seen.
            for part in re.split(DRAWN, child.read_nonblocking(65536, timeout=60)):
                stream.feed(part)
                shown.update(dict.fromkeys(line.rstrip() for line in screen.display))
    except pexpect.EOF:
        child.close()
    above = ["".join(line[place].data for place in range(COLUMNS)).rstrip() for line in screen.history.top]
    return list(shown), [*above, *(line.rstrip() for line in screen.display)]


def live(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("test_it[") and " of 4" in line]


@pytest.mark.parametrize("arguments", [(), ("-n", "2"), ("-v",)], ids="".join)
def test_a_terminal_shows_groups_below_the_tests_and_nothing_of_it_is_left(
    suite: Path, arguments: tuple[str, ...]
) -> None:
    shown, left = watched(suite, *arguments)
    seen = live(shown)
    # With workers, the seed that fails may be the last.
    share = r"(2 passed \(66.7 %\)|3 passed \(100 %\))" if "-n" in arguments else r"2 passed \(66.7 %\)"
    assert any(re.match(rf"test_it\[1\]: 3 of 4, {share}, N_eff ", line) for line in seen), shown
    assert all(len(line) < COLUMNS for line in seen)
    # What was drawn is gone, and pytest's own lines are as they are without it.
    assert live(left) == []
    if "-v" in arguments:
        assert sum("PASSED" in line and "%]" in line for line in left) == 7
        assert sum("FAILED" in line and "%]" in line for line in left) == 2
    else:
        (dots,) = [line for line in left if line.endswith("[100%]")]
        assert sorted(dots.split()[-2]) == sorted("..F...F..")
    assert any(line.split()[:3] == ["test_it[1]", "4", "3"] for line in left)
    assert "worst seeds:" in left


@pytest.mark.parametrize("arguments", [(), ("-n", "2"), ("-n", "2", "-v")], ids="".join)
def test_a_log_has_a_line_for_each_group_that_has_ended(
    pytester: pytest.Pytester, suite: Path, arguments: tuple[str, ...]
) -> None:
    result = pytester.runpytest_subprocess(*arguments, timeout=60)
    lines = [line for line in result.outlines if "microsim: test_it[" in line]
    assert len(lines) == 2
    for line, gain in zip(lines, (1, 2), strict=True):
        assert line.startswith(f"microsim: test_it[{gain}]: 4 of 4, 3 passed (75 %), N_eff 4.0, in ")
        assert "PASSED" not in line
    assert "\x1b" not in result.stdout.str()


def test_the_quieter_the_less(pytester: pytest.Pytester, suite: Path) -> None:
    result = pytester.runpytest_subprocess("-q", timeout=60)
    assert not any("microsim: test_it[" in line for line in result.outlines)
    assert any(line.startswith("test_it[1] ") for line in result.outlines)
    assert "worst seeds:" not in result.outlines
    result = pytester.runpytest_subprocess("-qq", timeout=60)
    assert not any(line.startswith("test_it[1] ") for line in result.outlines)


@pytest.mark.parametrize(("arguments", "env"), [((), {"CI": "true"}), (("-s",), {"TERM": "xterm"})])
def test_where_nothing_can_be_taken_back_there_are_the_lines_of_a_log(
    suite: Path, arguments: tuple[str, ...], env: dict[str, str]
) -> None:
    shown, left = watched(suite, "-k", "1-", *arguments, **env)
    assert live(shown) == []
    assert sum(line.startswith("microsim: test_it[1]: 4 of 4, 3 passed (75 %)") for line in left) == 1
