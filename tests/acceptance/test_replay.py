"""A failure's command replays that rollout and no other, says whether it did, and opens the guest to whoever looks."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

Run = Callable[..., pytest.RunResult]

pytestmark = pytest.mark.timeout(300)

SUITE = """
import pytest

@pytest.mark.seeds(range(4))
def test_it(rollout):
    episode = rollout.run("controllers/noise.py", max_steps=5)
    rollout.exec("echo seed $EPISODE_SEED was here > /workspace/mark", check=True)
    assert rollout.seed != 2, "two is bad"

def test_alone(rollout):
    rollout.run("controllers/broken.py")

def test_lost(rollout):
    rollout.run(["controllers/push", "0"], max_steps=3)
    rollout.run(["controllers/push", "7"], max_steps=3)
"""
PUSH = """#!/bin/sh
while read -r line; do echo "{\\"action\\": $1}"; done
"""
ORDER = ["test_it[s", "test_alon", "test_lost"]
NOISE = """
import random

def act(observation):
    return random.uniform(-1, 1)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Workers of the ini file's must not be in the way of a replay.
    pytester.makeini("[pytest]\naddopts = -n 2 -p no:randomly\nmicrosim_world = cartpole\n")
    pytester.makepyfile(test_it=SUITE)
    folder = pytester.mkdir("controllers")
    (folder / "noise.py").write_text(NOISE)
    (folder / "broken.py").write_text("def act(observation):\n    return 1 / 0\n")
    (folder / "push").write_text(PUSH)
    return pytester.path


def commands(result: pytest.RunResult) -> list[list[str]]:
    return [shlex.split(line)[2:] for line in result.outlines if line.startswith("replay: pytest ")]


def last_line(result: pytest.RunResult) -> str:
    return next(line for line in result.outlines if line.startswith("replay: ") and "pytest" not in line)


def test_a_failure_is_replayed_alone_and_compared(suite: Path, run: Run) -> None:
    result = run()
    result.assert_outcomes(passed=3, failed=3)
    group, alone, lost = sorted(commands(result), key=lambda words: ORDER.index(words[0].split("::")[1][:9]))
    assert group[0] == "test_it.py::test_it[seed-0002]"
    assert group[1:3] == ["--microsim-engine", re.findall(r": (qemu|gvisor) [0-9]", result.stdout.str())[0]]
    assert group[-2] == "--microsim-replay"

    result = run(*group)
    result.assert_outcomes(failed=1)
    assert "two is bad" in result.stdout.str()
    assert "[gw0]" not in result.stdout.str()  # a worker's; the folder may be called after one
    assert "bit by bit the episodes of that rollout" in last_line(result)
    # The id alone names the rollout: nothing else of what is collected is run.
    result = run(*alone[1:])
    result.assert_outcomes(failed=1, deselected=5)
    assert "ZeroDivisionError" in result.stdout.str()
    assert "bit by bit the episodes of that rollout" in last_line(result)

    (suite / "controllers" / "noise.py").write_text(NOISE.replace("-1", "0"))
    result = run(*group)
    result.assert_outcomes(failed=1)
    assert re.search(
        r"replay: other episodes than .*; not the same as then: the controller, or what it was run with$",
        last_line(result),
    )

    # An episode that the world's error left no record of is one, and counts.
    result = run(*lost)
    result.assert_outcomes(failed=1)
    assert "WorldError" in result.stdout.str()
    assert "bit by bit the episodes of that rollout" in last_line(result)
    (suite / "test_it.py").write_text(SUITE.replace('"7"', '"1"'))
    result = run(*lost)
    result.assert_outcomes(passed=1)
    assert "other episodes than" in last_line(result)
    assert "or what it was run with" in last_line(result)

    result = run(*group[1:], "-k", "seed-0001")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--microsim-replay: none of 1 collected tests is the one of *"])
    result = run("--microsim-replay", "7.abc")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'7.abc' is not what a failed rollout printed after --microsim-replay*"])


def test_a_replay_has_the_clock_of_then_and_the_world_of_then(suite: Path, run: Run) -> None:
    (suite / "controllers" / "noise.py").write_text(
        "import time\n\ndef act(observation):\n    return time.time() // 3600 / 1e7\n"
    )
    result = run("--microsim-engine=qemu", "test_it.py::test_it[seed-0002]", "--junitxml=report.xml")
    (words,) = commands(result)
    assert words[-1].endswith(".1735776000")
    assert "&quot;wall_clock&quot;:1735776000.0" in (suite / "report.xml").read_text()
    result = run(*words)
    result.assert_outcomes(failed=1)
    assert "bit by bit the episodes of that rollout" in last_line(result)
    parts = words[-1].split(".")
    parts[6] = "1893456000"
    result = run(*words[:-1], ".".join(parts))
    assert re.search(r"other episodes than .*; the test or something that the seed does not govern", last_line(result))
    parts[2] = "00000000"
    result = run(*words[:-1], ".".join(parts))
    result.assert_outcomes(errors=1)
    assert "its image is" in result.stdout.str()
    assert "and was 00000000 then" in result.stdout.str()


@contextlib.contextmanager
def spawned(suite: Path, *arguments: str) -> Iterator[pexpect.spawn]:
    """Run pytest on a terminal of its own, to its end."""
    words = ["-m", "pytest", *arguments]
    child = pexpect.spawn(sys.executable, words, cwd=str(suite), timeout=120, encoding="utf-8", dimensions=(40, 160))
    try:
        yield child
        child.expect(pexpect.EOF)
    finally:
        child.close(force=True)


def test_shell_and_debugger_find_the_guest_as_the_test_left_it(
    suite: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run("--microsim-shell", "test_it.py::test_it[seed-0002]")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--microsim-shell needs a terminal*"])

    with spawned(suite, "--microsim-shell", "test_it.py::test_it") as child:
        child.expect("two is bad")
        child.expect("a shell in the guest of seed 2")
        child.expect_exact("# ")
        child.sendline("cat /workspace/mark; exit")
        child.expect("seed 2 was here")
        child.expect("going on")
        child.expect("1 failed, 3 passed")

    # A replay that passes is opened, too: it is what somebody wanted to see.
    (words,) = commands(run("test_it.py::test_it[seed-0002]"))
    (suite / "test_it.py").write_text(SUITE.replace("!= 2", "!= 3"))
    with spawned(suite, "--microsim-shell", *words) as child:
        child.expect("a shell in the guest of seed 2")
        child.expect_exact("# ")
        child.sendline("exit")
        child.expect("bit by bit the episodes")
        child.expect("1 passed")

    (suite / "test_it.py").write_text(SUITE)
    with spawned(suite, "--pdb", "-n0", *words) as child:
        child.expect_exact("(Pdb) ")
        child.sendline("print('READ', rollout.filesystem.read('/workspace/mark'))")
        child.expect_exact("READ b'seed 2 was here")
        child.expect_exact("(Pdb) ")
        child.sendline("rollout.shell()")
        child.expect_exact("# ")
        child.sendline("echo in the $(cat /workspace/mark); exit")
        child.expect("in the seed 2 was here")
        child.expect_exact("(Pdb) ")
        child.sendline("quit")
        child.expect("1 failed")
