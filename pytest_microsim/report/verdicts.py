"""Verdicts over groups of seeds, made once all workers are done, in the process whose exit status counts.

A worker's exit status is ignored, and what it stores is lost when it crashes; reports already sent survive.
So the facts ride on the reports, and a group that failed becomes one more failed report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from ..gates.judge import judge
from ..gates.verdicts import Group, Verdict
from ..results.gathering import add_verdicts, named
from .collecting import Collecting
from .judges import judges_of
from .payload import ATTRIBUTE
from .repetitions import repeats_of
from .samples import sample_of

_LONGEST_LABEL = 120
"""Most characters of what a report of a verdict is called: some metrics are lists of names."""


@dataclass
class WorldSummary:
    """What became known of one world in a run.

    Attributes:
        facts: As :meth:`pytest_microsim.worlds.WorldPool.facts` gives them.
        warmed: True if any process had to warm it.
        findings: All findings, each once, in order.
        fork_ms: Time of each rollout's fork, in milliseconds, by the test's id.
        other_ms: The same of each fork that was another machine of a rollout.
    """

    facts: dict[str, Any]
    warmed: bool = False
    findings: dict[str, None] = field(default_factory=dict)
    fork_ms: dict[str, float] = field(default_factory=dict)
    other_ms: dict[tuple[str, int], float] = field(default_factory=dict)


class Verdicts:
    """Collects payloads, judges the groups, and turns verdicts that fail into failed reports.

    Attributes:
        worlds: What became known of each world, by name.
        judged: The verdicts over each group.
    """

    def __init__(self, config: pytest.Config, collecting: Collecting) -> None:
        self._config = config
        self._collecting = collecting
        self._groups: dict[str, dict[str, Any]] = {}
        self._members: dict[str, dict[str, dict[str, Any]]] = {}
        self.worlds: dict[str, WorldSummary] = {}
        self.judged: list[list[Verdict]] = []
        self._told: dict[str, list[Verdict]] = {}
        self._labels: dict[str, set[str]] = {}
        self._emitting: pytest.TestReport | None = None

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test's report carries; that of a rerun replaces that of the run before."""
        payload: dict[str, Any] | None = getattr(report, ATTRIBUTE, None)
        if payload is None:
            return
        for name, facts in payload["worlds"].items():
            world = self.worlds.setdefault(name, WorldSummary(facts))
            world.warmed |= not facts["reused"]
            world.findings.update(dict.fromkeys(facts["findings"]))
        rollout = payload.get("rollout")
        if rollout is None:
            return
        if "timings" in rollout:  # it was forked, so that its world is warm
            world = self.worlds[rollout["world"]]
            world.findings.update(dict.fromkeys(rollout["findings"]))
            if "fork" in rollout["timings"]:  # a deterministic machine that was asked nothing was not
                world.fork_ms[report.nodeid] = rollout["timings"]["fork"]
            for number, other in enumerate(rollout["others"]):
                world = self.worlds[other["world"]]
                world.findings.update(dict.fromkeys(other["findings"]))
                world.other_ms[report.nodeid, number] = other["fork_ms"]
        group = payload["group"]
        self._groups[group["key"]] = group
        member = {"environment": rollout["environment"]}
        if "sample" in payload:
            member |= {"sample": payload["sample"], **payload["repeat"]}
        self._members.setdefault(group["key"], {})[report.nodeid] = member

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Any:
        """Judge after the last test, also if the run was cut short: partial groups are 'not assessed'."""
        try:
            return (yield)
        finally:
            self._judge()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Let a verdict count as a failure without being progress, which would go over 100 %.

        Only while it is emitted: the short summary asks again, and shows it like any other failure.
        """
        return ("failed", "", "") if report is self._emitting else None

    def _judge(self) -> None:
        by_gates = {key: self._gates(key) for key in self._groups}
        for key, verdicts in by_gates.items():
            self._tell(key, verdicts)
        groups = self._collecting.groups_with(by_gates)
        for judging in judges_of(self._config):
            found = judging.judge(groups)
            for group in groups:
                verdicts = list(found.get(group.key, ()))
                add_verdicts(group, verdicts)
                self._tell(group.key, verdicts)
        self.judged = [verdicts for verdicts in self._told.values() if verdicts]

    def _gates(self, key: str) -> list[Verdict]:
        """Ask all gates about one group."""
        facts = self._groups[key]
        members = [member for member in self._members[key].values() if "sample" in member]
        if not members:
            return []
        firsts = [member["sample"] for member in members if member["run"] == 1]
        samples = {sample["seed"]: sample_of(sample) for sample in firsts}
        group = Group(
            name=named(facts),
            expected=facts["expected"],
            samples=tuple(samples.values()),
            over_seeds=facts["over_seeds"],
            # Under other schedules a seed need not give the same.
            runs=1 if facts["schedules"] else facts["runs"],
            repeats=() if facts["schedules"] else repeats_of(members),
            **facts["demands"],
        )
        return judge(group)

    def _tell(self, key: str, verdicts: list[Verdict]) -> None:
        """Keep verdicts over one group, and let each that fails be one more failed report."""
        self._told.setdefault(key, []).extend(verdicts)
        labels = self._labels.setdefault(key, set())
        for verdict in verdicts:
            if verdict.failed and not verdict.reported:
                self._fail(verdict, _label(verdict, labels), self._groups[key], list(self._members[key]))

    def _fail(self, verdict: Verdict, label: str, facts: dict[str, Any], members: list[str]) -> None:
        """Emit one failed report for a group, and let ``--lf`` run its members again, not the report."""
        parameters = f"{facts['parameters']}-" if facts["parameters"] else ""
        path, line, domain = facts["location"]
        nodeid = f"{facts['test']}[{parameters}{_id(label)}]"
        report = _failed_report(nodeid, (path, line, f"{domain}: {label}"), _as_failure(verdict))
        manager = self._config.pluginmanager
        # Plugins that remember failures would look for a test of this id in the next run.
        remembering = [manager.get_plugin("lfplugin"), manager.get_plugin("stepwiseplugin")]
        hook = manager.subset_hook_caller(
            "pytest_runtest_logreport", [plugin for plugin in remembering if plugin is not None]
        )
        self._emitting = report
        hook(report=report)
        self._emitting = None
        lastfailed: Any = remembering[0]
        for member in members if lastfailed is not None else ():
            lastfailed.pytest_runtest_logreport(_failed_report(member, (path, line, domain), str(verdict)))


def _label(verdict: Verdict, taken: set[str]) -> str:
    """Return what the report of a verdict is called, in printable ASCII, and note it as taken in its group."""
    metric = verdict.metric.encode("unicode_escape").decode("ascii")
    name = label = f"{verdict.gate} {metric}".rstrip()[:_LONGEST_LABEL]
    number = 1
    while _id(label) in taken:
        number += 1
        label = f"{name} {number}"
    taken.add(_id(label))
    return label


def _id(label: str) -> str:
    return label.replace(", ", ",").replace(" ", "-")


def _as_failure(verdict: Verdict) -> Any:
    """Return the verdict in the form of a failed test's text, whose first line the short summary shows."""
    try:
        pytest.fail(str(verdict), pytrace=False)
    except pytest.fail.Exception as failure:
        return pytest.ExceptionInfo.from_exception(failure).getrepr(style="value")


def _failed_report(nodeid: str, location: tuple[str, int | None, str], longrepr: Any) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=nodeid, location=location, keywords={}, outcome="failed", longrepr=longrepr, when="call"
    )
