"""Results of the run, collected from the reports in the process that controls it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from ..errors import ResultsError
from ..gates.verdicts import Verdict
from ..results import file
from ..results.gathering import group_of, phases_of, rollout_of, this_host, world_of
from ..results.model import GroupResult, Outcome, RolloutResult, RunResult
from ..state import RUN
from .payload import ATTRIBUTE, ENDED


@dataclass
class _Test:
    """What became known of one test with a rollout, from its reports so far.

    Attributes:
        group: The key of its group.
        began: When its set-up began, in seconds since 1970.
        duration_s: Of set-up, call and teardown.
        failed: Phases of which a report failed.
        skipped: It was skipped, or failed as it was expected to.
        facts: What the report of its last phase but the teardown carries.
        ended: What that of its teardown carries.
    """

    group: str = ""
    began: float = 0.0
    duration_s: float = 0.0
    failed: set[str] = field(default_factory=set)
    skipped: bool = False
    facts: Mapping[str, Any] | None = None
    ended: Mapping[str, Any] = field(default_factory=dict)


class Collecting:
    """Keeps what reports say of rollouts, and makes the run's results of it.

    Attributes:
        result: The results; None until the session is about to end.
        groups: All groups; empty until the last test has ended.
        baselines: What is to be said of baselines as a whole, a line each; for whoever compares them.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.result: RunResult | None = None
        self.groups: list[GroupResult] = []
        self.baselines: list[str] = []
        self._config = config
        self._tests: dict[str, _Test] = {}
        self._groups: dict[str, Mapping[str, Any]] = {}
        self._worlds: dict[str, dict[str, Any]] = {}
        self._workers: set[str] = set()
        self._problem = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what one report says. A rerun begins with a set-up, and replaces what was there."""
        payload: Mapping[str, Any] | None = getattr(report, ATTRIBUTE, None)
        if report.when == "setup":
            self._tests.pop(report.nodeid, None)
            if payload is not None and "rollout" in payload:
                self._tests[report.nodeid] = _Test(began=getattr(report, "start", time.time() - report.duration))
        if payload is not None:
            self._keep_worlds(payload)
        test = self._tests.get(report.nodeid)
        if test is None or report.when is None:
            return
        if payload is not None and "rollout" in payload:
            group, rollout = payload["group"], payload["rollout"]
            self._groups[group["key"]] = {**group, "world": rollout["world"]}
            test.group = group["key"]
            test.facts = payload.get("result", test.facts)
        test.ended = getattr(report, ENDED, test.ended)
        test.duration_s += report.duration
        test.skipped |= report.skipped
        if report.failed:
            test.failed.add(report.when)

    def groups_with(self, verdicts: Mapping[str, Sequence[Verdict]]) -> list[GroupResult]:
        """Make the groups, of all tests that have ended.

        Args:
            verdicts: What the gates say, by the group's key.
        """
        rollouts: dict[str, list[RolloutResult]] = {key: [] for key in self._groups}
        for nodeid, test in self._tests.items():
            if test.facts is not None:  # else it was lost with its worker, or interrupted
                rollouts[test.group].append(self._rollout(nodeid, test, test.facts))
        found = [group_of(self._groups[key], of_it, verdicts.get(key, ())) for key, of_it in rollouts.items()]
        self.groups = sorted(found, key=_place)
        return self.groups

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Make the results of the whole run, and write them where that is asked for; a run that cannot has failed."""
        run = self._config.stash[RUN]
        self.result = RunResult(
            version=version("pytest-microsim"),
            started=datetime.fromtimestamp(run.began).astimezone().isoformat(timespec="seconds"),
            duration_s=round(time.time() - run.began, 3),
            command=shlex.join(["pytest", *map(str, self._config.invocation_params.args)]),
            exit_status=int(session.exitstatus),  # an empty part of a suite passes
            workers=len(self._workers) or 1,
            host=this_host(),
            worlds=[self._world(name) for name in sorted(self._worlds)],
            groups=self.groups,
            baselines=self.baselines,
            shard=str(run.settings.shard or ""),
        )
        if run.settings.results is not None:
            try:
                file.write(run.settings.results, self.result)
            except ResultsError as error:
                self._problem = str(error)
                session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def written(self) -> tuple[str, bool] | None:
        """Say where the results file is, or why there is none, and whether that is a problem; None if nobody asked."""
        path = self._config.stash[RUN].settings.results
        if self._problem:
            return self._problem, True
        return None if path is None else (f"results: {near(path)}", False)

    def _keep_worlds(self, payload: Mapping[str, Any]) -> None:
        worker = payload["worker"]
        if worker:
            self._workers.add(worker)
        for name, facts in payload["worlds"].items():
            kept = self._worlds.setdefault(name, {**facts, "warmed": False, "findings": {}, "warm_ups": {}})
            kept["warmed"] |= not facts["reused"]
            kept["findings"].update(dict.fromkeys(facts["findings"]))
            kept["warm_ups"][worker] = facts["warm_ups"]
        for machine in [payload.get("rollout", {}), *payload.get("rollout", {}).get("others", ())]:
            if machine.get("world") in self._worlds:
                self._worlds[machine["world"]]["findings"].update(dict.fromkeys(machine.get("findings", ())))

    def _rollout(self, nodeid: str, test: _Test, facts: Mapping[str, Any]) -> RolloutResult:
        spans = [("test", test.began, test.duration_s), *facts["phases"]]
        ended = {name: value for name, value in test.ended.items() if value}
        if "failure" in ended and facts["failure"]:
            ended["failure"] = f"{facts['failure']}\n\n{ended['failure']}"
        phases = phases_of(spans, self._config.stash[RUN].began)
        return rollout_of(
            {**facts, **ended}, nodeid=nodeid, outcome=_outcome(test, facts), duration_s=test.duration_s, phases=phases
        )

    def _world(self, name: str) -> Any:
        kept = self._worlds[name]
        facts = {**kept, "warm_ups": [each for worker in sorted(kept["warm_ups"]) for each in kept["warm_ups"][worker]]}
        return world_of(
            name, facts, warmed=kept["warmed"], findings=kept["findings"], began=self._config.stash[RUN].began
        )


NAME = "microsim-collecting"


def collecting_of(config: pytest.Config) -> Collecting | None:
    """Return what collects the results of this run; None in a worker."""
    found: Collecting | None = config.pluginmanager.get_plugin(NAME)
    return found


def results_of(config: pytest.Config) -> RunResult | None:
    """Return the results of this run, from the hook ``pytest_sessionfinish`` on.

    Returns:
        None in a worker, and before the session is about to end. Paths of files are absolute.
    """
    found = collecting_of(config)
    return None if found is None else found.result


def _outcome(test: _Test, facts: Mapping[str, Any]) -> Outcome:
    if "setup" in test.failed:
        return "error"
    if "call" in test.failed:
        return "failed"
    if "teardown" in test.failed:
        return "error"
    if facts["missed"]:
        return "missed"
    return "skipped" if test.skipped else "passed"


def _place(group: GroupResult) -> tuple[str, int, str]:
    path, _, line = group.location.rpartition(":")
    return path, int(line), group.key


def near(path: Path) -> str:
    """Return a path as it is from the working directory, where it lies below that."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
