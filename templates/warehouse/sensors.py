"""What the robot senses: sixteen range rays, wheel encoders, a gyro, a dock beacon and a bumper."""

from __future__ import annotations

import math

import layout
import mujoco
import numpy as np

RAYS = 16
FIELD_OF_VIEW = math.radians(240.0)
MAX_RANGE = 6.0
SIZE = RAYS + 6
# Positions in the observation.
LEFT_SPEED, RIGHT_SPEED, YAW_RATE, BEACON_RANGE, BEACON_BEARING, BUMPER = range(RAYS, SIZE)


class Sensors:
    """Reads one simulation; buffers and views are made once because a step must be cheap.

    Args:
        model: The compiled warehouse.
        data: Its simulation state, read at every `read`.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData):
        robot = model.body("robot").id
        self._model, self._data, self._robot = model, data, robot
        self.position = data.xpos[robot]
        self.rotation = data.xmat[robot].reshape(3, 3)
        self.qvel = data.qvel
        self.touch = data.sensordata
        angles = np.linspace(-FIELD_OF_VIEW / 2, FIELD_OF_VIEW / 2, RAYS)
        self._rays = np.stack([np.cos(angles), np.sin(angles), np.zeros(RAYS)], axis=1)
        self._world_rays = np.zeros((RAYS, 3))
        self._flat_rays = self._world_rays.reshape(-1)
        self._eye = np.zeros(3)
        self._groups = np.zeros(6, dtype=np.uint8)
        self._groups[layout.GROUP_SEEN] = 1
        self._hit = np.zeros(RAYS, dtype=np.int32)
        self._distance = np.zeros(RAYS)
        self._noise = np.zeros(SIZE)
        self._sigma = np.zeros(SIZE)
        self._bias = np.zeros(SIZE)

    def randomize(self, rng: np.random.Generator) -> None:
        """Draw this episode's noise levels and the gyro's bias."""
        self._sigma[:RAYS] = rng.uniform(0.005, 0.03)
        self._sigma[LEFT_SPEED : YAW_RATE + 1] = rng.uniform(0.005, 0.02)
        self._sigma[BEACON_RANGE] = rng.uniform(0.01, 0.04)
        self._sigma[BEACON_BEARING] = rng.uniform(0.01, 0.04)
        self._bias[YAW_RATE] = rng.normal(0.0, 0.02)

    def yaw(self) -> float:
        """Return the true heading in radians; 0 faces east, towards the dock."""
        return math.atan2(self.rotation[1, 0], self.rotation[0, 0])

    def offset_to_dock(self) -> tuple[float, float]:
        """Return the true vector from the robot to the dock point, in metres along the world's x and y."""
        x, y, _ = self.position.tolist()
        return layout.DOCK_POINT[0] - x, layout.DOCK_POINT[1] - y

    def read(self, rng: np.random.Generator) -> np.ndarray:
        """Return a fresh noisy observation, (22,) float64; see `world.Warehouse` for its fields."""
        np.matmul(self._rays, self.rotation.T, out=self._world_rays)
        self._eye[:] = self.position
        self._eye[2] = 0.25
        mujoco.mj_multiRay(
            self._model, self._data, self._eye, self._flat_rays, self._groups, True, self._robot,
            self._hit, self._distance, None, RAYS, MAX_RANGE,
        )  # fmt: skip
        rng.standard_normal(out=self._noise)
        observation = self._noise * self._sigma
        observation += self._bias
        ranges = observation[:RAYS]
        # A ray that hits nothing reports -1.
        self._distance[self._hit < 0] = MAX_RANGE
        ranges += self._distance
        np.minimum(ranges, MAX_RANGE, out=ranges)
        np.maximum(ranges, 0.0, out=ranges)
        velocity = self.qvel.tolist()
        dx, dy = self.offset_to_dock()
        bearing = observation[BEACON_BEARING] + math.atan2(dy, dx) - self.yaw()
        observation[LEFT_SPEED] += velocity[6] * layout.WHEEL_RADIUS
        observation[RIGHT_SPEED] += velocity[7] * layout.WHEEL_RADIUS
        observation[YAW_RATE] += velocity[5]
        observation[BEACON_RANGE] = abs(observation[BEACON_RANGE] + math.hypot(dx, dy))
        observation[BEACON_BEARING] = math.remainder(bearing, math.tau)
        observation[BUMPER] = 1.0 if self.touch[0] > 0.0 else 0.0
        return observation
