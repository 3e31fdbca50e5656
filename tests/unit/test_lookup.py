"""What a test's controller is called in results."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_microsim.lookup import Lookup


@pytest.mark.parametrize(
    ("given", "called"),
    [
        ("{folder}/suite/controllers/dock.py", "controllers/dock.py"),
        ("{folder}/shared.py", "shared.py"),
        ("controllers/dock.py", "controllers/dock.py"),
        (["{folder}/suite/drive.sh", "--fast"], "drive.sh --fast"),
    ],
)
def test_a_controller_is_called_as_seen_from_its_test(tmp_path: Path, given: str | list[str], called: str) -> None:
    suite = tmp_path / "suite"
    (suite / "controllers").mkdir(parents=True)
    for path in (suite / "controllers" / "dock.py", tmp_path / "shared.py", suite / "drive.sh"):
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    words = [given] if isinstance(given, str) else given
    filled = [word.format(folder=tmp_path) for word in words]
    lookup = Lookup([suite, tmp_path])
    assert lookup.driver(filled[0] if isinstance(given, str) else filled, None)[2] == called
