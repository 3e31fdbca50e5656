"""Judges of groups beside the gates, as other parts of the plugin add them; no guest is involved.

The tests of the runs below put on their reports what a rollout's test would.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

CONFTEST = """
    import json
    import pytest
    from pytest_microsim.gates.verdicts import Outcome, Verdict
    from pytest_microsim.report.collecting import results_of
    from pytest_microsim.report.judges import add_judge
    from pytest_microsim.results.gathering import complete
    from pytest_microsim.results.model import BaselineResult

    class Judge:
        calls = 0

        def judge(self, groups):
            self.calls += 1
            assert self.calls == 1
            found = {}
            for group in groups:
                group.baseline = BaselineResult(standing="identical", recorded="", path="p")
                outcome = Outcome.FAILED if complete(group) else Outcome.NOT_ASSESSED
                count = f"{len(group.rollouts)} rollouts, {group.pass_rate.passed} passed"
                found[group.key] = [Verdict("pass rate", group.name, outcome, f"{group.name}: {count}")]
            return found

    def pytest_configure(config):
        add_judge(config, Judge())

    def pytest_sessionfinish(session):
        results = results_of(session.config)
        if hasattr(session.config, "workerinput"):
            assert results is None
            return
        told = {
            group.name: [[v.gate, v.outcome] for v in group.verdicts]
            + [group.baseline.standing, [[r.seed, r.run, r.outcome, r.failure] for r in group.rollouts]]
            for group in results.groups
        }
        (session.config.rootpath / "told.json").write_text(json.dumps(told))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        seed = item.callspec.params.get("seed")
        missed = "it missed" if seed == 1 else ""
        path, line, _ = item.location
        if item.name.startswith("test_plain") or call.when == "teardown":
            return report
        report.microsim = {
            "worlds": {}, "worker": "",
            "rollout": {"world": "w", "environment": {}},
            "group": {"key": item.originalname, "test": f"{path}::{item.originalname}", "parameters": "",
                      "location": [path, line, item.originalname], "expected": 4, "demands": {}, "over_seeds": True,
                      "runs": 1, "scenario": "", "tags": [], "environment": {}, "asked_rate": None, "schedules": 0},
            "sample": {"seed": seed, "worker": "", "fingerprint": str(seed), "episode_seeds": (seed,), "probes": {},
                       "scalars": {}, "run_digest": ""},
            "repeat": {"run": 1, "differences": []},
        }
        if call.when == "call" or not report.passed:
            report.microsim["result"] = {"seed": str(seed), "missed": missed, "phases": [],
                                         "failure": missed or report.longreprtext.rpartition("E  ")[2].strip()}
        return report
"""
SUITE = """
    import os
    import pytest

    over_seeds = pytest.mark.parametrize("seed", range(4))

    @pytest.fixture
    def late():
        yield
        raise ValueError("late")

    @pytest.fixture
    def early(seed):
        if seed == 3:
            raise ValueError("early")
        if seed == 2:
            pytest.skip("no")

    @over_seeds
    def test_whole(seed):
        if seed == 1:
            pytest.xfail("it missed")
        assert seed != 2

    @over_seeds
    def test_errors(seed, early):
        pass

    @over_seeds
    def test_late(seed, request):
        if seed == 0:
            request.getfixturevalue("late")

    @over_seeds
    def test_crashes(seed, request):
        if seed == 2 and hasattr(request.config, "workerinput"):
            os._exit(3)
"""


@pytest.fixture(params=[0, 2], ids=["n0", "n2"])
def workers(request: pytest.FixtureRequest) -> Sequence[str]:
    return ["-n", str(request.param)] if request.param else ["-p", "no:xdist"]


def test_judges_see_all_groups_once_and_what_they_fail_fails_the_run(
    pytester: pytest.Pytester, workers: Sequence[str]
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=SUITE)
    result = pytester.runpytest_subprocess("-p", "no:randomly", *workers, "--tb=short", timeout=120)
    crashed = "-n" in workers
    told = json.loads((pytester.path / "told.json").read_text())
    assert told["test_it.py::test_whole"] == [
        ["T2 fingerprint", "passed"],
        ["pass rate", "failed"],
        "identical",
        [["0", 1, "passed", ""], ["1", 1, "missed", "it missed"], ["2", 1, "failed", "assert 2 != 2"],
         ["3", 1, "passed", ""]],
    ]  # fmt: skip
    outcomes = {name: [rollout[2] for rollout in rest[-1]] for name, rest in told.items()}
    assert outcomes["test_it.py::test_errors"] == ["passed", "missed", "skipped", "error"]
    assert told["test_it.py::test_errors"][1] == ["pass rate", "not assessed"]
    assert outcomes["test_it.py::test_late"] == ["error", "missed", "passed", "passed"]
    # One that was lost with its worker has no results, and what is not known of it is not made up.
    assert len(outcomes["test_it.py::test_crashes"]) == (3 if crashed else 4)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    lines = [line for line in result.outlines if "pass-rate]" in line]
    expected = ["test_whole"] if crashed else ["test_whole", "test_crashes"]
    assert sorted(lines) == sorted(
        f"FAILED test_it.py::{name}[pass-rate] - Failed: pass rate: test_it.py::{name}: 4 rollouts, "
        + ("2 passed" if name == "test_whole" else "3 passed")
        for name in expected
    )


def test_a_rerun_replaces_what_was_before(pytester: pytest.Pytester, workers: Sequence[str]) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        test_it="""
        import pathlib
        import pytest

        @pytest.mark.parametrize("seed", range(4))
        def test_flaky(seed):
            mark = pathlib.Path(f"mark{seed}")
            if seed == 2 and not mark.exists():
                mark.touch()
                assert not "now"
        """
    )
    result = pytester.runpytest_subprocess(*workers, "--reruns=1", "--tb=no", timeout=120)
    (group,) = json.loads((pytester.path / "told.json").read_text()).values()
    assert [rollout[2] for rollout in group[-1]] == ["passed", "missed", "passed", "passed"]
    result.stdout.fnmatch_lines(
        ["FAILED *pass-rate] - Failed: pass rate: test_it.py::test_flaky: 4 rollouts, 3 passed"]
    )
