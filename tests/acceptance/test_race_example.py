"""The worked example of docs/determinism.md, as its reader runs it: the race is found, replayed, and shown fixed."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., pytest.RunResult]

EXAMPLES = Path(__file__).parents[2] / "example_tests"
RACE = "race_threads.py"
GUIDE = Path(__file__).parents[2] / "docs" / "determinism.md"
SEED = "6"  # the pole moves more at the moment that matters than in the example's own: fewer schedules are tried

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def suite(pytester: pytest.Pytester, controllers: Path) -> Path:
    shutil.copy(EXAMPLES / RACE, pytester.path)
    pytester.makeini("[pytest]\naddopts = -p no:randomly\n")
    return pytester.path


def test_the_race_is_found_and_its_command_repeats_it_and_the_fix_passes(suite: Path, run: Run) -> None:
    found = run("-n", "2", RACE, "--microsim-seeds", SEED, timeout_s=1000)
    assert found.ret == pytest.ExitCode.TESTS_FAILED
    said = re.search(r"schedule (\d+) is the first of 200 of seed (\d+) that fails", found.stdout.str())
    assert said is not None, found.stdout.str()[-2000:]
    schedule, seed = map(int, said.groups())
    test = f"{RACE}::test_pole_stays_up[seed-{seed:04d}-schedule-{schedule:04d}]"
    # With workers, others may have failed as well before the first one had ended.
    printed = [shlex.split(line)[2:] for line in found.outlines if line.startswith("replay: pytest ")]
    (words,) = (words for words in printed if words[0] == test)

    again = run(*words)
    again.assert_outcomes(failed=1)
    again.stdout.re_match_lines([r"replay: to the last bit of the machine's memory the run of that rollout .*"])
    (fallen,) = set(re.findall(r"assert \d+\.0 == 150", again.stdout.str()))
    assert fallen in found.stdout.str()

    (suite / RACE).write_text((suite / RACE).read_text().replace("threaded.py", "threaded_fixed.py"))
    numbers = f"{schedule}:{schedule + 3}"
    fixed = run(RACE, "--microsim-seeds", str(seed), "--microsim-interleavings", numbers)
    fixed.assert_outcomes(passed=3)


@pytest.mark.parametrize("name", ["threaded.py", "threaded_fixed.py"])
def test_the_guide_shows_the_example_as_it_is(name: str) -> None:
    """Its first two blocks of Python that listen are the two controllers' own lines."""
    blocks = [block for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "_listen" in block]
    shown = blocks[["threaded.py", "threaded_fixed.py"].index(name)]
    own = {line.strip() for line in (EXAMPLES / "controllers" / name).read_text().splitlines()}
    assert [line for line in shown.splitlines() if line.strip() not in own] == []
