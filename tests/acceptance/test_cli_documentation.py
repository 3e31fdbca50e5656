"""The examples of the command's page, run as they are written, one after the other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
# What needs a terminal, and what fails where something about the machine is not as it should be.
LEFT_OUT = ("microsim shell", "microsim doctor")

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def environment(tmp_path: Path, cache_with_cartpole: Callable[[Path], None]) -> Iterator[dict[str, str]]:
    """Where the examples run: a cache of its own, and the command as it is here."""
    cache, programs = tmp_path / "cache", tmp_path / "bin"
    cache_with_cartpole(cache)
    programs.mkdir()
    for name, module in (("microsim", "microsim_vm"), ("pytest", "pytest")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (programs / name).chmod(0o755)
    variables = {**os.environ, "MICROSIM_CACHE_DIR": str(cache), "PATH": f"{programs}:{os.environ['PATH']}"}
    yield variables
    subprocess.run(
        ["bash", "-c", "microsim ls -q | xargs -r microsim rm"], env=variables, capture_output=True, timeout=60,
        check=True,
    )  # fmt: skip


@pytest.mark.skipif(shutil.which("jq") is None, reason="the last example needs jq")
def test_every_example_runs_as_written(environment: dict[str, str], tmp_path: Path) -> None:
    blocks = re.findall(r"^```\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line for line in "".join(blocks).splitlines() if not line.startswith(LEFT_OUT)]
    assert len(lines) > 20
    script = "set -euxo pipefail\n" + "\n".join(lines)
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "8 passed" in done.stdout
    assert (tmp_path / "robot/copies/push.py").is_file()
