"""Pictures and videos of episodes in real guests."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hosting import ON_ANY_ENGINE, REPOSITORY, Warmed
from microsim_vm.errors import ControllerTimeoutError, VideoError
from microsim_vm.film import Shots
from microsim_vm.machine import Machine
from microsim_vm.options import Options
from microsim_vm.templates import find_template, search_path
from microsim_vm.world import WarmWorld, warm

from pytest_microsim.rollout import Rollout

pytestmark = pytest.mark.timeout(400)

CONTROLLERS = REPOSITORY / "example_tests/controllers"
CART, SKY = (0x2C, 0x5F, 0x9E), (0xF4, 0xF5, 0xF7)


def forked(world: WarmWorld, seed: int) -> Rollout:
    def again() -> Machine:
        return world.fork(seed)

    return Rollout(again(), seed=seed, world=world.template.name, controller_folders=[CONTROLLERS], again=again)


@ON_ANY_ENGINE
def test_a_world_is_filmed_and_its_episode_stays_the_same(cartpole: WarmWorld) -> None:
    source = (CONTROLLERS / "balance.py").read_bytes()
    with cartpole.fork(3) as machine:
        plain = machine.run_episode(source, filename="balance.py", max_steps=40)
        drawn = machine.run_episode(source, filename="balance.py", max_steps=40, shots=Shots.over(40, 5))
    assert plain.film is None
    assert plain.columns == drawn.columns, "a camera is nothing to the world"
    film = drawn.film
    assert film is not None
    assert (film.steps, film.why, film.width, film.height) == ((0, 10, 20, 30, 40), "", 320, 160)
    for picture in film:
        pixels = [tuple(picture[start : start + 3]) for start in range(0, len(picture), 3)]
        assert pixels[0] == SKY
        assert pixels.count(CART) > 300


@ON_ANY_ENGINE
def test_a_video_is_of_the_episode_that_was(cartpole: WarmWorld, tmp_path: Path) -> None:
    poles = forked(cartpole, 5)
    try:
        poles.run("balance.py", max_steps=30, options={"pole_m": 1.5})
        hangs = tmp_path / "hangs.py"
        hangs.write_text("import time\nleft = 5\n\ndef act(observation):\n    global left\n    left -= 1\n"
                         "    time.sleep(0 if left >= 0 else 600)\n    return 1\n")  # fmt: skip
        with pytest.raises(ControllerTimeoutError):
            poles.run(hangs, timeout_seconds=2.0)
        guesses = tmp_path / "guesses.py"
        guesses.write_text("import os\n\ndef act(observation):\n    return os.urandom(1)[0] % 2\n")
        poles.run(guesses, max_steps=30)

        first = poles.video(tmp_path / "first.mp4", episode=0)
        assert (first.same, first.why, first.pictures) == (True, "", 16), "25 pictures a second"
        assert first.seconds == pytest.approx(30 * 0.02 + 0.5)
        began = time.monotonic()
        assert poles.video(tmp_path / "second.gif", episode=1, pictures=3).same, "as far as it went"
        assert time.monotonic() - began < 60, "what hung is not waited for again"
        assert not poles.video(tmp_path / "third.mp4").same, "a controller that draws its own randomness"
        assert poles.videos == [tmp_path / "first.mp4", tmp_path / "second.gif", tmp_path / "third.mp4"]
        with pytest.raises(VideoError, match=r"run\(\) has run 3"):
            poles.video(tmp_path / "none.mp4", episode=3)
        (child,) = poles.fork()
        child.run("balance.py", max_steps=3)
        with pytest.raises(VideoError, match="no start"):
            child.video(tmp_path / "none.mp4")
        assert not (tmp_path / "none.mp4").exists()
    finally:
        poles.close()


@ON_ANY_ENGINE
def test_a_world_that_cannot_be_drawn_says_so(warmed: Warmed, tmp_path: Path) -> None:
    world = forked(warmed("faulty"), 0)
    try:
        source = tmp_path / "one.py"
        source.write_text("def act(observation):\n    return 1\n")
        world.run(source, max_steps=2)
        with pytest.raises(VideoError, match=r"(?s)no picture.*the world has no render\(\).*height, width, 3"):
            world.video(tmp_path / "none.mp4")
    finally:
        world.close()


def test_the_warehouse_is_drawn_in_software(tmp_path: Path) -> None:
    template = find_template("warehouse", search_path([], REPOSITORY))
    world = forked(warm(template, Options(), print), 3)
    try:
        world.run("dock.py", max_steps=12)
        made = world.video(tmp_path / "dock.mp4", pictures=3)
        assert (made.same, made.why, made.pictures) == (True, "", 3)
        assert made.path.stat().st_size > 2000
    finally:
        world.close()
