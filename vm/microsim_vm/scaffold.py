"""The first files of a project: a template with its world, a controller, a test, and the ini file."""

from __future__ import annotations

import os
import re
from pathlib import Path

from microsim_vm.errors import TemplateError
from microsim_vm.templates import checks

TEMPLATE = """\
name: @NAME@
description: A cart that a controller brings to a target
machine: {memory_mib: 256}
world: {factory: "world:make"}
controller: {memory_mib: 96}
"""
WORLD = '''\
"""A cart on a rail. It starts anywhere, and is to come to rest at a target."""

import random

STEP_S = 0.05


class Cart:
    """Push the cart; the seed draws where it starts, where the target is, and the wind.

    Observation: [distance to the target m, speed m/s]. Action: a push from -1.0 to 1.0.
    """

    def __init__(self):
        # Do here what is slow and the same for every episode: the snapshot is taken after it.
        self.rng = random.Random()

    def reset(self, seed=None, options=None):
        """Start an episode; what the seed decides is decided here."""
        self.rng.seed(seed)
        self.position = self.rng.uniform(-2.0, 2.0)
        self.target = self.rng.uniform(-2.0, 2.0)
        self.speed = 0.0
        self.steps = 0
        return self._observation(), {}

    def step(self, action):
        """Push for 0.05 s."""
        push = min(max(float(action), -1.0), 1.0) + self.rng.gauss(0.0, 0.05)
        self.speed += 4.0 * push * STEP_S
        self.position += self.speed * STEP_S
        self.steps += 1
        miss = abs(self.target - self.position)
        return self._observation(), -miss, False, self.steps >= 200, {}

    def _observation(self):
        return [self.target - self.position, self.speed]

    def metrics(self):
        """Return the scores of the episode."""
        return {"miss": abs(self.target - self.position)}

    def generators(self):
        """Name the generators that every fork reseeds."""
        return {"cart": self.rng}


def make():
    """Build the world; the template names this function."""
    return Cart()
'''
CONTROLLER = '''\
"""Brings the cart to the target: pushes towards it, and against its speed."""


def act(observation):
    """Return a push from -1.0 to 1.0."""
    distance, speed = observation
    return 1.5 * distance - speed
'''
TEST = '''\
"""Each seed is a rollout of its own: a microVM forked from the world as it was after loading."""

import pytest


@pytest.mark.seeds(range(8))
def test_cart_comes_to_the_target(rollout):
    episode = rollout.run("controllers/push.py")
    assert episode.metrics["miss"] < 0.25
'''
INI = """\
[pytest]
microsim_world = @NAME@
"""


def files(name: str) -> dict[str, str]:
    """Return the files of a project whose world has this name: path and text.

    Raises:
        TemplateError: It cannot be a template's name.
    """
    if not re.fullmatch(checks.NAME, name):
        raise TemplateError(
            f"{name!r} cannot be the name of a world",
            hint="1 to 63 of a-z, 0-9, - and _, starting with a letter or digit",
        )
    texts = {
        f"templates/{name}/template.yaml": TEMPLATE,
        f"templates/{name}/world.py": WORLD,
        "controllers/push.py": CONTROLLER,
        f"test_{name.replace('-', '_')}.py": TEST,
        "pytest.ini": INI,
    }
    return {path: text.replace("@NAME@", name) for path, text in texts.items()}


def write(folder: Path, name: str) -> list[Path]:
    """Write a project; nothing is overwritten, and nothing written where something would be.

    Returns:
        The files.

    Raises:
        TemplateError: It cannot be a template's name.
        FileExistsError: A file is there already.
    """
    wanted = {folder / path: text for path, text in files(name).items()}
    there = [path for path in wanted if os.path.lexists(path)]
    if there:
        raise FileExistsError(f"not overwritten: {', '.join(map(str, there))}; nothing was written")
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    return list(wanted)
