"""Settings of this repository's own tests."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest_plugins = ["pytester"]

# A shell lets jobs in the background ignore Ctrl-C, and children inherit that: tests that press it need it back.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of runs that tests start compile this project once, whatever the shell says that started these.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="session")
def load_script() -> Callable[[str], ModuleType]:
    """Return what imports a script of scripts/ by its name."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "scripts" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # where its dataclasses look for their own module
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def busy() -> Iterator[None]:
    """A busy loop on each core."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Give runs that tests make the order of their files, where pytest-randomly is installed: -p randomly shuffles.

    Hypothesis takes each of them half a second to import, and none has a property to test. As on a build server, no
    line of a summary is cut to the width of the terminal.
    """
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:randomly -p no:hypothesispytest")
    monkeypatch.setenv("CI", "true")
    return pytester


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let workers start with what takes long, and fill the time at the end with what is short.

    What starts machines is tried a second time where it fails, for the host may have had no time for it: with two
    workers and their guests it is overbooked. The summary shows why each had failed, for each is a finding.
    """
    folders = [Path(__file__).parent / "tests" / name for name in ("acceptance", "browser", "vm")]
    for item in items:
        if any(folder in item.path.parents for folder in folders):
            item.add_marker(pytest.mark.flaky(reruns=1))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: "unit" in item.path.parts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why each test that was tried again had failed."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"the first try of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give one worker all tests of a file, or those on one engine: what they share is made once, not once per worker.

    The mark ``xdist_group`` cannot do that: under some versions of pytest, xdist 3.8 does not see it.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFileAndEngine(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            engine = re.search(r"[\[-](qemu|gvisor)[\]-]", test)
            return f"{file} {engine[1]}" if engine else file

    config.option.loadscopereorder = False  # the order of collection is the one that is wanted
    return ByFileAndEngine(config, log)
