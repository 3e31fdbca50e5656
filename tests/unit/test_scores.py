"""What counts as a score, and what a template's scorer may do wrong."""

from __future__ import annotations

import array
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from microsim_vm import scores
from microsim_vm.episode import Column, from_answer
from microsim_vm.errors import ControllerError, ControllerLimitError, InvalidEpisodeError, ScoreError


def column(name: str, *values: float) -> Column:
    return Column(name, "<f8", (len(values),), array.array("d", values).tobytes())


def test_finite_numbers_by_name_are_metrics() -> None:
    assert scores.checked({"a": 1, "b": True, "c": -0.5}, "the world") == {"a": 1.0, "b": 1.0, "c": -0.5}


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"a": math.nan}, "'a' as nan"), ({"a": -math.inf}, "'a' as -inf"), ({"a": 10**400}, "'a' as inf"),
        ({"a": "1.0"}, "'a' as '1.0'"), ({"a": None}, "'a' as None"), ({"a": [1.0]}, "'a' as [1.0]"),
        ({"": 1}, "the name ''"), ({"a" * 101: 1}, "103 characters"), ({"a\n": 1}, "the name 'a\\n'"),
        ({5: 1}, "the name 5"), ({str(n): 0 for n in range(257)}, "257 metrics"), (None, "None in place of"),
        ([], "[]"),
    ],
)  # fmt: skip
def test_anything_else_is_an_invalid_episode(metrics: Any, message: str) -> None:
    with pytest.raises(InvalidEpisodeError) as caught:
        scores.checked(metrics, "the world")
    assert message in str(caught.value)
    assert caught.value.hint


def test_rewards_that_add_up_to_nothing_are_invalid() -> None:
    assert scores.total(None) == 0.0
    assert scores.total(column("reward", 0.1, 0.2, 0.3)) == 0.1 + 0.2 + 0.3
    for rewards in ((1.0, math.nan), (math.inf, -math.inf), (1e308, 1e308)):
        with pytest.raises(InvalidEpisodeError):
            scores.total(column("reward", *rewards))


def answer(**changes: Any) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    """Return what a world host answers after an episode of two steps."""
    columns = [column("observation", 0.0, 1.0, 2.0), column("action", 1.0, 1.0), column("reward", 1.0, 0.5)]
    result = {
        "columns": [{"name": c.name, "dtype": c.dtype, "shape": list(c.shape)} for c in columns],
        "controller": {"exit_code": 0, "ended": True, "events": {}, "left": 0, "refused": {}, "output": [3, 0]},
        "terminated": True, "truncated": False, "limit": "", "late_steps": 0, "simulated_s": None, "wall_ms": 1.0,
        "metrics": {"miss": 0.5}, "error": None,
    }  # fmt: skip
    return {**result, **changes}, (b"out", b"", *(c.data for c in columns))


def test_the_score_follows_from_the_trajectory(tmp_path: Path) -> None:
    scorer = tmp_path / "score.py"
    scorer.write_text("def metrics(trajectory):\n    return {'sum': sum(trajectory['observation']), 'miss': 0.25}\n")
    result, blobs = answer(steps=1000, total_reward=1e9)
    record = from_answer(result, blobs, seed=3, score=scorer)
    assert (record.steps, record.total_reward, record.metrics) == (2, 1.5, {"miss": 0.25, "sum": 3.0})
    assert list(tmp_path.iterdir()) == [scorer], "it wrote bytecode into the template"


SCORER = """
from __future__ import annotations
from dataclasses import dataclass
import pathlib, time
time.sleep(0.05)
with pathlib.Path(__file__).with_name("runs").open("a") as file:
    file.write("x")

@dataclass
class Score:
    first: float

def metrics(trajectory):
    return vars(Score(1.0))
"""


def test_a_scorer_is_run_once_whatever_threads_ask_for_it_and_again_once_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = tmp_path / "score.py"
    scorer.write_text(SCORER)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: scores.scored(scorer, {}), range(8))) == [{"first": 1.0}] * 8
    assert not sys.dont_write_bytecode
    assert {path.name for path in tmp_path.iterdir()} == {"score.py", "runs"}
    assert (tmp_path / "runs").read_text() == "x"
    scorer.write_text(SCORER.replace("first", "other"))
    assert scores.scored(scorer, {}) == {"other": 1.0}
    another = tmp_path / "a" / tmp_path.name / "score.py"  # whose folder has the same name
    another.parent.mkdir(parents=True)
    another.write_text(SCORER.replace("1.0", "2.0"))
    assert scores.scored(another, {}) == {"first": 2.0}
    assert scores.scored(scorer, {}) == {"other": 1.0}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def metrics(trajectory:", "SyntaxError"), ("import no_such_module", "No module named"),
        ("metrics = 1", "no function metrics"),
        ("def metrics(trajectory):\n    return 1 / 0", "metrics(trajectory) raised ZeroDivisionError"),
    ],
)  # fmt: skip
def test_a_scorer_that_cannot_be_run_is_its_authors_mistake(tmp_path: Path, source: str, message: str) -> None:
    scorer = tmp_path / "score.py"
    scorer.write_text(source)
    with pytest.raises(ScoreError) as caught:
        scores.scored(scorer, {})
    assert message in str(caught.value)


def test_a_scorer_without_a_number_makes_the_episode_invalid(tmp_path: Path) -> None:
    scorer = tmp_path / "score.py"
    scorer.write_text("def metrics(trajectory):\n    return {'mean': float('nan')}\n")
    result, blobs = answer()
    error = from_answer(result, blobs, seed=3, score=scorer).error
    assert isinstance(error, InvalidEpisodeError)
    assert "score.py gave the metric 'mean' as nan" in error.what


def test_a_controller_that_failed_is_told_before_a_score_that_is_none() -> None:
    failed = {"kind": "controller", "message": "the controller raised OSError", "traceback": ""}
    full = {
        "exit_code": 0,
        "ended": True,
        "events": {"workspace.bytes": 1},
        "left": 2,
        "refused": {"mount": 3},
        "output": [90, 0],
    }
    result, blobs = answer(error=failed, metrics={"miss": math.inf}, controller=full)
    record = from_answer(result, blobs, seed=3, score=None)
    assert type(record.error) is ControllerLimitError
    assert "controller.workspace_mib" in record.error.cause
    assert record.attempts == (
        "the system call mount was refused, 3 times", "its workspace was full (controller.workspace_mib)",
        "it left processes behind, which were killed: 2",
        "it wrote 90 bytes to stdout, more than are kept (controller.output_bytes)",
    )  # fmt: skip
    plain = from_answer(*answer(error=failed), seed=3, score=None)
    assert type(plain.error) is ControllerError


@pytest.mark.parametrize(
    "change",
    [
        {"columns": [{"name": "reward", "dtype": "<f8", "shape": [4]}]},
        {"columns": [{"name": "reward", "dtype": "O", "shape": [2]}]},
        {"controller": {"exit_code": "0"}}, {"wall_ms": "long"}, {"simulated_s": [1.0]},
    ],
)  # fmt: skip
def test_an_answer_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    result, blobs = answer(**change)
    blobs = blobs[:2] + blobs[2:3] * len(result["columns"]) if "columns" in change else blobs
    with pytest.raises((ValueError, TypeError)):
        from_answer(result, blobs, seed=3, score=None)
