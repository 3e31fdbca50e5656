"""What rollouts leave on request: every episode as MCAP, and a video of each that failed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import av
import pytest

from pytest_microsim.trajectories.mcap import read_episode

pytestmark = pytest.mark.timeout(300)

Run = Callable[..., pytest.RunResult]
SUITE = """
import pytest

@pytest.mark.seeds(range(4))
def test_even(rollout):
    rollout.run("controllers/balance.py", max_steps=20)
    rollout.run("controllers/balance.py", max_steps=10, options={"pole_m": 0.8})
    assert rollout.seed % 2 == 0

def test_by_hand(rollout):
    rollout.reset()
    rollout.step(1)
    assert False
"""
SCENARIO = """
controller: controllers/balance.py
seeds: 2
max_steps: 5
expect: {metrics: {balanced_steps: {at_least: 6}}}
pass_rate: {at_least: 0.5}
"""
BARE = """
class Bare:
    def reset(self, seed=None):
        return [0.0], {}

    def step(self, action):
        return [1.0], 0.0, True, False, {}

def make():
    return Bare()
"""


def test_every_episode_is_written_and_what_failed_is_filmed(
    pytester: pytest.Pytester, run: Run, controllers: Path, workers: int
) -> None:
    pytester.makepyfile(test_poles=SUITE)
    pytester.path.joinpath("sway.scenario.yaml").write_text(SCENARIO)
    result = run("--microsim-world=cartpole", "--microsim-trajectories=out/all", "--microsim-video=out/films",
                 "--microsim-results=out/results.json")  # fmt: skip
    assert result.ret == 1
    written = sorted((pytester.path / "out/all").rglob("*.mcap"))
    even = [path for path in written if "test_even" in path.parent.name]
    assert [path.name for path in even] == sorted(
        f"{seed}{more}.mcap" for seed in range(4) for more in ("", "-episode2")
    )
    assert len({path.parent for path in even}) == 1
    assert len(written) == 8 + 2

    results = json.loads((pytester.path / "out/results.json").read_text())
    rollouts = {each["nodeid"]: each for group in results["groups"] for each in group["rollouts"]}
    for seed in range(4):
        found = rollouts[f"test_poles.py::test_even[seed-{seed:04d}]"]
        for name, episode in zip(("trajectory", "trajectory 2"), found["episodes"], strict=True):
            columns, told = read_episode(pytester.path / "out" / found["files"][name])
            assert told["fingerprint"] == episode["fingerprint"]
            assert (told["seed"], told["rollout_seed"]) == (episode["seed"], str(seed))
            assert (told["world"], told["step_s"]) == ("cartpole", "0.02")
            assert told["outcome"] == ("failed" if seed % 2 else "passed")
            assert json.loads(told["options"]) == episode["options"]
            assert len(columns["action"]) == episode["steps"]
        assert ("video" in found["files"]) == bool(seed % 2)
    films = sorted((pytester.path / "out/films").rglob("*"))
    assert sorted(path.name for path in films if path.is_file()) == ["0.mp4", "1.mp4", "1.mp4", "3.mp4"]
    for path in films:
        if path.is_file():
            with av.open(str(path)) as film:
                assert film.streams.video[0].width == 320
    text = result.stdout.str()
    assert "video: none, no episode of run() was recorded" in text
    assert text.count("video: /") == 2


def test_a_video_that_cannot_be_made_is_said_after_the_failure(
    pytester: pytest.Pytester, run: Run, controllers: Path
) -> None:
    world = pytester.mkdir("templates") / "bare"
    world.mkdir()
    (world / "world.py").write_text(BARE)
    (world / "template.yaml").write_text(
        'name: bare\nextends: cartpole\nworld: {factory: "world:make"}\n'
    )  # fmt: skip
    pytester.makepyfile(
        "def test_bare(rollout):\n    rollout.run('controllers/balance.py', max_steps=2)\n    assert False\n"
    )
    result = run("--microsim-world=bare", "--microsim-video=films")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*video: none: there is no picture of the episode", "*the world has no render()*"])
    assert not list(pytester.path.joinpath("films").rglob("*.mp4"))
