"""Groups of seeds while they run: lines below pytest's own on a terminal, and one line for each that ends elsewhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Mapping
from typing import Any

import pytest

from ..results.gathering import named
from ..state import ERASE_BELOW
from .payload import ATTRIBUTE
from .progress import GroupProgress
from .table import in_file

MOST_LINES = 4

# Go down a line, scrolling if need be, and up again: now there is one below. The column is kept, which "\n" would not.
_MAKE_ROOM, _UP = "\x1bD", "\x1b[A"
_SAVE, _RESTORE = "\x1b7", "\x1b8"
_ERASE_LINE = "\x1b[K"


def show_live(config: pytest.Config) -> None:
    """Begin to show them, where pytest writes to a terminal or a log at all; before the first test."""
    terminal: pytest.TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        config.pluginmanager.register(Live(config, terminal))


class Live:
    """Shows how far groups have come.

    On a terminal, pytest's cursor stays where pytest has put it. The lines below are erased before pytest writes, and
    drawn again after it has.

    Args:
        config: pytest's configuration.
        terminal: pytest's reporter.
    """

    def __init__(self, config: pytest.Config, terminal: pytest.TerminalReporter) -> None:
        self._config = config
        self._terminal = terminal
        self._groups: dict[str, GroupProgress] = {}
        self._of: dict[str, GroupProgress] = {}
        self._finished: list[GroupProgress] = []
        self._shown = self._dots = self._unended = False
        # Capturing is suspended while plugins are configured. pytest's own writer counts columns, and must not be told.
        self._screen = os.dup(1) if can_redraw(config, terminal) else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self) -> Generator[None, Any, Any]:
        """Make way for pytest."""
        return (yield from self._around())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, Any, Any]:
        """Make way for pytest, and take up what the report says."""
        self._make_way()
        result = yield
        self._dots |= report.when == "call" or not report.passed
        self._hear(report)
        self._draw()
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logfinish(self) -> Generator[None, Any, Any]:
        """Make way for pytest."""
        return (yield from self._around())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, Any, Any]:
        """Be gone after the last test."""
        try:
            return (yield)
        finally:
            self._stop()

    def pytest_enter_pdb(self) -> None:
        """Leave the terminal to the debugger, for good."""
        self._stop()

    def pytest_unconfigure(self) -> None:
        """Give back the terminal."""
        self._stop()

    def _around(self) -> Generator[None, Any, Any]:
        self._make_way()
        result = yield
        self._tell()
        self._draw()
        return result

    def _make_way(self) -> None:
        self._erase()
        if self._unended and _has_workers(self._config):
            self._terminal.write("\n")  # without workers, pytest itself begins the next line
        self._unended = False

    def _tell(self) -> None:
        """Write the line of each group that has finished, where it cannot be drawn while it runs.

        It is not ended, so that there is room in it for how much of the run is done.
        """
        while self._finished:
            group = self._finished.pop(0)
            if self._screen is not None or self._terminal.verbosity < 0:
                continue
            self._terminal.ensure_newline()
            if self._unended or (self._dots and _has_workers(self._config) and self._terminal.verbosity == 0):
                self._terminal.write("\n")  # pytest knows of no line that dots of workers are in
            self._terminal.write(f"microsim: {group.summary(_columns() - 18)}", flush=True)
            self._unended, self._dots = True, False

    def _hear(self, report: pytest.TestReport) -> None:
        """Take up what one report says."""
        payload: Mapping[str, Any] | None = getattr(report, ATTRIBUTE, None)
        if payload is not None and payload.get("group") and payload["group"]["expected"] > 1:
            self._of[report.nodeid] = self._group(payload["group"])
        group = self._of.get(report.nodeid)
        if group is None:
            return
        if report.when == "setup":
            group.begin(report.nodeid)
        missed = (payload or {}).get("result", {}).get("missed")
        group.hear(report.nodeid, lost=not report.passed or bool(missed), payload=payload)
        if report.when == "teardown" and not group.finished:
            group.end(report.nodeid)
            if group.finished:
                self._finished.append(group)

    def _group(self, facts: Mapping[str, Any]) -> GroupProgress:
        key = facts["key"]
        if key not in self._groups:
            number = facts["expected"] * facts["runs"]
            name = in_file(named(facts), facts["location"][0])
            self._groups[key] = GroupProgress(name, number, over_seeds=facts["over_seeds"])
        return self._groups[key]

    def _lines(self) -> list[str]:
        running = sorted(
            (group for group in self._groups.values() if not group.finished), key=lambda each: -each.updated
        )
        # Groups that are run only in part never finish: those last heard of are the ones that run.
        most = min(MOST_LINES, getattr(self._config.option, "numprocesses", None) or 1)
        return [group.line(_columns() - 1) for group in running[:most]]

    def _draw(self) -> None:
        if self._screen is None:
            return
        lines = self._lines()
        if not lines:
            return
        below = "".join(f"\r\n{line}{_ERASE_LINE}" for line in lines)
        self._write(f"{_MAKE_ROOM * len(lines)}{_UP * len(lines)}{_SAVE}{below}{_RESTORE}")
        self._shown = True

    def _erase(self) -> None:
        if self._shown:
            self._write(ERASE_BELOW)
            self._shown = False

    def _stop(self) -> None:
        self._erase()
        if self._screen is not None:
            os.close(self._screen)
            self._screen = None
            self._groups.clear()

    def _write(self, text: str) -> None:
        assert self._screen is not None
        self._terminal.flush()
        os.write(self._screen, text.encode("ascii", "replace"))


def can_redraw(config: pytest.Config, terminal: pytest.TerminalReporter) -> bool:
    """Tell whether what is written can be taken back, and nobody but pytest writes meanwhile."""
    option = config.option
    if not (terminal.isatty and os.isatty(1)) or os.environ.get("TERM", "dumb") == "dumb":
        return False
    if os.environ.get("CI") or os.environ.get("BUILD_NUMBER"):  # as pytest itself tells a build server
        return False
    others = [
        type(terminal) is not pytest.TerminalReporter,  # another plugin's, which may move the cursor
        option.capture == "no" and not _has_workers(config),
        getattr(option, "usepdb", False),
        getattr(option, "microsim_shell", False),
        _logs_live(config),
        terminal.verbosity < -1,
    ]
    return not any(others)


def _has_workers(config: pytest.Config) -> bool:
    return bool(getattr(config.option, "numprocesses", None) or getattr(config.option, "tx", None))


def _logs_live(config: pytest.Config) -> bool:
    if not config.pluginmanager.has_plugin("logging"):
        return False
    return bool(config.getini("log_cli") or config.getoption("--log-cli-level", None))


def _columns() -> int:
    return shutil.get_terminal_size().columns
