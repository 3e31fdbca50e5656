"""Baselines in a run of pytest: what rollouts leave where they run, and what is made of it in the end.

The process that ran a rollout compares its trajectory, or spools it to be kept. The process that controls the session
does all else, after the last test, and it alone writes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ..collection import PARAMETER, group_key
from ..errors import BaselineError
from ..gates.verdicts import Outcome, Verdict
from ..report.collecting import collecting_of
from ..report.payload import ATTRIBUTE
from ..results.gathering import complete
from ..results.model import BaselineResult, GroupResult
from ..state import RUN
from . import seeds as of_seeds
from . import store
from .comparison import GroupNow, compare_all, metrics_of, parameters_of
from .environment import host_now
from .judging import GATE, verdict_of
from .leaving import SPOOL
from .orphans import orphans
from .spool import Collected, Spool
from .store import Entry
from .updating import New, Updated, flat, name_of, update
from .wishes import Wishes

KEY = "baseline"
"""The name under which a report's payload has what is said here."""

_ADDRESS = "microsim_baselines"


def needs(config: pytest.Config) -> None:
    """Refuse to compare without what it takes.

    Raises:
        pytest.UsageError: numpy is missing.
    """
    if config.stash[RUN].settings.baseline == "check" and importlib.util.find_spec("numpy") is None:
        raise pytest.UsageError(
            "--microsim-baseline check needs numpy, which is not installed: pip install 'pytest-microsim[baselines]'"
        )


class Baselines:
    """Takes part in a session in which baselines are updated or checked; one in each process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        run = config.stash[RUN]
        given = getattr(config, "workerinput", {}).get(_ADDRESS)
        spool = Spool.at(given) if given else Spool.of_session(run.settings.cache_dir)
        self._spool = config.stash[SPOOL] = spool
        self._facts: dict[str, dict[str, dict[str, Any]]] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of pytest-xdist where to leave things."""
        node.workerinput[_ADDRESS] = self._spool.address

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note where the baselines of all tests are, before any is deselected."""
        keys = {group_key(item): item.path for item in items if PARAMETER in getattr(item, "fixturenames", ())}
        files: dict[str, list[str]] = {str(item.path): [] for item in items}
        for key, path in keys.items():
            files[str(path)].append(str(store.place_of(path, key)))
        self._spool.note(Collected(files))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what reports say, where they come together; a rerun replaces what was there."""
        payload: Mapping[str, Any] | None = getattr(report, ATTRIBUTE, None)
        if payload is None or "group" not in payload:
            return
        members = self._facts.setdefault(payload["group"]["key"], {})
        if report.when == "setup":
            members.pop(report.nodeid, None)
        if payload.get(KEY) is not None:
            members[report.nodeid] = payload[KEY]

    def pytest_unconfigure(self) -> None:
        """Remove what was left."""
        if self._config.stash[RUN].controls:
            self._spool.close()

    def judge(self, groups: Sequence[GroupResult]) -> Mapping[str, Sequence[Verdict]]:
        """Update or check the baselines of all groups."""
        known = [group for group in groups if self._facts.get(group.key)]
        mode = self._config.stash[RUN].settings.baseline
        verdicts = self._updated(known) if mode == "update" else self._checked(known)
        self._say([f"orphaned, there is no such test: {path}" for path in self._orphans()])
        return verdicts

    def _checked(self, groups: Sequence[GroupResult]) -> dict[str, list[Verdict]]:
        settings = self._config.stash[RUN].settings
        found = compare_all([self._now(group) for group in groups], alpha=settings.baseline_alpha)
        for group, compare in zip(groups, found, strict=True):
            group.baseline = compare.result
            if compare.result.standing == "missing" and not compare.now.problem:
                self._say([f"missing: {group.name}"])
            self._say([f"stale: {group.name}: {line}" for line in compare.stale])
        return {group.key: [verdict_of(compare)] for group, compare in zip(groups, found, strict=True)}

    def _now(self, group: GroupResult) -> GroupNow:
        members = list(self._facts[group.key].values())
        path, problem = Path(members[0]["path"]), ""
        try:
            baseline = of_seeds.baseline_at(path)
        except BaselineError as error:
            baseline, problem = None, str(error)
        return GroupNow(
            group,
            path,
            baseline,
            flat(group.environment),
            host_now(),
            {each["seed"]: each for each in members},
            msgspec.convert(members[0]["wishes"], Wishes),
            members[0]["better"],
            problem,
            self._narrowed(),
            frozenset(each["seed"] for each in members if each["lost"]),
        )

    def _updated(self, groups: Sequence[GroupResult]) -> dict[str, list[Verdict]]:
        verdicts: dict[str, list[Verdict]] = {}
        unchanged = 0
        for group in groups:
            try:
                found = self._update(group)
            except BaselineError as error:
                verdicts[group.key] = [Verdict(GATE, group.name, Outcome.ERROR, str(error), n=len(group.rollouts))]
                continue
            path = Path(next(iter(self._facts[group.key].values()))["path"])
            changed = [(found.changed, "written"), (found.dropped, "dropped"), (found.same, "unchanged")]
            recorded = found.baseline.recorded
            group.baseline = BaselineResult(
                standing="updated" if found.changed or found.dropped else "identical",
                recorded="" if recorded is None else recorded.isoformat(),
                path=str(path),
                identical=len(found.same),
                different=len(found.changed),
            )
            if found.changed or found.dropped:
                told = ", ".join(f"{len(seeds)} seeds {what}" for seeds, what in changed if seeds)
                self._say([f"updated: {group.name}: {told}: {self._near(path)}"])
            else:
                unchanged += 1
        if unchanged:
            self._say([f"unchanged: {unchanged} {'group' if unchanged == 1 else 'groups'}"])
        return verdicts

    def _update(self, group: GroupResult) -> Updated:
        now = self._now(group)
        if now.problem:
            raise BaselineError(now.problem)
        name, recorded = name_of(now.environment), datetime.now(UTC).replace(microsecond=0)
        new = {}
        for seed, rollout in now.rollouts.items():
            facts = now.seeds.get(seed)
            if facts is None:
                continue
            if facts.get("problem"):
                raise BaselineError(facts["problem"])
            entry = Entry(
                outcome=rollout.outcome,
                fingerprint=rollout.fingerprint,
                metrics=metrics_of(rollout),
                environment=name,
                recorded=recorded,
                host=now.host,
                parameters=parameters_of(rollout),
            )
            spooled = facts["spooled"]
            files = None if spooled is None else tuple((self._spool.path(left), kept) for left, kept in spooled)
            new[seed] = New(entry, files)
        whole = complete(group) and not now.lost and not self._narrowed()
        test = next(iter(self._facts[group.key].values()))["test"]
        return update(now.path, test, now.environment, new, seeds=frozenset(new) if whole else None)

    def _narrowed(self) -> bool:
        return self._config.stash[RUN].settings.seeds is not None

    def _orphans(self) -> list[str]:
        arguments = [str(argument) for argument in self._config.args]
        if any("::" in argument for argument in arguments) or getattr(self._config.option, "lf", False):
            return []
        paths = [self._config.invocation_params.dir / argument for argument in arguments]
        found = orphans(self._spool.collected().files, [path for path in paths if path.is_dir()])
        return [self._near(path) for path in found]

    def _near(self, path: Path) -> str:
        root = self._config.rootpath
        return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)

    def _say(self, lines: Sequence[str]) -> None:
        collecting = collecting_of(self._config)
        if collecting is not None:
            collecting.baselines += lines
