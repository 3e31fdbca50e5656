"""Scenario files for tests: written to a folder with a controller in it."""

from __future__ import annotations

from pathlib import Path

from pytest_microsim.errors import ScenarioError
from pytest_microsim.scenarios.reading import examine, read
from pytest_microsim.scenarios.spec import Scenario

HEAD = "controller: drive.py\n"


def write(folder: Path, text: str, name: str = "dock.scenario.yaml") -> Path:
    """Write a scenario file, with the controller that it may name beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "drive.py").write_text("def act(observation):\n    return 0\n")
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def scenario(folder: Path, text: str) -> Scenario:
    """Read a scenario that has a controller."""
    return read(write(folder, HEAD + text))


def mistakes(folder: Path, text: str) -> list[ScenarioError]:
    """Return what is wrong with a scenario."""
    found, errors = examine(write(folder, text))
    assert found is None
    assert errors
    return errors


def refused(folder: Path, text: str, line: int, *words: str) -> None:
    """Check that a scenario has one mistake, on this line and in these words."""
    (error,) = mistakes(folder, text)
    assert error.what.startswith(f"{folder / 'dock.scenario.yaml'}:{line}: "), error
    for word in words:
        assert word in str(error), error
