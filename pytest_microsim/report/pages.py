"""The HTML report of this run, written once its results are known."""

from __future__ import annotations

import pytest

from ..errors import ReportError
from ..state import RUN
from .collecting import near, results_of


class Pages:
    """Writes the report that ``--microsim-report`` asks for, in the process that controls the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._said: tuple[str, bool] | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report; a run whose report is missing has failed, since somebody counts on it."""
        path, run = self._config.stash[RUN].settings.report, results_of(self._config)
        if path is None or run is None:
            return
        from .html.writing import write

        try:
            write(path, run)
            self._said = f"report: {near(path)}", False
        except ReportError as error:
            self._said = f"microsim: {error}", True
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say where the report is, or why there is none."""
        if self._said is not None:
            text, bad = self._said
            terminalreporter.ensure_newline()
            terminalreporter.write_line(text, red=bad, bold=bad)
