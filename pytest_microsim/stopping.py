"""Nothing new is started once a run stops, in workers too: pytest-xdist lets each go on with all it was given."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pytest

GIVEN = "microsim_stop"
"""The name under which a worker is told of a file that is there once the run stops."""


class Stopping:
    """Tells the workers of this process that the run stops; does nothing where it has none."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._path: Path | None = None  # with the first worker: looking for a place for it makes a file

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of the file."""
        self._path = self._path or Path(tempfile.gettempdir(), f"microsim-stop-{uuid.uuid4().hex}")
        node.workerinput[GIVEN] = str(self._path)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self) -> None:
        """Make the file once pytest has seen enough failures."""
        session: Any = self._config.pluginmanager.get_plugin("session")
        if self._path is not None and session is not None and stops(session):
            with contextlib.suppress(OSError):
                self._path.touch()

    def pytest_unconfigure(self) -> None:
        """Remove it."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)


def stops(session: pytest.Session) -> bool:
    """Tell whether the run is stopping, as far as this process, or the one that controls it, knows."""
    given = getattr(session.config, "workerinput", {}).get(GIVEN)
    return bool(session.shouldstop or session.shouldfail or (given and os.path.exists(given)))
