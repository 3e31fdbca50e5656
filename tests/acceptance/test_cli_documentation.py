"""The examples of the command's page, run as they are written, one after the other."""

from __future__ import annotations

import json
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

# Two guests with a volume boot, which takes minutes where others want the processors too.
DONE_S = 600

# One worker runs all of them, once: the examples are run for all of these tests.
pytestmark = [pytest.mark.timeout(DONE_S + 100), pytest.mark.xdist_group("documentation")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples run."""
    return tmp_path_factory.mktemp("documentation")


@pytest.fixture(scope="module")
def environment(folder: Path, cache_with_new_project: Callable[[Path], None]) -> Iterator[dict[str, str]]:
    """What they run in: a cache of its own, and the command as it is here."""
    cache, programs = folder / "cache", folder / "bin"
    cache_with_new_project(cache)
    programs.mkdir()
    for name, module in (("microsim", "microsim_vm"), ("pytest", "pytest")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (programs / name).chmod(0o755)
    variables = {**os.environ, "MICROSIM_CACHE_DIR": str(cache), "PATH": f"{programs}:{os.environ['PATH']}"}
    yield variables
    subprocess.run(
        ["bash", "-c", "microsim ls -q | xargs -r microsim rm"], env=variables, capture_output=True, timeout=200,
        check=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """What all examples that this machine has the programs for come to."""
    blocks = re.findall(r"^```\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    left_out = LEFT_OUT if shutil.which("jq") else (*LEFT_OUT, "microsim ls --json | jq")
    lines = [line for line in "".join(blocks).splitlines() if not line.startswith(left_out)]
    assert len(lines) > 20
    script = "set -euxo pipefail\n" + "\n".join(lines)
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=DONE_S, check=False,
    )  # fmt: skip


def test_every_example_runs_as_written(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert done.returncode == 0, done.stderr
    assert "8 passed" in done.stdout
    assert (folder / "robot/copies/push.py").is_file()
    if shutil.which("jq") is None:
        pytest.skip("the last example needs jq")


def test_the_volume_of_the_examples_outlives_its_sandboxes(
    done: subprocess.CompletedProcess[str], environment: dict[str, str]
) -> None:
    """The one that has written to it is removed, the one that reads it is there at the end."""
    assert done.returncode == 0, done.stderr

    def microsim(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        found = subprocess.run(
            ["microsim", *words], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert found.returncode == status, (found.stdout, found.stderr)
        return found

    assert "results" in done.stdout.splitlines()  # `volume create` prints the name
    [reader] = [each for each in json.loads(microsim("ls", "--json").stdout) if each["volumes"]]
    assert reader["volumes"] == [{"volume": "results", "path": "/data", "read_only": True}]
    assert re.search(r"\d\d:\d\d:\d\d", microsim("exec", reader["id"], "--", "cat", "/data/when").stdout)
    assert "there is a volume" in microsim("volume", "create", "results", status=1).stderr
    assert "mounted by" in microsim("volume", "rm", "results", status=1).stderr
    microsim("rm", reader["id"])
    assert [volume["name"] for volume in json.loads(microsim("volume", "ls", "--json").stdout)] == ["results"]
    microsim("volume", "rm", "results")
    assert json.loads(microsim("volume", "ls", "--json").stdout) == []
