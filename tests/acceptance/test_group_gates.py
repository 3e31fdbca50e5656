"""The gates over real rollouts: what reaches them from the guests, and what markers and ini settings change."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.timeout(600)

Run = Callable[..., pytest.RunResult]
REPOSITORY = Path(__file__).parents[2]
WORLD = "--microsim-world=cartpole"


def groups(result: pytest.RunResult) -> str:
    """Return the line that counts the groups."""
    return next((line for line in result.outlines if line.startswith("gates: ")), "")


def failed(pytester: pytest.Pytester) -> set[str]:
    """Return the test cases that the JUnit file calls failed."""
    cases = ElementTree.parse(pytester.path / "report.xml").iter("testcase")
    return {str(case.get("name")) for case in cases if case.find("failure") is not None}


def test_a_body_that_ignores_its_seed_fails_once_after_all_workers(
    pytester: pytest.Pytester, run: Run, controllers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makeconftest(
        """
        import os

        def pytest_runtest_logreport(report):
            if report.when == "call" and "PYTEST_XDIST_WORKER" not in os.environ and hasattr(report, "microsim"):
                with open("workers.txt", "a") as file:
                    print(report.microsim["sample"]["worker"], file=file)
        """
    )
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.seeds(range(8))
        def test_it(rollout):
            rollout.run("controllers/balance.py", max_steps=3, seed=5)
            rollout.record("score", 1.0)
            assert rollout.seed != 6
        """
    )
    result = run(WORLD, "-n", "4", "--junitxml=report.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=7, failed=2)
    assert groups(result) == "gates: 1 failed"
    assert failed(pytester) == {"test_it[seed-0006]", "test_it[T2-fingerprint]"}
    # A report that a gate makes has no sample; each of the tests' says who ran it.
    ran = (pytester.path / "workers.txt").read_text().split("\n")
    assert (len(ran), set(ran)) == (9, {"gw0", "gw1", "gw2", "gw3", ""})
    text = result.stdout.str()
    assert re.search(
        r"8 seeds of \S+::test_it amount to 1\.0 independent episodes .*; in all of them .*'score' is 1\.0", text
    )
    # One seed of the very same test, alone, is a partial group; told to be all of it, it is a group of one.
    for arguments in (["-k", "seed-0003"], ["--microsim-seeds", "3"]):
        result = run(WORLD, *arguments)
        assert (result.ret, groups(result)) == (0, "gates: 1 not assessed"), arguments


def test_recorded_numbers_are_judged_unless_the_marker_leaves_them_out(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.seeds(range(20))
        @pytest.mark.microsim(unchecked=["port"])
        def test_levels(rollout):
            rollout.record("level", rollout.seed // 4)
            rollout.record("port", rollout.seed // 4)
        """
    )
    result = run(WORLD, "-n", "2", "--junitxml=report.xml")
    result.assert_outcomes(passed=20, failed=1)
    assert failed(pytester) == {"test_levels[T3-scalar-level]"}
    text = result.stdout.str()
    assert "is constant within 5 of 5 parts of seed // 4" in text
    assert "unchecked=['level']" in text
    assert "metric 'port'" not in text


@pytest.fixture
def flawed(pytester: pytest.Pytester) -> None:
    """Make a world with a generator that does not take its seed, and a metric that is a number only sometimes."""
    folder = pytester.path / "templates" / "flawed"
    shutil.copytree(REPOSITORY / "templates" / "cartpole", folder, ignore=shutil.ignore_patterns("*.lock"))
    template = folder / "template.yaml"
    template.write_text(template.read_text().replace("name: cartpole", "name: flawed"))
    with (folder / "world.py").open("a") as file:
        file.write(
            "\n\nclass Stuck(random.Random):\n"
            "    def seed(self, value=None, version=2):\n"
            "        super().seed(7)\n"
            "\n\nclass Flawed(CartPole):\n"
            "    wind = Stuck()\n"
            "\n"
            "    def generators(self):\n"
            "        return {**super().generators(), 'wind': self.wind}\n"
            "\n"
            "    def metrics(self):\n"
            "        return {'late': float('nan') if self._steps == 2 else 1.0}\n"
            "\n\ndef make():\n"
            "    return Flawed(500)\n"
        )


def test_probes_and_metrics_come_from_the_guest(
    pytester: pytest.Pytester, run: Run, controllers: Path, flawed: None
) -> None:
    pytester.makeini("[pytest]\nmicrosim_min_effective_seeds = 5\nmicrosim_strict = true")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.seeds(range(6))
        def test_it(rollout):
            rollout.run("controllers/balance.py", max_steps=2 if rollout.seed == 4 else 3)

        @pytest.mark.seeds(range(4))
        @pytest.mark.microsim(variance="warn", min_effective_seeds=None)
        def test_escapes(rollout):
            rollout.run("controllers/balance.py", max_steps=3)

        @pytest.mark.seeds(range(4))
        @pytest.mark.microsim(variance="off", strict=False)
        def test_too_few(rollout):
            rollout.run("controllers/balance.py", max_steps=3)
        """
    )
    result = run("--microsim-world=flawed", "-n", "2", "--junitxml=report.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert failed(pytester) == {
        "test_it[T1-probe-world.wind]",
        "test_it[seed-0004]",
        "test_too_few[effective-seeds]",
    }
    result.assert_outcomes(passed=13, failed=3)
    assert groups(result) == "gates: 1 warned, 2 failed"
    text = result.stdout.str()
    assert "generator 'world.wind' drew the same 64 bits under different seeds: 6 seeds of" in text
    assert "InvalidEpisodeError: the world gave the metric 'late' as nan" in text  # before any gate could see it
    assert "WARNING T1 probe: generator 'world.wind'" in text
    assert "asks for 5 (min_effective_seeds)" in text
