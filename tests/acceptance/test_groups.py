"""Gate T2 over groups of seeds: exit status, summary, JUnit file and the next run agree, at -n0 and -n2 alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.timeout(600)

Run = Callable[..., pytest.RunResult]
WORLD = "--microsim-world=cartpole"


def summary(result: pytest.RunResult) -> str:
    """Return the line that counts the verdicts."""
    return next((line for line in result.outlines if line.startswith("gates: ")), "")


def test_copies_fail_the_group_and_everything_says_so(
    pytester: pytest.Pytester, run: Run, workers: int, controllers: Path
) -> None:
    pytester.makepyfile(
        test_copies="""
        import pytest

        @pytest.mark.seeds(range(4))
        @pytest.mark.parametrize("steps", ["3-x", "4"])
        def test_half_the_seed(rollout, steps):
            # Only the last bit of the seed is used, in one of the two groups.
            seed = rollout.seed % 2 if steps == "4" else rollout.seed
            rollout.run("controllers/balance.py", max_steps=int(steps[0]), seed=seed)

        @pytest.mark.seeds(range(2))
        def test_good(rollout):
            rollout.run("controllers/balance.py", max_steps=3)

        def test_plain():
            pass
        """
    )
    result = run(WORLD, "--junitxml=report.xml", "-v")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=11, failed=1)
    assert summary(result) == "gates: 2 passed, 1 failed"
    text = result.stdout.str()
    identity = "test_copies.py::test_half_the_seed[4-T2-fingerprint]"
    assert f"FAILED {identity} - " in text
    assert "4 seeds of test_copies.py::test_half_the_seed[4] amount to 2.0 independent episodes" in text
    assert "copies of each other: seeds 0, 2" in text
    assert "likely cause: the test gives several rollouts the same seed" in text
    assert max(map(int, re.findall(r"\[\s*(\d+)%\]", text))) == 100

    suite = ElementTree.parse(pytester.path / "report.xml").find(".//testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("12", "1", "0")
    failed = [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
    assert failed == ["test_half_the_seed[4-T2-fingerprint]"]

    # The next run with --lf repeats the group, whole, and judges it again; the verdict itself is no test.
    again = run(WORLD, "--lf")
    again.assert_outcomes(passed=4, failed=1)
    assert summary(again) == "gates: 1 failed"
    # A test that is mended is forgotten.
    test = pytester.path / "test_copies.py"
    test.write_text(test.read_text().replace("rollout.seed % 2", "rollout.seed"))
    run(WORLD, "--lf").assert_outcomes(passed=4)
    lastfailed = pytester.path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    assert not lastfailed.exists() or lastfailed.read_text() == "{}"


def test_without_reseeding_every_test_passes_and_the_group_fails(
    pytester: pytest.Pytester, run: Run, workers: int, controllers: Path
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.seeds(range(2))
        @pytest.mark.microsim(reseed=False)
        def test_trap(rollout):
            rollout.run("controllers/balance.py", max_steps=3)

        @pytest.mark.seeds(range(2))
        @pytest.mark.microsim(reseed=False)
        def test_trap_by_hand(rollout):
            rollout.reset()
            rollout.step(0)

        @pytest.mark.seeds(range(2))
        def test_by_hand(rollout):
            rollout.reset()
            rollout.step(0)
        """
    )
    result = run(WORLD)
    # Both gates of both groups: the generators drew the same, and the episodes are the same.
    result.assert_outcomes(passed=6, failed=4)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "switches reseeding off (reseed=False)" in result.stdout.str()
    assert summary(result) == "gates: 1 passed, 2 failed"


def test_escapes_and_groups_that_cannot_be_judged(pytester: pytest.Pytester, run: Run, controllers: Path) -> None:
    pytester.makepyfile(
        """
        import pytest

        def constant(rollout):
            rollout.run("controllers/balance.py", max_steps=3, seed=5)

        @pytest.mark.seeds(range(2))
        @pytest.mark.microsim(deterministic=True)
        def test_declared(rollout):
            constant(rollout)

        @pytest.mark.seeds(range(2))
        @pytest.mark.microsim(variance="off")
        def test_off(rollout):
            constant(rollout)

        @pytest.mark.seeds(range(2))
        @pytest.mark.microsim(variance="warn")
        def test_warn(rollout):
            constant(rollout)

        @pytest.mark.seeds([3])
        def test_single(rollout):
            constant(rollout)

        @pytest.mark.seeds(range(2))
        def test_no_episode(rollout):
            rollout.record("score", 1.0)  # a constant without a trajectory is no proof of anything

        @pytest.mark.seeds(range(2))
        @pytest.mark.microsim(strict=True)
        def test_no_episode_strictly(rollout):
            rollout.record("score", 1.0)

        @pytest.mark.seeds(range(2))
        @pytest.mark.microsim(strict=True, unchecked=["score"])
        def test_declared_constant(rollout):
            rollout.record("score", 1.0)

        @pytest.mark.seeds(range(2))
        def test_one_is_skipped(rollout):
            if rollout.seed:
                pytest.skip("not today")
            constant(rollout)

        @pytest.mark.seeds(range(4))
        def test_one_fails(rollout):
            rollout.run("controllers/balance.py", max_steps=3)
            assert rollout.seed != 2
        """
    )
    result = run(WORLD, "-n", "2")
    result.assert_outcomes(passed=17, failed=2, skipped=1)
    assert summary(result) == "gates: 1 passed, 1 warned, 1 failed, 1 inconclusive, 3 not assessed, 2 off"
    text = result.stdout.str()
    # The world has generators, and each fork's were seeded: that says nothing of this number.
    file = "test_escapes_and_groups_that_cannot_be_judged.py"
    constant = "is 1.0 in all 2 seeds, and there is no episode to tell more"
    assert f"inconclusive: T3 scalar: metric 'score' of {file}::test_no_episode {constant}" in result.outlines
    assert f"T3 scalar: metric 'score' of {file}::test_no_episode_strictly {constant} (strict: this fails)" in text
    assert f"FAILED {file}::test_no_episode_strictly[T3-scalar-score]" in text
    assert "WARNING T2 fingerprint: 2 seeds of" in text
    for line in (
        "test_single: one seed has nothing to be compared with",
        "test_no_episode: 0 of 2 seeds finished an episode",
        "test_declared_constant: 0 of 2 seeds finished an episode",
        "test_one_is_skipped: 1 of 2 seeds finished an episode",
    ):
        assert any(out.startswith("not assessed: ") and out.endswith(line) for out in result.outlines), line


PARTIAL = """
    import os

    import pytest

    @pytest.mark.seeds(range(8))
    def test_it(rollout):
        rollout.run("controllers/balance.py", max_steps=3, seed=5)
        assert rollout.seed != 2, "two"
        if rollout.seed == 3 and "LOSE_A_WORKER" in os.environ and "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(1)
"""


def test_partial_groups_are_not_assessed(pytester: pytest.Pytester, run: Run, workers: int, controllers: Path) -> None:
    pytester.makepyfile(test_it=PARTIAL)
    deselected = [f"--deselect=test_it.py::test_it[seed-000{seed}]" for seed in (0, 1, 4, 5, 6)]
    for arguments in (["-x"], ["-k", "seed-0001 or seed-0002"], deselected):
        result = run(WORLD, *arguments)
        assert result.ret in (1, 2), arguments
        assert result.parseoutcomes()["failed"] == 1, arguments
        assert summary(result) == "gates: 1 not assessed", arguments
        assert re.search(r"not assessed: test_it.py::test_it: \d of 8 seeds ran", result.stdout.str()), arguments
    # The last of these runs failed on seed 2: --lf repeats exactly that.
    result = run(WORLD, "--lf")
    result.assert_outcomes(failed=1)
    assert "1 of 8 seeds ran" in result.stdout.str()


def test_a_lost_worker_leaves_its_group_unassessed(
    pytester: pytest.Pytester, run: Run, controllers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it=PARTIAL)
    monkeypatch.setenv("LOSE_A_WORKER", "1")
    result = run(WORLD, "-n", "2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = result.stdout.str()
    assert "crashed while running" in text
    assert "INTERNALERROR" not in text
    assert summary(result) == "gates: 1 not assessed"
    # The lost seed may have reported its set-up.
    assert re.search(r"not assessed: test_it.py::test_it: 7 of 8 seeds (ran|finished an episode)", text)


def test_a_rerun_replaces_the_run_before(pytester: pytest.Pytester, run: Run, controllers: Path) -> None:
    pytester.makepyfile(
        """
        from pathlib import Path

        import pytest

        @pytest.mark.seeds(range(4))
        def test_it(rollout):
            tried = Path(f"tried-{rollout.seed}")
            first = not tried.exists()
            tried.touch()
            rollout.run("controllers/balance.py", max_steps=3, seed=5 if first else None)
            assert not first
        """
    )
    result = run(WORLD, "-n", "2", "--reruns=1")
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["rerun"]) == (4, 4)
    assert result.ret == 0
    assert summary(result) == "gates: 1 passed"
