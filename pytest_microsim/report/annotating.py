"""Failed seeds as remarks of the build server that this runs on: see :mod:`.annotations`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..state import RUN
from .annotations import OFF, remarks, runner_of
from .collecting import results_of


class Annotating:
    """Prints the log commands, in the process that controls the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print them last: a runner reads them wherever they are, and people need not."""
        runner = runner_of(self._config.stash[RUN].settings.annotations, os.environ)
        result = results_of(self._config)
        if runner == OFF or result is None:
            return
        root = self._config.rootpath
        checkout = Path(os.environ.get("GITHUB_WORKSPACE") or root)
        terminalreporter.ensure_newline()
        for line in remarks(result, runner, rootdir=root, checkout=checkout):
            terminalreporter.write_line(line)
