"""Verdicts beside what else decides how pytest runs tests: xdist's ways, other plugins, limits, and the next run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_microsim.seeds import seed_of_test

# The first run on a machine bakes the world before any time is limited.
pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("cache_with_layers")]

Run = Callable[..., pytest.RunResult]
WORLD = "--microsim-world=cartpole"

SUITE = """
    import pytest

    @pytest.mark.seeds(range(3))
    def test_good(rollout):
        rollout.run("controllers/balance.py", max_steps=3)

    @pytest.mark.xdist_group("alone")
    def test_alone(rollout):
        rollout.reset()

    @pytest.mark.seeds(range(3))
    def test_copies(rollout):
        rollout.run("controllers/balance.py", max_steps=3, seed=5)
"""


def groups(result: pytest.RunResult) -> list[str]:
    """Return the lines that count the groups."""
    return [line for line in result.outlines if line.startswith("gates: ")]


def cases(pytester: pytest.Pytester) -> dict[str, dict[str, str]]:
    """Return the properties of each test case of the JUnit file, and under "" whether it failed."""
    found: dict[str, dict[str, str]] = {}
    for case in ElementTree.parse(pytester.path / "report.xml").iter("testcase"):
        name = str(case.get("name"))
        assert name not in found, f"{name} is there twice"
        found[name] = {str(each.get("name")): str(each.get("value")) for each in case.iter("property")}
        found[name][""] = "failed" if case.find("failure") is not None else "passed"
    return found


def listed(result: pytest.RunResult) -> list[str]:
    """Return the tests that a run with --collect-only names, in order."""
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


@pytest.fixture
def suite(pytester: pytest.Pytester, controllers: Path) -> None:
    pytester.makepyfile(test_it=SUITE)
    pytester.makeini("[pytest]\nmarkers = xdist_group: of pytest-xdist")


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        (["-p", "no:xdist", "-x", "--timeout=60"], [""]),
        (["-n2", "--dist=worksteal", "-p", "randomly", "--randomly-seed=7", "--maxfail=3"], [""]),
        (["-n2", "--dist=loadgroup", "--count=2", "--repeat-scope=session", "-x"], ["1-2", "2-2"]),
        (["-n3", "--reruns=1", "--only-rerun=nothing", "-p", "randomly"], [""]),
    ],
    ids=["no:xdist-x-timeout", "worksteal-randomly-maxfail", "loadgroup-repeat-x", "n3-reruns-randomly"],
)
def test_a_verdict_alone_fails_the_run_however_it_is_run(
    pytester: pytest.Pytester, run: Run, suite: None, flags: list[str], steps: list[str]
) -> None:
    result = run(WORLD, "-v", "--junitxml=report.xml", *flags)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=7 * len(steps), failed=len(steps))
    assert groups(result) == [f"gates: {len(steps)} passed, {len(steps)} failed"]
    text = result.stdout.str()
    assert max(map(int, re.findall(r"\[\s*(\d+)%\]", text))) == 100
    assert "INTERNALERROR" not in text + result.stderr.str()
    # All workers forked one snapshot: at most one of them made it, whoever else runs tests at this time.
    assert result.errlines.count("microsim: cartpole: loading cartpole") <= 1

    found = cases(pytester)
    tails = [f"-{step}" if step else "" for step in steps]
    verdicts = {f"test_copies[{f'{step}-' if step else ''}T2-fingerprint]" for step in steps}
    members = {f"test_copies[seed-000{seed}{tail}]" for seed in range(3) for tail in tails}
    assert {name for name, case in found.items() if case[""] == "failed"} == verdicts
    assert len(found) == 8 * len(steps)
    for name, case in found.items():
        if name not in verdicts:
            seed = re.search(r"seed-(\d{4})", name)
            plain = f"test_it.py::{name}"
            assert int(case["microsim_seed"]) == (int(seed[1]) if seed else seed_of_test(plain)), name
            assert len(case["microsim_environment"]) == 16, name
    assert len({case["microsim_environment"] for name, case in found.items() if "seed-0001" in name}) == 1

    # The next run, listed only: --ff has the members of the group that failed before all others.
    again = [flag for flag in flags if flag.startswith(("--count", "--repeat"))]
    order = listed(run(WORLD, "--collect-only", "-q", "--ff", *again))
    assert (len(order), set(order[: len(members)])) == (7 * len(steps), members)


def test_each_step_of_pytest_repeat_is_judged_apart(pytester: pytest.Pytester, run: Run, controllers: Path) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.repeat(2)
        @pytest.mark.seeds(range(2))
        def test_one_of_two(rollout, request):
            second = request.node.name.endswith("2-2]")
            rollout.run("controllers/balance.py", max_steps=3, seed=5 if second else None)

        @pytest.mark.repeat(2)
        @pytest.mark.microsim(repeat=2)
        def test_runs_of_one_seed(rollout):
            rollout.run("controllers/balance.py", max_steps=3)
        """
    )
    result = run(WORLD, "-n2", "-p", "randomly", "--junitxml=report.xml")
    result.assert_outcomes(passed=8, failed=1)
    assert groups(result) == ["gates: 3 passed, 1 failed"]
    assert [name for name, case in cases(pytester).items() if case[""] == "failed"] == [
        "test_one_of_two[2-2-T2-fingerprint]"
    ]


LOST = """
    import os
    from pathlib import Path

    import pytest

    @pytest.mark.seeds(range(4))
    def test_it(rollout):
        rollout.run("controllers/balance.py", max_steps=3)
        if rollout.seed == 1 and not Path("died").exists():
            Path("died").touch()
            os._exit(1)
"""


@pytest.mark.parametrize(
    ("flags", "passed", "rerun", "outcome"),
    [
        (["--dist=worksteal", "-p", "randomly"], 3, 0, "1 not assessed"),
        # Here xdist itself gives the test to another worker, and counts the crash as a failure all the same.
        (["--dist=loadscope"], 4, 0, "1 passed"),
        (["--dist=load", "--maxfail=1"], None, 0, "1 not assessed"),
        (["--dist=load", "--reruns=1"], 4, 1, "1 passed"),
    ],
    ids=["worksteal-randomly", "loadscope", "maxfail", "reruns"],
)
def test_a_worker_that_is_lost_leaves_its_group_unassessed_unless_its_test_is_run_again(
    pytester: pytest.Pytester,
    run: Run,
    controllers: Path,
    flags: list[str],
    passed: int | None,
    rerun: int,
    outcome: str,
) -> None:
    pytester.makepyfile(test_it=LOST)
    result = run(WORLD, "-n2", *flags)
    text = result.stdout.str()
    assert "INTERNALERROR" not in text
    assert "node down: Not properly terminated" in text
    assert groups(result) == [f"gates: {outcome}"]
    outcomes = result.parseoutcomes()
    if passed is not None:
        assert (outcomes.get("passed"), outcomes.get("rerun", 0)) == (passed, rerun)
    assert (result.ret == 0) is (rerun == 1)


def test_failures_up_to_a_limit_and_a_test_over_its_time_leave_their_groups_unassessed(
    pytester: pytest.Pytester, run: Run, controllers: Path
) -> None:
    pytester.makepyfile(
        test_it="""
        import time

        import pytest

        @pytest.mark.timeout(3, method="signal")
        @pytest.mark.seeds(range(3))
        def test_slow(rollout):
            if rollout.seed == 1:
                time.sleep(60)
            rollout.run("controllers/balance.py", max_steps=3)

        @pytest.mark.seeds(range(4))
        def test_failing(rollout):
            rollout.run("controllers/balance.py", max_steps=3)
            assert rollout.seed == 0
        """
    )
    begin = time.monotonic()
    result = run(WORLD, "--maxfail=3")
    assert time.monotonic() - begin < 45
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=3, failed=3)
    assert groups(result) == ["gates: 2 not assessed"]
    assert {line for line in result.outlines if line.startswith("not assessed: ")} == {
        "not assessed: test_it.py::test_slow: 2 of 3 seeds finished an episode",
        "not assessed: test_it.py::test_failing: 3 of 4 seeds ran",
    }


def test_a_flaky_member_that_is_run_again_counts_once_in_any_order(
    pytester: pytest.Pytester, run: Run, controllers: Path
) -> None:
    pytester.makepyfile(
        test_it="""
        from pathlib import Path

        import pytest

        @pytest.mark.seeds(range(4))
        def test_copies(rollout):
            rollout.run("controllers/balance.py", max_steps=3, seed=5)
            if rollout.seed == 2 and not Path("tried").exists():
                Path("tried").touch()
                pytest.fail("once")
        """
    )
    result = run(WORLD, "-n2", "--dist=worksteal", "-p", "randomly", "--reruns=2", "--junitxml=report.xml")
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["failed"], outcomes["rerun"], result.ret) == (4, 1, 1, 1)
    assert groups(result) == ["gates: 1 failed"]
    assert "4 seeds of test_it.py::test_copies amount to 1.0 independent episodes" in result.stdout.str()


def test_seeds_that_differ_from_worker_to_worker_are_refused_before_anything_starts(
    pytester: pytest.Pytester, run: Run
) -> None:
    pytester.makepyfile(
        """
        import random

        import pytest

        @pytest.mark.seeds(random.Random().sample(range(10**9), 4))
        def test_it(rollout):
            open("started", "w").close()
        """
    )
    result = run(WORLD, "-n2")
    assert result.ret not in (pytest.ExitCode.OK, pytest.ExitCode.INTERNAL_ERROR)
    assert "Different tests were collected between gw" in result.stdout.str()
    assert not (pytester.path / "started").exists()


@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="this pytest has no subtests")
def test_subtests_report_and_the_whole_test_is_what_is_compared(
    pytester: pytest.Pytester, run: Run, controllers: Path
) -> None:
    (controllers / "free.py").write_text("import os\n\ndef act(observation):\n    return os.urandom(1)[0] / 256.0\n")
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.microsim(repeat=2)
        def test_it(rollout, subtests):
            for name in ("balance", "free"):
                with subtests.test(name):
                    rollout.run(f"controllers/{name}.py", max_steps=9)
        """
    )
    result = run(WORLD)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert groups(result) == ["gates: 1 failed"]
    # Not only that they differ: the trajectory of the whole first run was still there.
    assert re.search(r"the first difference of episode 1 is at step \d, action\[\d\]: ", result.stdout.str())
