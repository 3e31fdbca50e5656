"""Whether baselines tell a change from none: the dock controller as it is, and with a turn that is 5 % slower."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common

TURNS = {
    "math.copysign(1.8, bearing)": "math.copysign({share} * 1.8, bearing)",
    "2.0 * bearing": "{share} * 2.0 * bearing",
    "max(-2.0, min(2.0, 2.5 * heading))": "{share} * max(-2.0, min(2.0, 2.5 * heading))",
    "return -0.3, 0.6 if bearing < 0 else -0.6": "return -0.3, {share} * (0.6 if bearing < 0 else -0.6)",
}
"""Every turn rate that the controller commands, and how a share of it is written."""

MANY = """
import pytest

@pytest.mark.parametrize("repetition", range({repetitions}))
@pytest.mark.seeds(range({seeds}))
def test_unchanged(rollout, repetition):
    rollout.run("controllers/balance.py", max_steps=100)
"""


def main() -> None:
    """Print the tables."""
    options = common.arguments(
        __doc__ or "", seeds=64, slower=0.05, repetitions=200, repeated_seeds=4, workers=os.cpu_count() or 1
    )
    with tempfile.TemporaryDirectory() as folder:
        planted(Path(folder) / "dock", options)
        unchanged(Path(folder) / "unchanged", options)


def planted(folder: Path, options: argparse.Namespace) -> None:
    """Record the dock controller, compare it with itself, and with one that turns more slowly."""
    shutil.copytree(common.REPOSITORY / "example_tests", folder, ignore=shutil.ignore_patterns("baselines", "hostile"))
    (folder / "pytest.ini").write_text("[pytest]\n")
    arguments = ["test_dock.py::test_robot_docks", "--microsim-seeds", f"0:{options.seeds}"]
    rows = []
    for what in ("update", "check", "check"):
        if rows[1:]:
            slow_down(folder / "controllers/dock.py", 1.0 - options.slower)
        seconds, result = run(folder, options, options.world, what, *arguments)
        (group,) = result["groups"]
        verdict = next(
            (each for each in group["verdicts"] if each["gate"] == "baseline"), {"outcome": "", "message": ""}
        )
        name = what if what == "update" else f"check, {f'{options.slower:.0%} slower' if rows[1:] else 'unchanged'}"
        rows.append([name, f"{seconds:.0f}", group["baseline"]["standing"], verdict["outcome"]])
        common.progress(verdict["message"])
        for trend in group["baseline"]["trends"]:
            common.progress(f"{trend['metric']}: {json.dumps({name: trend[name] for name in SHOWN})}")
    size = sum(file.stat().st_size for file in folder.glob("baselines/**/*.mcap")) / options.seeds
    text = sum(file.stat().st_size for file in folder.glob("baselines/**/*.toml")) / options.seeds
    common.table([f"{options.seeds} seeds", "seconds", "standing", "verdict"], rows)
    print(f"kept per seed: {text / 1e3:.1f} kB of text, {size / 1e3:.0f} kB of trajectory")


SHOWN = ("baseline", "now", "difference", "low", "high", "effect", "p", "p_corrected", "test", "trend")


def unchanged(folder: Path, options: argparse.Namespace) -> None:
    """Record and compare the same controller in many groups, each with a baseline of its own."""
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    shutil.copytree(common.CONTROLLERS, folder / "controllers")
    (folder / "test_it.py").write_text(MANY.format(repetitions=options.repetitions, seeds=options.repeated_seeds))
    run(folder, options, "cartpole", "update")
    _, result = run(folder, options, "cartpole", "check")
    standings = [group["baseline"]["standing"] for group in result["groups"]]
    different = sum(standing != "identical" for standing in standings)
    print(f"unchanged: {len(standings)} repetitions of {options.repeated_seeds} seeds, {different} called different")


def slow_down(controller: Path, share: float) -> None:
    """Let a controller command a share of each turn rate."""
    text = controller.read_text()
    for rate, slower in TURNS.items():
        assert rate in text, f"the controller has no {rate!r} any more"
        text = text.replace(rate, slower.format(share=f"{share:g}"))
    controller.write_text(text)


def run(folder: Path, options: argparse.Namespace, world: str, mode: str, *arguments: str) -> tuple[float, Any]:
    """Run pytest, and return how long it took, in seconds, and its results."""
    results = folder / "results.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--microsim-world={world}"]
    command += [f"--microsim-engine={options.engine}", f"--microsim-baseline={mode}", f"--microsim-results={results}"]
    command += ["-n", str(options.workers)] if options.workers > 1 else []
    started = time.monotonic()
    subprocess.run([*command, *arguments], cwd=folder, stdout=sys.stderr, check=False)
    return time.monotonic() - started, json.loads(results.read_text())


if __name__ == "__main__":
    main()
