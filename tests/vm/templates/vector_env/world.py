"""A Gymnasium vector environment as a world."""

import random

import gymnasium


class Gusty(gymnasium.Wrapper):
    """Declares a generator; all four members call theirs by the same name."""

    def __init__(self, env):
        super().__init__(env)
        self.gusts = random.Random(0)

    def generators(self):
        """Return the declared generator."""
        return {"gusts": self.gusts}


class Batch(gymnasium.vector.SyncVectorEnv):
    """Tells in the info what each member's declared generator gives next."""

    def reset(self, *, seed=None, options=None):
        """Reset all members; the seed is spread over them by Gymnasium."""
        observation, info = super().reset(seed=seed, options=options)
        return observation, dict(info, gusts=[env.gusts.random() for env in self.envs])


def make():
    """Build the batch."""
    return Batch([lambda: Gusty(gymnasium.make("Pendulum-v1"))] * 4)
