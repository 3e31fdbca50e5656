"""A warehouse in which a differential-drive robot must find its charging dock."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import layout
import mujoco
import numpy as np
import sensors

_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
_SUBSTEPS = 5
_MAX_SPEED = 0.8
_MAX_TURN = 2.0
_FACING = 0.5  # rad
# What `reset` takes as options: the least and the most.
_OPTIONS = {"friction": (0.05, 2.0), "start_spread": (0.0, 1.0), "motor_error": (0.0, 0.3), "pallets": (0, 8)}


class Warehouse(gymnasium.Env):
    """Drive from the west end of a warehouse to the dock at its east end, around pallets in the aisle.

    A step is 0.1 s of simulated time.

    Action, (2,): forward speed in m/s, -0.4 to 0.8, and turn rate in rad/s, -2 to 2 (positive is left);
    clipped to these limits.

    Observation, (22,) float64, all noisy; the noise levels differ from seed to seed:

    | index | field | unit |
    | --- | --- | --- |
    | 0-15 | ranges from -120 (right) to +120 degrees (left), every 16 degrees; 6.0 means nothing hit | m |
    | 16, 17 | rim speed of the left and right wheel, from encoders | m/s |
    | 18 | yaw rate, from a gyro with a constant bias | rad/s |
    | 19 | distance to the dock, from its beacon | m |
    | 20 | bearing of the dock, relative to the robot's heading, positive is left | rad |
    | 21 | bumper: 1 while something is touched | |

    The beacon is heard through racks and pallets. The true pose, the pallets' places, the friction and the
    motors' errors are not observed.

    Options of `reset` set what the seed draws otherwise:

    | option | what | usually |
    | --- | --- | --- |
    | friction | of the floor, 0.05 to 2 | 0.4 to 1.0 |
    | start_spread | size of the area the robot starts in, as a share of the usual one, 0 to 1 | 1 |
    | motor_error | largest share by which a wheel turns faster or slower than told, 0 to 0.3 | 0.06 |
    | pallets | how many stand about, 0 to 8; the first three in the main aisle | 8 |

    An episode terminates when docked (within 0.2 m of the dock point and 0.6 rad of its axis), and is
    truncated after `max_steps`.

    Args:
        voxel: Resolution of the generated meshes in metres.
        variants: How many different carton stacks fill the racks.
        scene_seed: Seed of the fixed scenery.
        max_steps: Truncate an episode after this many steps.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (Gymnasium's own interface)
    render_mode = "rgb_array"

    def __init__(self, voxel: float, variants: int, scene_seed: int, max_steps: int):
        self.model = layout.build(voxel=voxel, variants=variants, scene_seed=scene_seed)
        self.data = mujoco.MjData(self.model)
        self._sensors = sensors.Sensors(self.model, self.data)
        self._wheels = [self.model.geom(name).id for name in ("left", "right")]
        self._state = np.zeros(mujoco.mj_stateSize(self.model, _STATE))
        self._max_steps = max_steps
        self._pictures: Any = None
        self.action_space = gymnasium.spaces.Box(
            np.array([-0.4, -_MAX_TURN]), np.array([_MAX_SPEED, _MAX_TURN]), dtype=np.float64
        )
        limits = np.full(sensors.SIZE, np.inf)
        limits[: sensors.RAYS] = sensors.MAX_RANGE
        limits[sensors.BEACON_BEARING], limits[sensors.BUMPER] = math.pi, 1.0
        lowest = -limits
        lowest[: sensors.RAYS] = lowest[sensors.BEACON_RANGE] = lowest[sensors.BUMPER] = 0.0
        self.observation_space = gymnasium.spaces.Box(lowest, limits, dtype=np.float64)
        # Runs every code path once, and makes np_random, before the world is snapshotted.
        self.reset(seed=0)
        self.step((0.0, 0.0))
        self.reset(seed=0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start an episode: draw pallets, start pose, friction, motor errors and noise levels.

        Args:
            seed: Seed of the new generator; None goes on with the present one.
            options: What is not left to the seed, by the names above.

        Returns:
            The first observation and an empty info.

        Raises:
            ValueError: There is no such option, or it is out of range.
        """
        chosen = _checked(options or {})
        super().reset(seed=seed)
        rng, model, data = self.np_random, self.model, self.data
        mujoco.mj_resetData(model, data)
        for index, (x, y, yaw) in enumerate(layout.draw_pallets(rng)):
            if index >= chosen.get("pallets", layout.PALLETS):
                break  # the reset has put it below the floor
            data.mocap_pos[index] = (x, y, 0.0)
            data.mocap_quat[index] = (math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2))
        yaw = rng.uniform(-math.pi, math.pi)
        x, y = rng.uniform(-6.3, -4.5), rng.uniform(-0.9, 0.9)
        if "start_spread" in chosen:
            x, y = -5.4 + chosen["start_spread"] * (x + 5.4), chosen["start_spread"] * y
        data.qpos[:3] = (x, y, layout.WHEEL_RADIUS)
        data.qpos[3:7] = (math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2))
        friction = rng.uniform(0.4, 1.0)
        model.geom_friction[self._wheels, 0] = chosen.get("friction", friction)
        # Tyre wear: each wheel really turns a few percent faster or slower than told.
        self._motor_gain = rng.uniform(0.94, 1.06, size=2).tolist()
        if "motor_error" in chosen:
            self._motor_gain = [1.0 + (gain - 1.0) * chosen["motor_error"] / 0.06 for gain in self._motor_gain]
        self._sensors.randomize(rng)
        mujoco.mj_forward(model, data)
        self._steps = self._collisions = 0
        self._touching = False
        self._facing_s: float | None = None
        self._bearing = math.inf
        self._measure()
        return self._sensors.read(rng), {}

    def _measure(self) -> None:
        """Bring the true distance, heading error and bearing of the dock up to date."""
        x, y = self._sensors.offset_to_dock()
        yaw = self._sensors.yaw()
        self._distance, self._heading_error = math.hypot(x, y), abs(yaw)
        before, self._bearing = self._bearing, abs(math.remainder(math.atan2(y, x) - yaw, math.tau))
        if self._facing_s is None and self._bearing <= _FACING:
            # A step is long for what is to be measured: the moment lies between two of them.
            early = (_FACING - self._bearing) / (before - self._bearing) if self._steps else 0.0
            self._facing_s = (self._steps - early) * _SUBSTEPS * self.model.opt.timestep

    def _docked(self) -> bool:
        return self._distance < 0.2 and self._heading_error < 0.6

    def step(self, action):
        """Drive for 0.1 s.

        Args:
            action: Forward speed in m/s and turn rate in rad/s, any sequence of two numbers.

        Returns:
            Observation, reward (metres gained towards the dock, -1 per collision, +10 for docking),
            terminated, truncated, and an empty info.

        Raises:
            ValueError: If the action is not two finite numbers.
        """
        speed, turn = (float(value) for value in action)
        if not (math.isfinite(speed) and math.isfinite(turn)):
            raise ValueError(f"the action must be two finite numbers, not {action!r}")
        speed = min(max(speed, -0.4), _MAX_SPEED)
        turn = min(max(turn, -_MAX_TURN), _MAX_TURN) * (layout.TRACK / 2)
        left, right = self._motor_gain
        self.data.ctrl[:] = (
            (speed - turn) * left / layout.WHEEL_RADIUS,
            (speed + turn) * right / layout.WHEEL_RADIUS,
        )
        mujoco.mj_step(self.model, self.data, _SUBSTEPS)
        self._steps += 1
        before = self._distance
        self._measure()
        observation = self._sensors.read(self.np_random)
        touching = observation[sensors.BUMPER] > 0.0
        hit = touching and not self._touching
        self._touching = touching
        self._collisions += hit
        docked = self._docked()
        reward = before - self._distance - 1.0 * hit + 10.0 * docked
        return observation, reward, docked, self._steps >= self._max_steps, {}

    @property
    def time(self) -> float:
        """Simulated time since the start of the episode, in seconds."""
        return self._steps * _SUBSTEPS * self.model.opt.timestep

    def render(self) -> np.ndarray:
        """Return a picture from above, (270, 480, 3) of uint8."""
        if self._pictures is None:
            import pictures  # what draws takes a second to load, and most rollouts draw nothing

            self._pictures = pictures.Pictures(self.model)
        return self._pictures.take(self.data, first=self._steps == 0)

    def state(self) -> np.ndarray:
        """Return the full simulation state (mjSTATE_INTEGRATION), float64: the ground truth."""
        mujoco.mj_getState(self.model, self.data, self._state, _STATE)
        return self._state.copy()

    def metrics(self) -> dict[str, float]:
        """Return the episode's scores: metres, radians, counts and seconds of simulated time.

        ``facing_s`` is how long the robot took to turn until it first had the dock within 0.5 rad ahead; all of the
        episode, if it never had.
        """
        return {
            "distance_to_dock": self._distance,
            "heading_error": self._heading_error,
            "collisions": float(self._collisions),
            "docked": float(self._docked()),
            "time_s": self.time,
            "facing_s": self.time if self._facing_s is None else self._facing_s,
        }


def _checked(options: dict[str, Any]) -> dict[str, float]:
    for name, value in options.items():
        if name not in _OPTIONS:
            raise ValueError(f"the warehouse has no option {name!r}: it has {', '.join(_OPTIONS)}")
        least, most = _OPTIONS[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most or (name == "pallets" and value != int(value)):
            raise ValueError(f"option {name} is a number from {least} to {most}, not {value!r}")
    return options


def make(*, voxel: float = 0.025, variants: int = 6, scene_seed: int = 7, max_steps: int = 600) -> Warehouse:
    """Build the warehouse; see `Warehouse` for the arguments."""
    return Warehouse(voxel, variants, scene_seed, max_steps)
