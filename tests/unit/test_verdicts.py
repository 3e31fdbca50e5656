"""Verdicts as reports: ids, exit status, JUnit file, summary and the next run agree, with workers and without.

The tests of the runs below put on their reports what a rollout's test would; no guest is involved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest

CONFTEST = """
    import pytest

    @pytest.fixture
    def says(request):
        def say(expected=16, demands=(), **facts):
            request.node.said = expected, dict(demands), facts
        return say

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        if call.when == "call" and hasattr(item, "said"):
            expected, demands, facts = item.said
            path, line, _ = item.location
            name = item.originalname
            worker = getattr(item.config, "workerinput", {}).get("workerid", "")
            seed = item.callspec.params["seed"]
            common = {"seed": seed, "worker": worker, "fingerprint": None, "episode_seeds": (seed,), "probes": {},
                      "scalars": {}, "run_digest": ""}
            report.microsim = {
                "worlds": {}, "worker": worker,
                "rollout": {"world": "w", "environment": facts.pop("environment", {"wall_clock": None})},
                "group": {"key": name, "test": f"{path}::{name}", "parameters": "", "location": [path, line, name],
                          "expected": expected, "demands": demands, "over_seeds": True,
                          "scenario": "", "tags": [], "environment": {}, "asked_rate": None, "schedules": 0,
                          "runs": facts.pop("runs", 1)},
                "repeat": {"run": facts.pop("run", 1), "differences": facts.pop("differences", [])},
                "sample": common | facts,
            }
        return report
"""


@pytest.fixture(params=[0, 2], ids=["n0", "n2"])
def workers(request: pytest.FixtureRequest) -> Sequence[str]:
    return ["-n", str(request.param)] if request.param else ["-p", "no:xdist"]


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    # The terminal's progress and the short summary are those of a process of its own.
    return pytester.runpytest_subprocess("-p", "no:randomly", *arguments, timeout=120)


def groups(result: pytest.RunResult) -> str:
    """Return the line that counts the groups."""
    return next((line for line in result.outlines if line.startswith("gates: ")), "")


def failures(result: pytest.RunResult) -> set[str]:
    """Return what the short summary calls failed. What each says is cut where the line is full."""
    found = (re.fullmatch(r"FAILED [^:]+::(.+?\])(?: - .*)?", line) for line in result.outlines)
    return {match[1] for match in found if match}


FIELD = """
    import pytest

    over_seeds = pytest.mark.parametrize("seed", range(16))

    @over_seeds
    def test_ignores_the_seed(seed, says):
        says(fingerprint="same", scalars={"score": 1.0})

    @over_seeds
    def test_two_clusters(seed, says):
        says(fingerprint="even" if seed % 2 == 0 else "odd")
        assert seed != 5

    @over_seeds
    def test_constant_alone(seed, says):
        says(scalars={"score": 1.0}, probes={"python.random": str(seed)})

    @over_seeds
    def test_constant_alone_strictly(seed, says):
        says(scalars={"score": 1.0}, demands={"strict": True})

    @over_seeds
    def test_constant_beside_an_episode(seed, says):
        says(fingerprint=str(seed), scalars={"score": 1.0}, demands={"strict": True})

    @over_seeds
    def test_not_a_number(seed, says):
        says(fingerprint=str(seed), scalars={"score": float("nan") if seed in (3, 9) else 1.0, "other": float("inf")})

    @over_seeds
    def test_sometimes_missing(seed, says):
        says(fingerprint=str(seed), scalars={"score": 1.0, "late": 2.0} if seed else {"score": 1.0})

    @pytest.mark.parametrize("seed", [7])
    def test_single(seed, says):
        says(expected=1, fingerprint="same", scalars={"score": 1.0}, demands={"strict": True})

    @over_seeds
    def test_partly_run(seed, says):
        if seed != 4:
            says(fingerprint="same", scalars={"score": 1.0}, demands={"strict": True})

    @over_seeds
    def test_demanding(seed, says):
        says(fingerprint=str(seed % 8), demands={"min_effective_seeds": 9, "support": 8, "variance": "off"})

    @over_seeds
    def test_off(seed, says):
        says(fingerprint="same", demands={"deterministic": True})
"""


def test_what_a_group_shows_decides_how_it_ends(pytester: pytest.Pytester, workers: Sequence[str]) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_field=FIELD)
    result = run(pytester, *workers, "--junitxml=report.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert groups(result) == "gates: 1 passed, 4 failed, 1 error, 1 inconclusive, 3 not assessed, 1 off"
    found = failures(result)
    assert found == {
        "test_two_clusters[5]",
        "test_ignores_the_seed[T2-fingerprint]",
        "test_two_clusters[T2-fingerprint]",
        "test_constant_alone_strictly[T3-scalar-score]",
        "test_not_a_number[T3-scalar-other]",
        "test_not_a_number[T3-scalar-score]",
        "test_demanding[effective-seeds]",
    }
    result.assert_outcomes(passed=160, failed=len(found))
    text = result.stdout.str()
    for words in (
        "16 seeds of test_field.py::test_ignores_the_seed amount to 1.0 independent episodes (N_eff = 1.0, and at most "
        "12 of 16 fails); in all of them 'score' is 1.0",
        "16 seeds of test_field.py::test_two_clusters amount to 2.0 independent episodes",
        "copies of each other: seeds 0, 2, 4, 6, 8, 10, 12, 14",
        "metric 'score' of test_field.py::test_constant_alone_strictly is 1.0 in all 16 seeds",
        "metric 'score' of test_field.py::test_not_a_number is NaN in seeds 3, 9",
        "metric 'other' of test_field.py::test_not_a_number is infinite in seeds 0, 1, 2",
    ):
        assert words in text, words
    assert [line for line in result.outlines if line.startswith("inconclusive: ")] == [
        "inconclusive: T3 scalar: metric 'score' of test_field.py::test_constant_alone is 1.0 in all 16 seeds, and "
        "there is no episode to tell more"
    ]
    assert {line for line in result.outlines if line.startswith("not assessed: ")} == {
        # That group has another verdict, which is worse.
        "not assessed: test_field.py::test_constant_alone: 0 of 16 seeds finished an episode",
        "not assessed: test_field.py::test_constant_alone_strictly: 0 of 16 seeds finished an episode",
        "not assessed: test_field.py::test_sometimes_missing: metric 'late': 15 of 16 seeds have it; it is missing in "
        "seeds 0",
        "not assessed: test_field.py::test_single: one seed has nothing to be compared with",
        "not assessed: test_field.py::test_partly_run: 15 of 16 seeds ran",
    }
    assert max(map(int, re.findall(r"\[\s*(\d+)%\]", text))) == 100

    suite = ElementTree.parse(pytester.path / "report.xml").find(".//testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("167", "7", "0")
    failed = {str(case.get("name")) for case in suite.iter("testcase") if case.find("failure") is not None}
    assert failed == found


def test_each_verdict_of_a_group_has_an_id_of_its_own_and_lf_repeats_the_group_once(
    pytester: pytest.Pytester, workers: Sequence[str]
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        test_ids="""
        import pytest

        @pytest.mark.parametrize("seed", range(32))
        def test_it(seed, says):
            part = float(seed % 8)
            scalars = {"a b": part, "a-b": part, "c\\n\\x1b]": part, "\\u20ac" * 200: part, "\\u20ac" * 201: part}
            says(expected=32, probes={"world.wind": "0", "world.rain": f"{seed}", "world.snow": "0"}, scalars=scalars)

        @pytest.mark.parametrize("seed", range(4))
        def test_fine(seed, says):
            says(expected=4, fingerprint=str(seed))
        """
    )
    result = run(pytester, *workers, "--junitxml=report.xml", "--tb=no")
    assert groups(result) == "gates: 1 passed, 1 failed"
    names = [case.get("name") for case in ElementTree.parse(pytester.path / "report.xml").iter("testcase")]
    verdicts = [name for name in names if name and "[T" in name]
    long = r"\u20ac" * 100
    assert verdicts == [
        "test_it[T1-probe-world.snow,world.wind]",
        "test_it[T3-scalar-a-b]",
        "test_it[T3-scalar-a-b-2]",
        r"test_it[T3-scalar-c\n\x1b]]",
        f"test_it[T3-scalar-{long}"[: len("test_it[") + 120] + "]",
        f"test_it[T3-scalar-{long}"[: len("test_it[") + 120] + "-2]",
    ]
    result.assert_outcomes(passed=36, failed=6)
    again = run(pytester, *workers, "--lf", "--tb=no")
    again.assert_outcomes(passed=32, failed=6)
    assert groups(again) == "gates: 1 failed"


def test_a_number_that_follows_the_worker_is_told_by_which_worker_ran_what(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("seed", range(64))
        def test_it(seed, says, worker_id):
            says(expected=64, fingerprint=str(seed), scalars={"port": {"gw0": 8000, "gw1": 8001}[worker_id]})
        """
    )
    result = run(pytester, "-n", "2")
    result.assert_outcomes(passed=64, failed=1)
    assert failures(result) == {"test_it[T3-scalar-port]"}
    assert "look for a state that the rollouts of one worker share" in result.stdout.str()


def test_long_lists_are_cut_and_whole_groups_come_first(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("seed", range(8))
        def test_first(seed, says):
            says(expected=8, fingerprint=str(seed), scalars={f"m{n:02}": 1.0 for n in range(30)} if seed else {})

        @pytest.mark.parametrize("seed", range(8))
        def test_second(seed, says):
            says(expected=9, fingerprint=str(seed), demands={"min_effective_seeds": 2})
        """
    )
    result = run(pytester)
    assert result.ret == 0
    lines = [line.partition(": ")[2] for line in result.outlines if line.startswith("not assessed: ")]
    # Two gates say the same of the second group: once is enough.
    assert lines[0].endswith("::test_second: 8 of 9 seeds ran")
    assert "metric 'm00'" in lines[1]
    assert len(lines) == 21
    assert lines[-1] == "11 more"


def test_a_run_that_is_cut_short_is_judged_once_and_assesses_nothing(
    pytester: pytest.Pytester, workers: Sequence[str]
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_field=FIELD)
    for arguments in (["-x", "-k", "two_clusters"], ["-k", "ignores_the_seed and (2 or 3)"]):
        result = run(pytester, *workers, *arguments)
        assert groups(result) == "gates: 1 not assessed", arguments
        assert "T2-fingerprint" not in result.stdout.str()


def test_a_seed_that_is_run_again_is_judged_once_and_counts_once(
    pytester: pytest.Pytester, workers: Sequence[str]
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        test_twice="""
        import pytest

        def twice(test):
            return pytest.mark.parametrize("seed", range(4))(pytest.mark.parametrize("run", [1, 2])(test))

        @twice
        def test_same(seed, run, says):
            says(4, run=run, runs=2, fingerprint=str(seed))

        @twice
        def test_copies_beside(seed, run, says):
            says(4, run=run, runs=2, fingerprint="same", demands={"deterministic": True})

        @twice
        def test_other(seed, run, says):
            names = [str(seed), f"{seed}x" if seed == 2 else str(seed)]
            found = {"text": "the first difference is at step 9, state[9]: 1.0 and 1.5", "episode": 0, "step": 9,
                     "column": "state", "index": (), "values": ("1.0", "1.5"), "distance": 2**51}
            told = [{"run": 2, "fingerprints": names, "difference": found}] if (seed, run) == (2, 2) else []
            says(4, run=run, runs=2, fingerprint=names[run - 1], differences=told)

        @twice
        def test_partly(seed, run, says):
            if (seed, run) != (3, 2):
                says(4, run=run, runs=2, fingerprint=str(seed))

        @twice
        def test_elsewhere(seed, run, says):
            says(4, run=run, runs=2, fingerprint=str(seed), environment={"cpu": str(run)})
        """
    )
    result = run(pytester, *workers, "--tb=short")
    result.assert_outcomes(passed=40, failed=1)
    assert failures(result) == {"test_other[determinism]"}
    assert groups(result) == "gates: 2 passed, 1 failed, 2 not assessed"
    text = result.stdout.str()
    assert "1 of 4 repeated seeds of test_twice.py::test_other gave another episode when they were run again" in text
    assert "seed 2: the first difference is at step 9, state[9]: 1.0 and 1.5" in text
    assert "; not pinned: wall_clock" in text
    assert "not assessed: test_twice.py::test_partly: 3 of 4 seeds ran twice" in text
    assert "test_elsewhere: 4 of 4 repeated seeds cannot be compared; seed 0: cpu is '1' in one and '2'" in text
    again = run(pytester, *workers, "--lf")
    again.assert_outcomes(passed=8, failed=1)
