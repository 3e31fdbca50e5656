"""Docks the warehouse robot: heads for the beacon, along the free direction that costs least.

Every direction near a ray is scored by how far the robot, with a margin, could drive that way before it
meets a point that some ray sees, and by how much it turns away from the beacon.
"""

import math

import numpy as np

RAYS = 16
LEFT_SPEED, RIGHT_SPEED, YAW_RATE, BEACON_RANGE, BEACON_BEARING, BUMPER = range(RAYS, RAYS + 6)
STEP_S = 0.1
HALF_WIDTH = 0.34  # the robot's radius, 0.25 m, and a margin
LOOK_AHEAD = 2.6
MEMORY = 6  # scans kept, in steps: pallet corners slip between the rays of a single one
ARRIVED = 0.12

RAY_ANGLES = np.radians(np.linspace(-120.0, 120.0, RAYS))
RAY_COS, RAY_SIN = np.cos(RAY_ANGLES), np.sin(RAY_ANGLES)
HEADINGS = np.radians(np.linspace(-112.0, 112.0, 29))
HEADING_COS, HEADING_SIN = np.cos(HEADINGS)[:, None], np.sin(HEADINGS)[:, None]


class Controller:
    """Remembers the last scans, moved along by odometry, and the beacon's smoothed position."""

    def __init__(self):
        self.points = np.full((2, RAYS * MEMORY), 1e3)  # x ahead, y left; metres, robot's frame
        self.scan = 0
        self.beacon = None
        self.last = 0.0
        self.backing = 0

    def act(self, observation):
        """Return (forward speed in m/s, turn rate in rad/s)."""
        forward = STEP_S * (observation[LEFT_SPEED] + observation[RIGHT_SPEED]) / 2
        turned = STEP_S * observation[YAW_RATE]
        self._remember(observation[:RAYS], forward, turned)
        distance, bearing = self._locate(observation, forward, turned)

        if distance < ARRIVED:
            return 0.0, 0.0
        if observation[BUMPER] > 0.0:
            self.backing = 5
        if self.backing:
            self.backing -= 1
            return -0.3, 0.6 if bearing < 0 else -0.6
        if abs(bearing) > 1.8:
            return 0.0, math.copysign(1.8, bearing)
        if distance < 0.9:
            return min(0.4, 0.6 * distance + 0.05) * max(0.0, math.cos(bearing)), 2.0 * bearing
        return self._steer(distance, bearing)

    def _remember(self, ranges, forward, turned):
        """Move the remembered points into the robot's new frame and replace the oldest scan."""
        cos, sin = math.cos(turned), math.sin(turned)
        x, y = self.points
        x -= forward
        self.points = np.stack((cos * x + sin * y, cos * y - sin * x))
        far = np.where(ranges < 5.5, ranges, 1e3)
        first = self.scan * RAYS
        self.points[0, first : first + RAYS] = far * RAY_COS
        self.points[1, first : first + RAYS] = far * RAY_SIN
        self.scan = (self.scan + 1) % MEMORY

    def _locate(self, observation, forward, turned):
        """Blend the beacon's reading into its position known from before; return distance and bearing."""
        seen_x = observation[BEACON_RANGE] * math.cos(observation[BEACON_BEARING])
        seen_y = observation[BEACON_RANGE] * math.sin(observation[BEACON_BEARING])
        if self.beacon is None:
            self.beacon = (seen_x, seen_y)
        x, y = self.beacon
        cos, sin = math.cos(turned), math.sin(turned)
        x -= forward
        x, y = cos * x + sin * y, cos * y - sin * x
        x, y = x + 0.3 * (seen_x - x), y + 0.3 * (seen_y - y)
        self.beacon = (x, y)
        return math.hypot(x, y), math.atan2(y, x)

    def _steer(self, distance, bearing):
        """Take the cheapest direction; slow down where there is little room ahead."""
        along = HEADING_COS * self.points[0] + HEADING_SIN * self.points[1]
        across = HEADING_COS * self.points[1] - HEADING_SIN * self.points[0]
        blocking = (along > 0.0) & (np.abs(across) < HALF_WIDTH)
        free = np.where(blocking, along, 1e3).min(axis=1)
        reach = min(LOOK_AHEAD, distance)
        shortfall = np.maximum(reach - free, 0.0)
        cost = np.abs(HEADINGS - bearing) + 0.3 * np.abs(HEADINGS - self.last) + 3.0 * shortfall
        best = int(np.argmin(cost))
        heading, room = float(HEADINGS[best]), float(free[best])
        self.last = heading
        speed = max(0.05, min(0.8, 0.9 * (room - 0.25))) * max(0.0, math.cos(heading)) ** 2
        return speed, max(-2.0, min(2.0, 2.5 * heading))
