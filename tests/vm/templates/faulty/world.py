"""A world whose seed chooses what goes wrong; seed 0 is a world in order."""

import math
import os
import time


class Confusing(Exception):
    """Has an attribute that the framework's own errors have too, and cannot be shown."""

    kind = 5

    def __str__(self):
        raise RuntimeError("no text")


class Faulty:
    """Counts steps; any number is an action."""

    def __init__(self, secret):
        self.secret = secret
        self.fault = 0
        self.steps = 0

    def reset(self, seed=None, options=None):
        """Choose the fault of the third step."""
        self.fault, self.steps = seed, 0
        if seed == 1:
            raise LookupError("no dock in this world")
        return self._observe(), {"steps": 0, "note": "text"}

    def _observe(self):
        if self.fault == 2 and self.steps == 3:
            return {"position": [0.0, 0.0, 0.0], "on": True}
        if self.fault == 3 and self.steps == 3:
            return {"position": [0.0, 0.0]}
        if self.fault == 4 and self.steps == 3:
            return {"position": ["here", "there"], "on": True}
        return {"position": [float(self.steps), math.pi], "on": self.steps % 2 == 0}

    def step(self, action):
        """Count."""
        self.steps += 1
        if self.steps == 3 and self.fault == 5:
            self._explode()
        if self.steps == 3 and self.fault == 6:
            raise Confusing
        if self.steps == 3 and self.fault == 7:
            raise SystemExit(3)
        if self.steps == 3 and self.fault == 8:
            os._exit(4)
        if self.steps == 3 and self.fault == 9:
            if os.fork() == 0:
                time.sleep(600)  # holds every descriptor of the world's process
            os.kill(os.getpid(), 9)
        reward = 1 if self.steps != 2 else 0.5
        if self.steps == 3 and self.fault == 10:
            reward = math.inf
        info = {"steps": self.steps, "ok": True, "note": "text"}
        if self.steps >= 3:
            info.update({11: {"miss": math.nan}, 12: {"m" * 200: 1.0}, 13: {"huge": 10**400}}.get(self.fault, {}))
        return self._observe(), reward, self.steps >= 10, False, info

    @property
    def time(self):
        """Simulated seconds."""
        return 0.5 * self.steps

    def _explode(self):
        raise ValueError("the wheel came off")

    def state(self):
        """Return the ground truth, one number."""
        return float(self.steps)


def make(secret):
    """Build the world."""
    return Faulty(secret)
