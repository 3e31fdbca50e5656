"""A pole balanced on a cart, in the standard library alone: a world that loads in milliseconds."""

import math
import random

import drawing

GRAVITY = 9.8
CART_KG, POLE_KG = 1.0, 0.1
STEP_S = 0.02
TRACK_M = 2.4
FALLEN_RAD = math.radians(12.0)
# What `reset` takes as options: the usual value, the least and the most.
OPTIONS = {
    "pole_m": (1.0, 0.2, 4.0),
    "force_n": (10.0, 1.0, 100.0),
    "gust_n": (0.5, 0.0, 10.0),
    "start_spread": (0.05, 0.0, 0.2),
}


class CartPole:
    """Push the cart so that the pole stays up.

    Observation: [cart position m, cart velocity m/s, pole angle rad, pole rate rad/s]; angle 0 is upright.
    Action: 0 pushes left and 1 right with 10 N; a float is a share of that force, -1.0 to 1.0, clipped.
    The seed draws the initial state, and gusts of up to 0.5 N at every step.

    Options of `reset`: `pole_m` is the pole's length in metres (1.0), `force_n` the full force (10.0), `gust_n` the
    strongest gust in N (0.5), and `start_spread` the largest number of the initial state (0.05).

    An episode terminates when the pole leans more than 12 degrees or the cart leaves the 2.4 m on either
    side, and is truncated after `max_steps`.

    Args:
        max_steps: Truncate an episode after this many steps of 0.02 s.
    """

    def __init__(self, max_steps):
        self._max_steps = max_steps
        self._rng = random.Random(0)
        self.reset()

    def reset(self, seed=None, options=None):
        """Start an episode.

        Args:
            seed: Restarts the world's generator; None goes on where it stands.
            options: Numbers in place of the usual ones, by the names of `OPTIONS`.

        Returns:
            The first observation and an empty info.

        Raises:
            ValueError: There is no such option, or it is out of range.
        """
        chosen = _chosen(options or {})
        self._half_pole_m, self._force_n, self._gust_n = chosen["pole_m"] / 2, chosen["force_n"], chosen["gust_n"]
        spread = chosen["start_spread"]
        if seed is not None:
            self._rng.seed(seed)
        self._state = [self._rng.uniform(-spread, spread) for _ in range(4)]
        self._steps = 0
        self._max_angle = abs(self._state[2])
        return list(self._state), {}

    def step(self, action):
        """Push for 0.02 s.

        Args:
            action: 0, 1, or a float from -1.0 to 1.0.

        Returns:
            Observation, reward (1.0 while up), terminated, truncated, and an empty info.

        Raises:
            ValueError: If the action is an integer other than 0 and 1, or not finite.
        """
        x, speed, angle, rate = self._state
        push = self._force_n * _share(action) + self._rng.uniform(-self._gust_n, self._gust_n)
        total, half = CART_KG + POLE_KG, self._half_pole_m
        sin, cos = math.sin(angle), math.cos(angle)
        thrust = (push + POLE_KG * half * rate * rate * sin) / total
        turn = (GRAVITY * sin - cos * thrust) / (half * (4.0 / 3.0 - POLE_KG * cos * cos / total))
        pull = thrust - POLE_KG * half * turn * cos / total
        self._state = [x + STEP_S * speed, speed + STEP_S * pull, angle + STEP_S * rate, rate + STEP_S * turn]
        self._steps += 1
        self._max_angle = max(self._max_angle, abs(self._state[2]))
        fallen = self._fallen()
        return list(self._state), float(not fallen), fallen, self._steps >= self._max_steps, {}

    @property
    def time(self):
        """Simulated time since the start of the episode, in seconds."""
        return self._steps * STEP_S

    def _fallen(self):
        return abs(self._state[0]) > TRACK_M or abs(self._state[2]) > FALLEN_RAD

    def state(self):
        """Return the four state variables; here the controller sees them all."""
        return list(self._state)

    def metrics(self):
        """Return the episode's scores: steps survived, and the largest lean in radians."""
        return {
            "balanced_steps": float(self._steps - self._fallen()),
            "max_angle": self._max_angle,
            "fallen": float(self._fallen()),
        }

    def render(self):
        """Return a picture, (160, 320, 3) of uint8."""
        x, _, angle, _ = self._state
        return drawing.picture(x, angle, 2 * self._half_pole_m, TRACK_M, FALLEN_RAD)

    def generators(self):
        """Return the world's own source of randomness."""
        return {"cartpole": self._rng}


def _chosen(options):
    """Return all options, those that are left out with their usual values."""
    chosen = {name: usual for name, (usual, _, _) in OPTIONS.items()}
    for name, value in options.items():
        if name not in OPTIONS:
            raise ValueError(f"the cart-pole has no option {name!r}: it has {', '.join(OPTIONS)}")
        _, least, most = OPTIONS[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise ValueError(f"option {name} is a number from {least} to {most}, not {value!r}")
        chosen[name] = float(value)
    return chosen


def _share(action):
    """Turn an action into a share of the full force, -1.0 to 1.0."""
    if isinstance(action, int):
        if action not in (0, 1):
            raise ValueError(f"an integer action is 0 (left) or 1 (right), not {action}")
        return 1.0 if action else -1.0
    share = float(action)
    if not math.isfinite(share):
        raise ValueError(f"the action must be finite, not {action!r}")
    return min(max(share, -1.0), 1.0)


def make(max_steps=500):
    """Build the cart-pole; see `CartPole` for the argument."""
    return CartPole(max_steps)
