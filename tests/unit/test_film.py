"""Pictures of an episode: what the guest takes of a world's render, and what the host takes of a guest."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from microsim_guest import camera
from microsim_vm.errors import AgentError
from microsim_vm.film import Film, Shots, from_answer


class Drawn:
    """A world of 4 x 2 pixels, whose colour is the step."""

    def __init__(self) -> None:
        self.step = 0
        self.picture: Any = None
        self.drawn = 0

    def render(self) -> Any:
        self.drawn += 1
        if isinstance(self.picture, Exception):
            raise self.picture
        return memoryview(bytes([self.step]) * 24).cast("B", (2, 4, 3)) if self.picture is None else self.picture


def filmed(world: Any, steps: int = 10, every: int = 3, most: int = 100) -> tuple[dict[str, Any], list[bytes]]:
    """Let a camera look at each step, and at the last one as the last."""
    taking = camera.Camera(world, every, most, steps)
    for step in range(steps + 1):
        world.step = step
        taking.look(step)
    taking.look(steps, last=True)
    return taking.describe()


def test_pictures_are_of_every_so_many_steps_and_of_both_ends() -> None:
    world = Drawn()
    facts, pictures = filmed(world)
    assert (facts["steps"], facts["size"], facts["why"]) == ([0, 3, 6, 9, 10], [2, 4], "")
    film, rest = from_answer({"film": facts}, [b"other", *pictures], Shots(3, 100, 10))
    assert rest == (b"other",)
    assert (film.width, film.height, len(film)) == (4, 2, 5)
    assert list(film) == [bytes([step]) * 24 for step in film.steps]
    assert filmed(world, steps=9)[0]["steps"] == [0, 3, 6, 9], "the last step is due anyway, and there once"


def test_an_array_of_numpy_is_a_picture_however_it_lies_in_memory() -> None:
    world = Drawn()
    world.picture = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)[::-2]
    facts, pictures = filmed(world, steps=0)
    assert facts["size"] == [2, 4]
    assert zlib.decompress(pictures[0]) == world.picture.tobytes()


@pytest.mark.parametrize(
    ("picture", "why"),
    [
        (np.zeros((2, 4, 4), np.uint8), "[2, 4, 4] of type 'B', not (height, width, 3) of uint8"),
        (np.zeros((2, 4, 3), np.float32), "of type 'f'"),
        (np.zeros((2, 4), np.uint8), "[2, 4]"),
        (np.zeros((0, 4, 3), np.uint8), "is empty"),
        (np.zeros((1, 5000, 3), np.uint8), "too large"),
        ("a picture", "returned a str"),
        (b"123", "[3] of type 'B'"),
        (RuntimeError("no display"), "RuntimeError: no display"),
    ],
)
def test_what_is_no_picture_ends_them_and_nothing_else(picture: Any, why: str) -> None:
    world = Drawn()
    world.picture = picture
    facts, pictures = filmed(world)
    assert why in facts["why"]
    assert (facts["steps"], pictures, world.drawn) == ([], [], 1)


def test_a_world_that_cannot_be_drawn_says_what_it_lacks() -> None:
    assert "no render()" in filmed(object.__new__(type("Bare", (), {})))[0]["why"]
    world = Drawn()
    world.render = lambda: None  # type: ignore[method-assign]
    assert "render_mode: rgb_array" in filmed(world)[0]["why"]


def test_pictures_are_bounded_in_number_size_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, pictures = filmed(Drawn(), most=2)
    assert (facts["steps"], len(pictures)) == ([0, 3], 2)
    assert "as many as were asked for" in facts["why"]
    world = Drawn()
    taking = camera.Camera(world, 1, 10, 10)
    taking.look(0)
    world.picture = np.zeros((3, 4, 3), np.uint8)
    taking.look(1)
    assert "those before it had others" in taking.describe()[0]["why"]
    monkeypatch.setattr(camera, "MAX_BYTES", 30)
    assert "larger than" in filmed(Drawn())[0]["why"]


def test_pictures_that_take_long_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(camera.time, "monotonic", lambda: now[0])

    class Slow(Drawn):
        def render(self) -> Any:
            now[0] += 500.0 if self.step == 0 else 40.0  # it gets ready, once
            return super().render()

    facts, _ = filmed(Slow(), steps=100, every=1)
    assert facts["steps"] == [0, 1, 34, 67, 100], "120 s are spread over 100 steps"
    assert facts["why"] == ""


def film_of(steps: list[int], pictures: list[bytes], size: tuple[int, int] = (2, 4), **more: Any) -> Film:
    facts = {"steps": steps, "size": list(size), "why": "", "seconds": 0.1, **more}
    return from_answer({"film": facts}, pictures, Shots(1, 3, 3))[0]


GOOD = zlib.compress(bytes(24))


@pytest.mark.parametrize(
    "answer",
    [
        {"steps": [0, 1, 2, 3], "pictures": [GOOD] * 4},
        {"steps": [0, 1], "pictures": [GOOD]},
        {"steps": [1, 1], "pictures": [GOOD] * 2},
        {"steps": [-1], "pictures": [GOOD]},
        {"steps": [0, 4], "pictures": [GOOD] * 2},
        {"steps": [0, 1 << 90], "pictures": [GOOD] * 2},
        {"steps": [0], "pictures": [GOOD], "size": (0, 4)},
        {"steps": [0], "pictures": [GOOD], "size": (4096, 4096)},
        {"steps": [0], "pictures": [GOOD], "size": (-2, -4)},
        {"steps": "0", "pictures": [GOOD]},
        {"steps": [0], "pictures": [GOOD], "why": "x" * 3000},
        {"steps": [0], "pictures": [GOOD], "seconds": "long"},
    ],
)
def test_a_hostile_guest_cannot_say_of_its_pictures_what_it_likes(answer: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        film_of(**answer)


def test_pictures_that_unpack_to_something_else_are_refused() -> None:
    bomb = zlib.compress(bytes(50 << 20), 9)
    for bad in (bomb, zlib.compress(bytes(23)), GOOD[:-8], b"no zlib", zlib.compress(bytes(25))):
        with pytest.raises(AgentError, match="picture of step 1"):
            list(film_of([0, 1], [GOOD, bad]))


def test_shots_are_spread_over_the_episode() -> None:
    assert Shots.over(500, 251) == Shots(2, 251, 500)
    assert Shots.over(0, 2) == Shots(1, 2, 0)
    assert Shots.over(10, 100, every=4) == Shots(4, 100, 10)
    for steps in range(60):
        for most in (2, 3, 7):
            shots = Shots.over(steps, most)
            assert len({*range(0, steps + 1, shots.every), steps}) <= most
    for wrong in (1, 2001, 3.0, True):
        with pytest.raises(ValueError, match="2 to 2000"):
            Shots.over(10, wrong)  # type: ignore[arg-type]
