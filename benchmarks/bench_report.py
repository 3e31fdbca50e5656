"""How long a report of many rollouts takes to write and to open, and how large it is.

The alternative is pytest-html's self-contained report of as many tests, with the same outcomes and the same output. It
is installed for the occasion, and has neither metrics nor trajectories in it.

An opened report counts once its first row is in the document and the browser is free to react, two frames later.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_microsim.report.html.writing import write
from pytest_microsim.results.model import RunResult

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SAMPLES = Path(__file__).resolve().parent.parent / "tests" / "unit"  # has report_samples.py
WATCH = """
window.opened = null;
new MutationObserver((_, observer) => {
  if (!document.querySelector('%s')) return;
  observer.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => (window.opened = performance.now()))));
}).observe(document, {childList: true, subtree: true});
"""
SUITE = """
import json, pathlib, pytest

ROLLOUTS = json.loads(pathlib.Path(__file__).with_name("rollouts.json").read_text())

@pytest.mark.parametrize("index", range(len(ROLLOUTS)))
def test_rollout(index):
    outcome, output = ROLLOUTS[index]
    print(output)
    assert outcome == "passed"
"""


def main() -> None:
    """Measure both, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=5000)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--times", type=int, default=7)
    args = parser.parse_args()
    sys.path.append(str(SAMPLES))
    from playwright.sync_api import sync_playwright
    from report_samples import run_of

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("Chromium is missing: run scripts/setup.sh, or apt-get install chromium")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        ours, theirs = Path(scratch, "microsim.html"), Path(scratch, "plain.html")
        run = run_of(args.rollouts, groups=args.groups, workers=4)
        started = time.monotonic()
        write(ours, run)
        written = time.monotonic() - started
        _write_pytest_html(theirs, run)
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        reports = {"pytest-microsim": (ours, "main tbody tr"), "pytest-html": (theirs, "tbody tr")}
        found = {name: _opened(browser, path, row, args.times) for name, (path, row) in reports.items()}
        browser.close()
        print(f"{args.rollouts} rollouts in {args.groups} groups; ours is written in {written:.1f} s\n")
        print("| report | MB | opens (ms), p50 | worst | ratio |\n| --- | --- | --- | --- | --- |")
        reference = statistics.median(found["pytest-microsim"])
        for name, times in found.items():
            middle, size = statistics.median(times), reports[name][0].stat().st_size / 1e6
            print(f"| {name} | {size:.1f} | {middle:.0f} | {max(times):.0f} | {middle / reference:.1f} |")


def _opened(browser: Browser, file: Path, row: str, times: int) -> list[float]:
    """Return how long opening takes from the navigation on, each time in a fresh profile, in milliseconds."""
    found = []
    for _ in range(times):
        context = browser.new_context()
        page = context.new_page()
        page.add_init_script(WATCH % row)
        page.goto(file.as_uri(), wait_until="commit")
        while (opened := page.evaluate("window.opened")) is None:
            page.wait_for_timeout(20)
        found.append(float(opened))
        context.close()
    return found


def _write_pytest_html(target: Path, run: RunResult) -> None:
    """Run as many tests, in the target's folder, with nothing but pytest-html."""
    folder = target.parent
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", folder / "lib", "pytest-html"]
    subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
    rollouts = [
        (rollout.outcome, "\n".join([rollout.replay, *(each.stdout for each in rollout.episodes), rollout.console]))
        for group in run.groups
        for rollout in group.rollouts
    ]
    (folder / "rollouts.json").write_text(json.dumps(rollouts))
    (folder / "test_rollouts.py").write_text(SUITE)
    plugins = ["-p", "no:cacheprovider", "-p", "pytest_metadata.plugin", "-p", "pytest_html.plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", folder, *plugins]
    environment = {**os.environ, "PYTHONPATH": str(folder / "lib"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, "--tb=short", "--html", target.name, "--self-contained-html"],
        cwd=folder, env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    if not target.exists():
        raise SystemExit(f"pytest-html made no report:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


if __name__ == "__main__":
    main()
