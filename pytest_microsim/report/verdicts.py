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

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._groups: dict[str, dict[str, Any]] = {}
        self._members: dict[str, dict[str, dict[str, Any]]] = {}
        self.worlds: dict[str, WorldSummary] = {}
        self.judged: list[list[Verdict]] = []
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
            world.fork_ms[report.nodeid] = rollout["timings"]["fork"]
            for number, other in enumerate(rollout["others"]):
                world = self.worlds[other["world"]]
                world.findings.update(dict.fromkeys(other["findings"]))
                world.other_ms[report.nodeid, number] = other["fork_ms"]
        group = payload["group"]
        if group is not None:
            self._groups[group["key"]] = group
            member = {"sample": payload["sample"], "environment": rollout["environment"], **payload["repeat"]}
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
        for key, facts in self._groups.items():
            members = self._members[key]
            firsts = [member["sample"] for member in members.values() if member["run"] == 1]
            samples = {sample["seed"]: sample_of(sample) for sample in firsts}
            name = facts["test"] + (f"[{facts['parameters']}]" if facts["parameters"] else "")
            group = Group(
                name=name,
                expected=facts["expected"],
                samples=tuple(samples.values()),
                over_seeds=facts["over_seeds"],
                runs=facts["runs"],
                repeats=repeats_of(list(members.values())),
                **facts["demands"],
            )
            verdicts = judge(group)
            self.judged.append(verdicts)
            labels: set[str] = set()
            for verdict in verdicts:
                if verdict.failed:
                    self._fail(verdict, _label(verdict, labels), facts, list(members))

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
