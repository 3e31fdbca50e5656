"""Recorded episodes as data sets, read back with the library that readers use."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from microsim_vm.cli.main import main
from microsim_vm.episode import Column, EpisodeRecord

from pytest_microsim.episode import Episode
from pytest_microsim.trajectories import lerobot, writing
from pytest_microsim.trajectories.mcap import read_episode, write_episode
from pytest_microsim.trajectories.naming import named, place
from pytest_microsim.trajectories.summing import Summed
from pytest_microsim.trajectories.video import shots_of


def column(name: str, values: Any) -> Column:
    array = np.asarray(values)
    return Column(name, array.dtype.str, array.shape, array.tobytes())


def leave(folder: Path, seed: int, steps: int, *, test: str = "tests/test_dock.py::test_dock", size: int = 3,
          step_s: float | None = 0.1, integers: bool = False, **told: str) -> Path:  # fmt: skip
    """Leave an episode as --microsim-trajectories does."""
    rng = np.random.default_rng(seed)
    columns = [
        column("observation", rng.normal(size=(steps + 1, size))),
        column("state", rng.normal(size=(steps + 1, 2, 2)).astype("<f4")),
        column("action", rng.integers(0, 4, size=steps) if integers else rng.normal(size=(steps, 2))),
        column("reward", rng.normal(size=steps)),
    ]
    path = place(folder, test, seed, suffix=".mcap")
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"test": test, "seed": str(seed), "outcome": "passed", "terminated": "true", "truncated": "false",
             "metrics": json.dumps({"distance": seed / 10}), "fingerprint": "ab", **told}  # fmt: skip
    write_episode(path, {each.name: each for each in columns if len(each) or steps}, step_s=step_s, metadata=facts)
    return path


def export(*words: Any) -> int:
    return main(["dataset", *map(str, words)])


def test_a_lerobot_data_set_has_every_frame(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = {2: 5, 10: 7, 11: 4}
    for seed, count in steps.items():
        leave(tmp_path / "in", seed, count, terminated=str(seed != 11).lower(), truncated=str(seed == 11).lower())
    leave(tmp_path / "in", 12, 0)
    assert export(tmp_path / "in", "--to", "lerobot", tmp_path / "out", "--robot", "cart") == 0
    said = capsys.readouterr()
    assert "3 episodes, 16 steps" in said.out
    assert "12.mcap: it has no steps" in said.err

    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["robot_type"]) == ("v3.0", 10, "cart")
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (3, 16, 1)
    assert info["splits"] == {"train": "0:3"}
    shapes = {name: (each["dtype"], each["shape"]) for name, each in info["features"].items()}
    assert shapes == {
        "observation.state": ("float32", [3]), "observation.environment_state": ("float32", [4]),
        "action": ("float32", [2]), "next.reward": ("float32", [1]), "next.done": ("bool", [1]),
        "next.truncated": ("bool", [1]), "timestamp": ("float32", [1]), "frame_index": ("int64", [1]),
        "episode_index": ("int64", [1]), "index": ("int64", [1]), "task_index": ("int64", [1]),
    }  # fmt: skip

    data = pq.read_table(tmp_path / "out" / info["data_path"].format(chunk_index=0, file_index=0))
    assert set(data.column_names) == set(shapes)
    rows = data.to_pydict()
    assert rows["index"] == list(range(16))
    assert rows["episode_index"] == [0] * 5 + [1] * 7 + [2] * 4, "seeds are sorted as numbers"
    assert rows["frame_index"] == [*range(5), *range(7), *range(4)]
    assert rows["timestamp"] == pytest.approx([step / 10 for step in rows["frame_index"]])
    assert [index for index, done in enumerate(rows["next.done"]) if done] == [4, 11, 15]
    assert [index for index, cut in enumerate(rows["next.truncated"]) if cut] == [15]
    rng = np.random.default_rng(10)
    observation, state = rng.normal(size=(8, 3)), rng.normal(size=(8, 2, 2))
    assert np.allclose(rows["observation.state"][5:12], observation[:7])
    assert np.allclose(rows["observation.environment_state"][5:12], state[:7].reshape(7, 4))
    assert np.allclose(rows["action"][5:12], rng.normal(size=(7, 2)))
    assert np.allclose(rows["next.reward"][5:12], rng.normal(size=7))

    episodes = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [(each["dataset_from_index"], each["dataset_to_index"], each["length"]) for each in episodes] == [
        (0, 5, 5), (5, 12, 7), (12, 16, 4),
    ]  # fmt: skip
    assert episodes[1]["tasks"] == ["tests/test_dock.py::test_dock"]
    assert episodes[1]["microsim/seed"] == "10"
    assert episodes[1]["stats/action/mean"] == pytest.approx(np.mean(rows["action"][5:12], axis=0).tolist(), abs=1e-6)
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())
    assert set(stats) == set(shapes)
    states = np.array(rows["observation.state"])
    for name, expected in (("mean", states.mean(0)), ("std", states.std(0)), ("min", states.min(0))):
        assert stats["observation.state"][name] == pytest.approx(expected.tolist(), abs=1e-6)
    assert stats["observation.state"]["count"] == [16]
    tasks = pq.read_table(tmp_path / "out/meta/tasks.parquet")
    assert tasks.to_pydict() == {"task_index": [0], "__index_level_0__": ["tests/test_dock.py::test_dock"]}
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["__index_level_0__"]


def test_a_data_set_is_of_whole_numbers_tasks_and_passed_tests_where_that_is_asked(tmp_path: Path) -> None:
    leave(tmp_path / "in", 1, 3, integers=True, step_s=None)
    leave(tmp_path / "in", 2, 3, integers=True, step_s=None, test="tests/test_b.py::test_b")
    leave(tmp_path / "in", 3, 3, integers=True, step_s=None, outcome="failed")
    assert export(tmp_path / "in", "--to", "lerobot", tmp_path / "out", "--fps", "20", "--passed") == 0
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert (info["total_episodes"], info["total_tasks"], info["fps"]) == (2, 2, 20)
    assert info["features"]["action"] == {"dtype": "int64", "shape": [1], "names": None}
    assert export(tmp_path / "in", "--to", "lerobot", tmp_path / "one", "--fps", "20", "--task", "dock") == 0
    assert pq.read_table(tmp_path / "one/meta/tasks.parquet")["__index_level_0__"].to_pylist() == ["dock"]


def test_long_data_sets_are_of_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lerobot, "DATA_MB", 0)
    for seed in range(3):
        leave(tmp_path / "in", seed, 4)
    assert export(tmp_path / "in", "--to", "lerobot", tmp_path / "out") == 0
    episodes = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [each["data/file_index"] for each in episodes] == [0, 1, 2]
    for number in range(3):
        data = pq.read_table(tmp_path / f"out/data/chunk-000/file-{number:03d}.parquet")
        assert set(data["episode_index"].to_pylist()) == {number}


def test_parquet_tables_lose_nothing(tmp_path: Path) -> None:
    leave(tmp_path / "in", 3, 4, integers=True, rollout_seed=str(2**100))
    leave(tmp_path / "in", 4, 2, integers=True, step_s=None, metrics='{"distance": null, "docked": 1.0}')
    assert export(tmp_path / "in", "--to", "parquet", tmp_path / "out") == 0
    steps = pq.read_table(tmp_path / "out/steps.parquet")
    assert steps["episode"].to_pylist() == [0] * 5 + [1] * 3
    assert steps["step"].to_pylist() == [*range(5), *range(3)]
    assert steps["time_s"].to_pylist() == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, None, None, None])
    rng = np.random.default_rng(3)
    assert steps["observation"].to_pylist()[:5] == rng.normal(size=(5, 3)).tolist(), "bit by bit"
    assert steps["state"].to_pylist()[:5] == rng.normal(size=(5, 2, 2)).astype("<f4").reshape(5, 4).tolist()
    assert steps["action"].to_pylist()[:5] == [*rng.integers(0, 4, size=4).tolist(), None]
    assert steps["reward"].to_pylist()[:5] == [*rng.normal(size=4).tolist(), None]
    assert {name: str(steps.schema.field(name).type) for name in ("action", "reward")} == {
        "action": "int64", "reward": "double",
    }  # fmt: skip
    episodes = pq.read_table(tmp_path / "out/episodes.parquet").to_pylist()
    assert [(each["seed"], each["rollout_seed"]) for each in episodes] == [("3", str(2**100)), ("4", "")]
    assert [each["metric.distance"] for each in episodes] == [0.3, None]
    assert [each["metric.docked"] for each in episodes] == [None, 1.0]
    assert [each["step_s"] for each in episodes] == [0.1, None]
    assert episodes[0]["terminated"] is True


@pytest.mark.parametrize("form", ["lerobot", "parquet"])
def test_episodes_of_different_worlds_are_no_data_set(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(tmp_path / "in", 1, 3)
    other = leave(tmp_path / "in", 2, 3, size=4)
    assert export(tmp_path / "in", "--to", form, tmp_path / "out") == 1
    assert f"{other} has other columns" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["in"], "nothing is left of it"


def test_what_is_no_data_set_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*words: Any) -> str:
        assert export(*words) == 1
        return capsys.readouterr().err

    (tmp_path / "in").mkdir()
    assert "--microsim-trajectories" in said(tmp_path / "in", "--to", "lerobot", tmp_path / "out")
    leave(tmp_path / "in", 1, 3, step_s=None)
    assert "--fps" in said(tmp_path / "in", "--to", "lerobot", tmp_path / "out")
    other = leave(tmp_path / "timed", 1, 3)
    leave(tmp_path / "timed", 2, 3, step_s=0.5)
    assert "2 steps a second" in said(tmp_path / "timed", "--to", "lerobot", tmp_path / "out")
    assert "is there already" in said(tmp_path / "timed", "--to", "parquet", tmp_path / "in")
    other.write_bytes(other.read_bytes()[:100])
    assert str(other) in said(tmp_path / "timed", "--to", "parquet", tmp_path / "out")
    leave(tmp_path / "failed", 1, 3, outcome="failed")
    assert "its test failed" in said(tmp_path / "failed", "--to", "parquet", tmp_path / "out", "--passed")
    assert not (tmp_path / "out").exists()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "working directory" in said(tmp_path / "failed", "--to", "parquet", ".")


@pytest.mark.parametrize("form", ["lerobot", "parquet"])
def test_columns_with_nothing_in_them_are_left_out(tmp_path: Path, form: str) -> None:
    leave(tmp_path / "in", 1, 3, size=0)
    (tmp_path / "out").mkdir()
    assert export(tmp_path / "in", "--to", form, tmp_path / "out") == 0
    rows = "steps.parquet" if form == "parquet" else "data/chunk-000/file-000.parquet"
    names = pq.read_table(tmp_path / "out" / rows).column_names
    assert "action" in names
    assert not [name for name in names if name in ("observation", "observation.state")]


def test_episodes_that_another_program_wrote_wrong_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"test": "t", "metrics": "{}"}

    def said(form: str, columns: list[Column], **more: str) -> str:
        write_episode(tmp_path / "in/1.mcap", {each.name: each for each in columns}, step_s=0.1, metadata=told | more)
        assert export(tmp_path / "in", "--to", form, tmp_path / "out") == 1
        return capsys.readouterr().err

    (tmp_path / "in").mkdir()
    reward = column("reward", np.zeros(4))
    for form in ("lerobot", "parquet"):
        assert "1.mcap: action is <f8[2], in an episode of 4 steps" in said(
            form, [reward, column("action", np.zeros(2))]
        )
        assert "1.mcap: state is <f2[5]" in said(form, [reward, column("state", np.zeros(5, "<f2"))])
    assert "1.mcap: its metrics are none" in said("parquet", [reward], metrics='{"docked": "yes"}')


@pytest.mark.parametrize(
    ("seconds", "step_s"),
    [(2.0, 0.5), (None, None), *((odd, None) for odd in (0.0, -1.0, 5e-324, 4e9, math.inf, math.nan))],
)
def test_what_a_guest_says_of_time_is_used_where_it_can_be(
    tmp_path: Path, seconds: float | None, step_s: float | None
) -> None:
    reward = column("reward", np.zeros(4))
    episode = Episode(EpisodeRecord(
        seed=1, steps=4, terminated=True, truncated=False, total_reward=0.0, metrics={}, columns={"reward": reward},
        wall_ms=1.0, controller_stdout=b"", controller_stderr=b"", error=None, simulated_s=seconds,
        options={"name": "\ud800", "large": 2**70},
    ))  # fmt: skip
    assert writing.step_seconds(episode) == step_s
    writing.write(tmp_path / "1.mcap", episode, told={})
    columns, told = read_episode(tmp_path / "1.mcap")
    assert columns == {"reward": reward}
    assert told["options"] == '{"large":1180591620717411303424,"name":"\\ud800"}'
    assert told["time"] == ("steps" if step_s is None else "seconds")
    assert shots_of(4, step_s, 5)[0].steps == 4


def test_parts_add_up_to_the_whole() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(1e6, 2.0, size=(90, 2))
    values[5, 0] = np.nan
    whole = Summed.of(values)
    parts = Summed.of(values[:7]) + Summed.of(values[7:8]) + Summed.of(values[8:])
    for stats in (whole.stats(), parts.stats()):
        assert stats["mean"] == pytest.approx(np.nanmean(values, axis=0).tolist())
        assert stats["std"] == pytest.approx(np.nanstd(values, axis=0).tolist())
        assert stats["min"] == np.nanmin(values, axis=0).tolist()
        assert stats["count"] == [90]
    nothing = Summed.of(np.full((3, 1), np.nan)).stats()
    assert nothing == {"min": [0.0], "max": [0.0], "mean": [0.0], "std": [0.0], "count": [3]}


def test_files_of_tests_have_names_of_their_own(tmp_path: Path) -> None:
    tests = ["a/b.py::t", "a_b.py::t", "a/b.py__t", "a/b.py::t[../../etc]", "\ud800", "x" * 5000, "x" * 5001, ""]
    names = [named(test) for test in tests]
    assert len({name.lower() for name in names}) == len(tests)
    assert all(len(name) <= 100 and name.isascii() and "/" not in name and name[0] != "." for name in names)
    assert place(tmp_path, "t", 2**127, run=2, episode=3, suffix=".mcap").name == f"{2**127}-run2-episode3.mcap"
