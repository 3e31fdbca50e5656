"""pytest hooks."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from .alone import check_terminal, note_replay, offer_shell, select, without_workers
from .baselines.leaving import left_by
from .baselines.session import KEY as BASELINE
from .baselines.session import Baselines, needs
from .collection import check_command_line, parametrize_seeds, report_problems
from .fixtures import _microsim_worlds, rollout, warm_world
from .interleavings.judging import Schedules
from .interleavings.marker import REGISTERED as INTERLEAVINGS
from .interleavings.skipping import note_failed
from .markers import REGISTERED
from .options import add_options
from .report import captures, trajectories, videos
from .report.annotating import Annotating
from .report.collecting import NAME as COLLECTING
from .report.collecting import Collecting, collecting_of
from .report.judges import add_judge
from .report.live import show_live
from .report.pages import Pages
from .report.payload import ATTRIBUTE, ENDED, attach_properties, payload_of
from .report.rollouts import ended_facts
from .report.sections import add_section
from .report.terminal import write_summary
from .report.verdicts import Verdicts
from .scenarios.collection import collected
from .scenarios.judging import PassRates
from .sharding import note_empty_shard, pass_empty_shard, select_shard
from .state import ITEM, REPEATS, RUN, SEARCH, Run
from .stopping import Stopping

__all__ = ["_microsim_worlds", "rollout", "warm_world"]

_VERDICTS = "microsim-verdicts"
_CALLED = pytest.StashKey[bool]()
"""Whether a test's call has ended."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the flags and ini settings."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and in the process that judges the collector of reports."""
    for line in (*REGISTERED, INTERLEAVINGS):
        config.addinivalue_line("markers", line)
    config.stash[RUN] = Run(config)
    without_workers(config)
    if config.stash[RUN].controls:
        collecting = Collecting(config)
        config.pluginmanager.register(collecting, COLLECTING)
        config.pluginmanager.register(Verdicts(config, collecting), _VERDICTS)
        config.pluginmanager.register(Stopping(config))
        config.pluginmanager.register(Pages(config))
        config.pluginmanager.register(Annotating(config))
        add_judge(config, Schedules())
        add_judge(config, PassRates())
    if config.stash[RUN].settings.baseline != "off":
        baselines = Baselines(config)
        config.pluginmanager.register(baselines)
        add_judge(config, baselines)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist where the runs of one seed find each other, and where failed schedules are."""
    run = node.config.stash[RUN]
    node.workerinput.update({REPEATS: run.repeats.address, SEARCH: run.search.address})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear what a worker of pytest-xdist has to say in the end."""
    note_empty_shard(node)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give back what configuring took."""
    if RUN in config.stash:
        config.stash[RUN].close()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which world, settings and engine the run has; nothing is probed for it."""
    return config.stash[RUN].header()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse what the command line cannot have before workers are started."""
    check_command_line(session.config)
    needs(session.config)
    check_terminal(session.config)
    if session.config.stash[RUN].controls:
        show_live(session.config)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect scenario files beside tests in Python."""
    return collected(file_path, parent)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Turn the seeds of a marker into parameters, the innermost ones: a group's seeds then run together."""
    parametrize_seeds(metafunc)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Report mistakes in markers and the choice of worlds as collection errors."""
    report = yield
    report_problems(report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Note which test is the next one: its fork is started while the present one runs."""
    item.config.stash[RUN].nextitem = nextitem


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the one test that is to be replayed, or the part of the suite that is to be run, if any is."""
    select(config, items)
    select_shard(config, items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Note when the call has ended: each subtest makes a report as if it had."""
    item.stash[_CALLED] = False
    try:
        return (yield)
    finally:
        item.stash[_CALLED] = True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a report carry the facts of its rollout, and a failed one say how to replay it."""
    attach_properties(item)
    report = yield
    state = item.stash.get(ITEM, None)
    if call.when == "call" and state is not None and item.stash.get(_CALLED, True):
        trajectories.written(item, state, report)
        videos.announced(item, state, report)
        note_failed(item, state, report)
    if call.when != "teardown":
        # The set-up's report makes the group known even if the call never ends; the call's replaces it.
        payload = payload_of(item, report, ended=call.when == "call" and item.stash.get(_CALLED, True))
        if payload is not None and "result" in payload and call.when == "call" and state is not None:
            payload[BASELINE] = left_by(item, state, call)
        if payload is not None:
            setattr(report, ATTRIBUTE, payload)
        add_section(item, report)
        if call.when == "call":
            note_replay(item)
            offer_shell(item, report)
    captures.ended(item, report)
    videos.ended(item, report)
    if call.when == "teardown" and state is not None:
        setattr(report, ENDED, ended_facts(state, report))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Let an empty part of a suite pass, before the results say how it ended."""
    pass_empty_shard(session)
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the summary of worlds and groups."""
    config = terminalreporter.config
    verdicts: Any = config.pluginmanager.get_plugin(_VERDICTS)
    collecting = collecting_of(config)
    if verdicts is not None and collecting is not None:
        write_summary(terminalreporter, verdicts, collecting, config.stash[RUN].replayed)
