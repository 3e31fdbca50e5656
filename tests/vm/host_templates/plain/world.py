"""A world that counts and never ends."""

import random


class Counter:
    """Counts its steps; the seed draws where it starts."""

    def __init__(self, start):
        self._rng = random.Random(0)
        self._start = start
        self._count = 0

    def reset(self, seed=None, options=None):
        """Start an episode."""
        self._rng.seed(seed)
        self._count = self._start + self._rng.random()
        return [self._count], {}

    def step(self, action):
        """Count one step."""
        self._count += 1
        return [self._count], 1.0, False, False, {}

    def generators(self):
        """Return the world's own source of randomness."""
        return {"counter": self._rng}


def make(start):
    """Build the counter."""
    return Counter(start)
