"""Baselines in whole runs of pytest, on real guests: recorded, compared, interrupted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)

Run = Callable[..., pytest.RunResult]
WORLD = "--microsim-world=cartpole"
SEEDS = 12
SUITE = f"""
import pytest

@pytest.mark.microsim(better={{"lean": "lower"}})
@pytest.mark.seeds(range({SEEDS}))
def test_balances(rollout):
    episode = rollout.run("controllers/balance.py", max_steps=40)
    rollout.record("lean", sum(abs(row[2]) for row in episode.trajectory["observation"]) / 41)
"""


def kept(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return all files of the baselines below a folder, with their contents and times."""
    files = [file for file in folder.glob("**/baselines/**/*") if file.is_file()]
    return {str(file.relative_to(folder)): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def changed(before: dict[str, tuple[bytes, int]], after: dict[str, tuple[bytes, int]]) -> list[str]:
    """Return the names of files that came, went, or were written anew."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def results(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())


def test_a_baseline_is_recorded_once_with_workers_and_without_and_tells_a_controller_that_got_worse(
    pytester: pytest.Pytester, run: Run, controllers: Path
) -> None:
    pytester.makepyfile(test_it=SUITE)
    first = run(WORLD, "--microsim-baseline=update")
    assert first.ret == 0
    assert f"{SEEDS} seeds written: baselines/test_it.py/test_balances.toml" in first.stdout.str()
    before = kept(pytester.path)
    assert len(before) == 1 + SEEDS

    assert run(WORLD, "--microsim-baseline=update", "-n", "4").ret == 0
    assert changed(before, kept(pytester.path)) == []

    arguments = (WORLD, "--microsim-baseline=check", "--microsim-results=results.json")
    same = run(*arguments, "-n", "4")
    assert same.ret == 0
    (group,) = results(pytester.path)["groups"]
    assert (group["baseline"]["standing"], group["baseline"]["identical"]) == ("identical", SEEDS)
    assert group["verdicts"][-1]["outcome"] == "passed"

    balance = controllers / "balance.py"
    balance.write_text(balance.read_text().replace("3.0 * angle", "1.0 * angle"))
    worse = run(*arguments)
    assert worse.ret == 1
    assert re.search(r"baseline: 12 seeds against .*: 12 different; worse: lean .* interval \+", worse.stdout.str())
    assert "seed 0 first differs at step 1, action: " in worse.stdout.str()
    baseline = results(pytester.path)["groups"][0]["baseline"]
    trend = next(trend for trend in baseline["trends"] if trend["metric"] == "lean")
    assert (trend["trend"], trend["better"]) == ("worse", "lower")
    assert trend["low"] > 0
    assert len(baseline["differences"]) == SEEDS
    assert changed(before, kept(pytester.path)) == []


def test_what_was_not_run_keeps_its_baseline(pytester: pytest.Pytester, run: Run, controllers: Path) -> None:
    pytester.makepyfile(
        test_it="""
        import os
        import pytest

        @pytest.mark.seeds(range(4))
        def test_balances(rollout):
            rollout.run("controllers/balance.py", max_steps=10)
            assert rollout.seed != int(os.environ.get("FAILS", -1))

        @pytest.mark.parametrize("load", ["light", "heavy"])
        def test_alone(rollout, load):
            for seed in range(2):
                rollout.run("controllers/balance.py", max_steps=5, seed=seed)
    """
    )
    update = (WORLD, "--microsim-baseline=update")
    assert run(*update).ret == 0
    before = kept(pytester.path)
    names = {name for name in before if name.endswith(".toml")}
    assert names == {
        f"baselines/test_it.py/{name}.toml" for name in ("test_balances", "test_alone+light", "test_alone+heavy")
    }
    assert len(before) == 3 + 4 + 2 * 2

    balance = controllers / "balance.py"
    balance.write_text(balance.read_text().replace("3.0 * angle", "2.9 * angle"))
    os.environ["FAILS"] = "1"
    try:
        cut = run(*update, "-x")
    finally:
        del os.environ["FAILS"]
    assert cut.ret == 1
    text = (pytester.path / "baselines/test_it.py/test_balances.toml").read_text()
    outcomes = re.findall(r'\[seeds\.(\d)\].*?outcome = "(\w+)"', text, re.DOTALL)
    assert outcomes == [("0", "passed"), ("1", "failed"), ("2", "passed"), ("3", "passed")]
    after = kept(pytester.path)
    assert len(after) == len(before)
    unchanged = [name for name in before if re.search(r"test_balances/[23]-|test_alone", name)]
    assert [after.get(name) for name in unchanged] == [before[name] for name in unchanged]

    process = subprocess.Popen([sys.executable, "-m", "pytest", *update], cwd=pytester.path, stdout=subprocess.PIPE)
    assert process.stdout is not None
    seen = b""
    while b"test_it.py ." not in seen:
        more = os.read(process.stdout.fileno(), 1 << 16)
        assert more, seen
        seen += more
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    process.stdout.close()
    assert changed(after, kept(pytester.path)) == []


def test_other_machines_and_tests_that_are_no_more_are_said(
    pytester: pytest.Pytester, run: Run, controllers: Path
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.seeds(range(3))
        def test_one(rollout):
            rollout.run("controllers/balance.py", max_steps=10)

        @pytest.mark.microsim(baseline={"must": "identical", "tolerance": {"*": 1e-3}})
        @pytest.mark.seeds(range(2))
        def test_two(rollout):
            rollout.run("controllers/balance.py", max_steps=10)
    """
    )
    assert run(WORLD, "--microsim-baseline=update").ret == 0
    folder = pytester.path / "baselines/test_it.py"
    one = folder / "test_one.toml"
    one.write_text(re.sub(r'"cpu.model" = ".*"', '"cpu.model" = "another"', one.read_text()))
    (folder / "test_gone.toml").write_bytes(one.read_bytes())
    balance = controllers / "balance.py"
    balance.write_text(balance.read_text().replace("3.0 * angle", "3.0001 * angle"))

    result = run(WORLD, "--microsim-baseline=check", "--microsim-results=results.json")
    text = result.stdout.str()
    assert result.ret == 1
    assert re.search(r"inconclusive: baseline: .*not comparable: cpu.model is 'another' in the baseline", text)
    assert re.search(
        r"baseline: all must be identical|2 seeds against .*: 2 within tolerance; all must be identical", text
    )
    assert "orphaned, there is no such test: baselines/test_it.py/test_gone.toml" in text
    found = {group["name"]: group["baseline"] for group in results(pytester.path)["groups"]}
    assert found["test_it.py::test_one"]["standing"] == "not comparable"
    assert found["test_it.py::test_one"]["trends"] == []
    assert found["test_it.py::test_two"]["standing"] == "within tolerance"
    assert "orphaned, there is no such test: baselines/test_it.py/test_gone.toml" in results(pytester.path)["baselines"]


def test_what_cannot_be_meant_is_said_before_anything_runs(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.microsim(baseline={"tolerances": 1})
        def test_one(rollout): ...

        @pytest.mark.microsim(better={"time_s": "less"})
        def test_two(rollout): ...
    """
    )
    text = run(WORLD).stdout.str()
    assert "test_it.py:3: @pytest.mark.microsim: baseline: unknown name 'tolerances'; did you mean 'tolerance'?" in text
    assert 'test_it.py:6: @pytest.mark.microsim: better is "higher" or "lower" by metric' in text
    (pytester.path / "pytest.ini").write_text("[pytest]\nmicrosim_baseline_alpha = 2\n")
    assert "microsim_baseline_alpha is '2'; it is between 0 and 1" in run(WORLD).stderr.str()
    (pytester.path / "pytest.ini").write_text("[pytest]\nmicrosim_baseline = check\n")
    pytester.makeconftest("import sys; sys.modules['numpy'] = None")
    result = run(WORLD)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "needs numpy, which is not installed: pip install 'pytest-microsim[baselines]'" in result.stderr.str()
