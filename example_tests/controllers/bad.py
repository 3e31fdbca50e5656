"""A docking controller that looks reasonable and is not: it trusts one beacon reading and dead reckoning.

It takes the dock's place from its first observation, turns towards it and drives there by wheel odometry. It
never looks at the range sensors, nor at the beacon again.
"""

import math

STEP_S = 0.1
TRACK_M = 0.36
LEFT_SPEED, RIGHT_SPEED, BEACON_RANGE, BEACON_BEARING = 16, 17, 19, 20


class Controller:
    """Keeps the dock's position in the robot's frame, updated by wheel odometry alone."""

    def __init__(self):
        self.dock = None

    def act(self, observation):
        """Return (forward speed in m/s, turn rate in rad/s)."""
        if self.dock is None:
            distance, bearing = observation[BEACON_RANGE], observation[BEACON_BEARING]
            self.dock = (distance * math.cos(bearing), distance * math.sin(bearing))
        forward = STEP_S * (observation[LEFT_SPEED] + observation[RIGHT_SPEED]) / 2
        turned = STEP_S * (observation[RIGHT_SPEED] - observation[LEFT_SPEED]) / TRACK_M
        x, y = self.dock[0] - forward, self.dock[1]
        cos, sin = math.cos(turned), math.sin(turned)
        self.dock = (cos * x + sin * y, cos * y - sin * x)
        distance, bearing = math.hypot(*self.dock), math.atan2(self.dock[1], self.dock[0])
        if distance < 0.3:
            return 0.0, 0.0
        speed = min(0.8, distance) * max(0.0, math.cos(bearing))
        return speed, max(-2.0, min(2.0, 2.0 * bearing))
