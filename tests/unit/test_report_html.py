"""The report's file: what is in it, and what cannot break it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest
from report_samples import HOSTILE, run_of

from pytest_microsim.errors import ReportError
from pytest_microsim.report.html import curves, details, media
from pytest_microsim.report.html.overview import timeline
from pytest_microsim.report.html.packets import as_text, bounded, number
from pytest_microsim.report.html.page import SCRIPTS, page
from pytest_microsim.report.html.writing import write
from pytest_microsim.results.model import Curve, GroupResult, RunResult

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "pytest_microsim" / "report" / "html" / "assets"


def html_of(run: RunResult, base: Path = ROOT) -> str:
    return "".join(page(run, base=base))


def packet(html: str, name: str) -> bytes:
    found = re.search(rf'<script type="application/gzip" id="{name}">([^<]*)</script>', html)
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1]))


def group(*rollouts: list[Curve], outcome: Any = "passed") -> GroupResult:
    found = run_of(len(rollouts), groups=1).groups[0]
    for rollout, given in zip(found.rollouts, rollouts, strict=True):
        rollout.outcome = outcome
        rollout.episodes[0].curves = given
    return found


def unpacked(data: bytes) -> dict[str, tuple[list[int], list[float | None]]]:
    """Read curves as the page does, each of one rollout."""
    length = int.from_bytes(data[:4], "little")
    header, offset = json.loads(data[4 : 4 + length]), 4 + length + -length % 4
    found = {}
    for column in header["columns"]:
        total = sum(column["points"])
        differences, levels = array("I"), array("H")
        differences.frombytes(data[offset : offset + 4 * total])
        offset += 4 * total
        levels.frombytes(data[offset : offset + 2 * total])
        offset += 2 * total + 2 * total % 4
        steps = [sum(differences[: index + 1]) for index in range(total)]
        spread = column["high"] - column["low"]
        found[column["name"]] = steps, [None if level == curves.NOTHING else column["low"] + level / 65534 * spread
                                        for level in levels]  # fmt: skip
    assert offset == len(data)
    return found


def test_the_file_is_the_same_for_the_same_results() -> None:
    assert html_of(run_of(20)) == html_of(run_of(20))


def test_the_policy_allows_the_files_own_script_and_style_and_nothing_else() -> None:
    html = html_of(run_of(5))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; ")
    assert "unsafe" not in policy[1]
    for tag in ("script", "style"):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]
    assert re.findall(r"https?://[^\s)\"'`]+", html) in ([], ["https://github.com/leeoniya/uPlot", SVG])


SVG = "http://www.w3.org/2000/svg"


def test_no_text_of_a_run_is_in_the_file_as_it_is() -> None:
    html = html_of(run_of(10, text=HOSTILE))
    assert "pwned" not in html
    assert "\0" not in html
    assert HOSTILE in json.loads(packet(html, "data-overview"))["command"]
    assert json.loads(packet(html, "data-details-0"))[0]["replay"].endswith(HOSTILE)


def test_numbers_that_are_not_finite_become_null() -> None:
    run = run_of(5, groups=1)
    run.groups[0].rollouts[0].metrics = {"a": math.nan, "b": math.inf, "c": 1.5}
    run.groups[0].rollouts[0].parameters = {"list": [1, math.inf], "text": "x"}
    run.groups[0].n_eff = math.nan
    run.groups[0].verdicts[0].n_eff = math.inf
    run.duration_s = math.nan
    html = html_of(run)
    found = json.loads(packet(html, "data-overview"), parse_constant=pytest.fail)
    assert [found["groups"][0]["rollouts"]["metrics"][name][0] for name in "abc"] == [None, None, 1.5]
    assert json.loads(packet(html, "data-details-0"))[0]["parameters"] == {"list": "[1, Infinity]", "text": "x"}


def test_the_timeline_has_a_lane_for_each_world_and_worker_in_natural_order() -> None:
    lanes = timeline(run_of(60, groups=1, workers=12))
    assert [lane["name"] for lane in lanes] == ["warehouse", "cartpole", *(f"gw{number}" for number in range(12))]
    assert lanes[0]["spans"] == [[0.6, 5.1, "warm-up", -1, -1]]
    assert lanes[2]["spans"][1][2:] == ["fork", 0, 0]


def test_curves_survive_to_16_bits() -> None:
    steps, values = [0, 3, 4, 1000], [-1.0, None, 2.5, math.pi]
    data = curves.curves(group([Curve(name="x", steps=steps, values=values)]), curves.Thinning())
    assert data is not None
    found = unpacked(data)["x"]
    assert found[0] == steps
    assert found[1][1] is None
    assert [each for each in found[1] if each is not None] == pytest.approx([-1.0, 2.5, math.pi], abs=1e-4)


@pytest.mark.parametrize(
    "values", [[], [None], [5.0, 5.0], [1e308, -1e308], [math.nan, math.inf], [5e-324, 0.0]], ids=str
)
def test_curves_of_any_numbers_can_be_written(values: list[float | None]) -> None:
    data = curves.curves(group([Curve(name="x", steps=list(range(len(values))), values=values)]), curves.Thinning())
    assert data is not None
    assert len(unpacked(data)["x"][1]) == len(values)


def test_a_group_without_curves_has_none() -> None:
    assert curves.curves(group([]), curves.Thinning()) is None


def test_more_points_than_a_file_bears_are_thinned_those_of_failed_rollouts_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = run_of(100, groups=5)
    assert curves.Thinning.of(run) == curves.Thinning(1, 1)
    monkeypatch.setattr(curves, "POINTS", 8000)
    thinning = curves.Thinning.of(run)
    assert thinning.failed == 1
    assert thinning.passed > 1
    line = Curve(name="x", steps=list(range(10)), values=[float(step) for step in range(10)])
    data = curves.curves(group([line]), curves.Thinning(1, 4))
    assert data is not None
    assert unpacked(data)["x"][0] == [0, 4, 8, 9]


def test_long_texts_keep_their_beginning_and_most_of_their_end() -> None:
    text = "a" * 500 + "b" * 500
    short = bounded(text, 100)
    assert short == "a" * 25 + "\n[... 900 characters left out ...]\n" + "b" * 75
    assert bounded(text, 1000) == text


def test_output_of_many_failed_rollouts_stays_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(100, groups=1)
    for rollout in run.groups[0].rollouts:
        rollout.outcome, rollout.failure, rollout.episodes[0].stdout = "failed", "x" * 100_000, "y" * 100_000
    monkeypatch.setattr(details, "ALL_TEXT", 1_000_000)
    packed = json.dumps(details.details(run.groups[0], details.text_limit(run), ROOT))
    assert len(packed) < 1_500_000


def test_paths_of_files_are_relative_to_the_report_where_they_lie_beside_it(tmp_path: Path) -> None:
    run = run_of(1, groups=1)
    run.groups[0].rollouts[0].files = {
        "a": str(tmp_path / "v" / "1.mp4"),
        "b": "/elsewhere/2.mp4",
        "c": "v/3.mp4",
        "d": "\0",
    }
    found = details.details(run.groups[0], 100, tmp_path)[0]["files"]
    assert found == {"a": "v/1.mp4", "b": "/elsewhere/2.mp4", "c": "v/3.mp4", "d": "\0"}


def test_what_a_scenario_drew_is_there_as_numbers() -> None:
    run = run_of(3, groups=1)
    for rollout, payload in zip(run.groups[0].rollouts, [1, None, True], strict=True):
        rollout.parameters = {"payload": payload, "kind": "heavy"}
    html = html_of(run)
    assert json.loads(packet(html, "data-overview"))["groups"][0]["rollouts"]["parameters"] == {
        "payload": [1, None, None]
    }
    assert json.loads(packet(html, "data-details-0"))[0]["parameters"] == {"payload": "1", "kind": "heavy"}


def test_videos_are_embedded_as_far_as_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(5, groups=1)
    rollouts = run.groups[0].rollouts
    for index, (name, size) in enumerate([("a.mp4", 10), ("b.gif", 60), ("c.exe", 5), ("no.webm", 0), ("d.webm", 9)]):
        rollouts[index].files = {"video": name}
        rollouts[index].outcome = "failed" if name == "d.webm" else "passed"
        if size:
            (tmp_path / name).write_bytes(b"x" * size)
    monkeypatch.setattr(media, "ONE_BYTES", 50)
    assert [(each.rollout, each.kind) for each in media.media(run, tmp_path)] == [(4, "video/webm"), (0, "video/mp4")]
    monkeypatch.setattr(media, "ALL_BYTES", 12)
    assert [each.rollout for each in media.media(run, tmp_path)] == [4]


def test_an_old_report_stays_until_the_new_one_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "deep" / "report.html"
    write(target, run_of(5))
    first = target.read_text(encoding="utf-8")
    assert target.stat().st_mode & 0o444 == 0o444

    def full(*_: object, **__: object) -> Any:
        yield "half"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pytest_microsim.report.html.writing.page", full)
    with pytest.raises(ReportError, match="cannot be written: No space left on device"):
        write(target, run_of(5))
    assert target.read_text(encoding="utf-8") == first
    assert list(target.parent.iterdir()) == [target]


def test_a_folder_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match="choose a file in a folder that you may write to"):
        write(tmp_path / "file" / "report.html", run_of(5))


@pytest.mark.parametrize(
    ("value", "text"), [("x", "x"), (1.5, "1.5"), ([1, "a"], '[1, "a"]'), ({"k": None}, '{"k": null}')]
)
def test_values_are_written_as_a_reader_would(value: object, text: str) -> None:
    assert as_text(value) == text


def test_numbers_keep_seven_digits() -> None:
    assert number(math.pi) == 3.141593
    assert number(None) is None


def test_all_of_a_run_survives_the_results_file(tmp_path: Path) -> None:
    run = run_of(10)
    assert html_of(msgspec.json.decode(msgspec.json.encode(run), type=RunResult)) == html_of(run)


def test_every_script_is_used_and_what_others_wrote_is_as_they_wrote_it() -> None:
    assert sorted(path.stem for path in ASSETS.glob("*.js")) == sorted(SCRIPTS)
    done = subprocess.run([sys.executable, ROOT / "scripts" / "vendor_assets.py", "--check"], check=False)
    assert done.returncode == 0
