"""The report of a real run: what the page is given, with and without workers."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SUITE = """
import pytest

@pytest.mark.seeds(range(4))
def test_balances(rollout):
    episode = rollout.run("controllers/balance.py", max_steps=40)
    rollout.record("half", rollout.seed / 2)
    assert rollout.seed != 2, "</script> this one fails"

def test_topples(rollout):
    rollout.run("controllers/topple.py", max_steps=40)
"""


def packet(html: str, name: str) -> Any:
    found = re.search(rf'id="{name}">([^<]*)</script>', html)
    assert found is not None
    data = gzip.decompress(base64.b64decode(found[1]))
    return json.loads(data) if not name.startswith("data-curves") else data


def test_a_run_leaves_a_report(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult], controllers: Path, workers: int
) -> None:
    pytester.makepyfile(SUITE)
    result = run("--microsim-world", "cartpole", "--microsim-report", "out/report.html")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["report: out/report.html"])
    html = (pytester.path / "out" / "report.html").read_text(encoding="utf-8")
    found = packet(html, "data-overview")
    assert found["exit"] == 1
    assert len(found["workers"]) == (workers or 1)
    (world,) = found["worlds"]
    assert world["isolation"] in ("hardware", "sandbox", "emulated")
    balances, topples = found["groups"]
    assert balances["rollouts"]["seed"] == ["0", "1", "2", "3"]
    assert [found["outcomes"][index] for index in balances["rollouts"]["outcome"]] == [
        "passed", "passed", "failed", "passed",
    ]  # fmt: skip
    assert balances["rollouts"]["metrics"]["half"] == [0, 0.5, 1, 1.5]
    assert balances["rate"]["passed"] == 3
    assert topples["expected"] == 1
    spans = [span for lane in packet(html, "data-timeline") if lane["kind"] == "worker" for span in lane["spans"]]
    assert {"fork", "episode", "test"} <= {span[2] for span in spans}
    failed = packet(html, "data-details-0")[2]
    assert "</script> this one fails" in failed["failure"]
    assert "--microsim-replay" in failed["replay"]
    assert b"observation" in packet(html, "data-curves-0")
    assert "this one fails" not in html


@pytest.mark.parametrize("workers", [0], indirect=True, ids=["n0"])
def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult], workers: int
) -> None:
    pytester.makepyfile(SUITE)
    result = run("--microsim-world", "cartpole", "--microsim-report", str(pytester.path))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--microsim-report: * is a folder; name a file in it"])


@pytest.mark.parametrize("workers", [0], indirect=True, ids=["n0"])
def test_a_report_that_is_lost_in_the_end_fails_the_run(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult], workers: int
) -> None:
    pytester.makepyfile("def test_that_is_in_the_way(): __import__('os').mkdir('report.html')")
    result = run("--microsim-report", "report.html")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["microsim: the report *report.html cannot be written: Is a directory"])
