"""The program that fans out without pytest, as its reader runs it: real warehouse, a fork for each seed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from microsim_vm import Sandbox, SavedSnapshot

PROGRAM = Path(__file__).parents[2] / "example_tests" / "fanout.py"

pytestmark = pytest.mark.timeout(600)


def of_base() -> set[str]:
    """Return all sandboxes and snapshots of the program's template; other tests make others at the same time."""
    sandboxes = {each.id for each in Sandbox.list() if each.template == "base"}
    return sandboxes | {each.id for each in SavedSnapshot.list() if each.origin.template == "base"}


def test_every_seed_has_an_episode_of_its_own_and_nothing_is_left() -> None:
    before = of_base()
    run = subprocess.run(
        [sys.executable, str(PROGRAM), "--n", "4", "--workers", "3", "--world", "warehouse"],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"^4 +4 +4 ", run.stdout, re.MULTILINE), run.stdout
    assert of_base() <= before


def test_a_world_that_is_not_there_is_said() -> None:
    run = subprocess.run(
        [sys.executable, str(PROGRAM), "--n", "1", "--world", "moon"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert "warehouse" in run.stderr
