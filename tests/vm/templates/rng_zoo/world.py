"""A world that has used every kind of generator before it is snapshotted."""

import ctypes
import os
import random
import tempfile
import uuid

import gymnasium
import numpy as np

HIDDEN_STATE = np.random.RandomState(3)  # undeclared, in a module
LIBC = ctypes.CDLL(None)


class Shelf:
    """Holds a generator one level deeper."""

    def __init__(self):
        self.noise = np.random.default_rng(4)


class Zoo(gymnasium.Env):
    """`draw()` takes one number from each source; `reset` must not reseed what the fork has to."""

    def __init__(self):
        random.seed(1)
        np.random.seed(1)
        LIBC.srand(1)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
        self.hidden_random = random.Random(2)
        self.shelf = Shelf()
        self.boxes = {"deep": [random.Random(5)]}
        self.hidden_sequence = np.random.SeedSequence(6)
        self.declared = {
            "random": random.Random(7),
            "generator": np.random.default_rng(8),
            "mersenne": np.random.Generator(np.random.MT19937(9)),
            "state": np.random.RandomState(10),
            "sequence": np.random.SeedSequence(11),
            "engine": self._seed_engine,
        }
        self._engine = 0
        self.draw()

    def _seed_engine(self, seed):
        self._engine = seed

    def generators(self):
        """Return the declared ones."""
        return self.declared

    def draw(self):
        """Return one draw of every source, as text."""
        declared = self.declared
        return {
            "random": random.random(),
            "numpy": float(np.random.random()),
            "libc.rand": LIBC.rand(),
            "libc.lrand48": LIBC.lrand48(),
            "np_random": float(self.np_random.random()),
            "declared.random": declared["random"].random(),
            "declared.generator": float(declared["generator"].random()),
            "declared.generator.child": float(declared["generator"].spawn(1)[0].random()),
            "declared.mersenne": float(declared["mersenne"].random()),
            "declared.state": float(declared["state"].random_sample()),
            "declared.sequence": int(declared["sequence"].generate_state(1)[0]),
            "declared.sequence.child": int(declared["sequence"].spawn(1)[0].generate_state(1)[0]),
            "declared.engine": self._engine,
            "hidden.random": self.hidden_random.random(),
            "hidden.shelf": float(self.shelf.noise.random()),
            "hidden.state": float(HIDDEN_STATE.random_sample()),
            "kernel": os.urandom(32).hex(),
            "uuid": uuid.uuid4().hex,
            "tempname": tempfile.mktemp(),
            "set order": "".join({"dock", "shelf", "gate", "ramp", "lift", "aisle", "bay", "belt"}),
        }

    def reset(self, *, seed=None, options=None):
        """Return the draws that come first after the fork."""
        draws = self.draw()
        super().reset(seed=seed)
        # What a simulator in C or a plain Python one would take as its seed.
        stream = [float(value) for value in self.np_random.uniform(-1.0, 1.0, 3)]
        return np.zeros(1), {"draws": draws, "own stream": stream, "seed": seed}

    def step(self, action):
        """Give the next draws; the numbers among them become the episode's metrics."""
        return np.zeros(1), 0.0, False, False, self.draw()


def make():
    """Build the zoo."""
    return Zoo()
