"""A stack of boxes in contact, pushed sideways: what a restored position and velocity do not describe."""

import gymnasium
import mujoco
import numpy as np

BODIES = "".join(
    f'<body pos="{0.02 * index} 0 {0.11 + 0.21 * index}"><freejoint/>'
    f'<geom type="box" size=".1 .1 .1" mass="1" friction=".6"/></body>'
    for index in range(3)
)
MODEL = f"""<mujoco>
  <option timestep="0.005"/>
  <worldbody><geom type="plane" size="5 5 .1"/>{BODIES}</worldbody>
</mujoco>"""
STATE = mujoco.mjtState.mjSTATE_INTEGRATION


class Boxes(gymnasium.Env):
    """Push the lowest box with a force along x, in newtons; observe all positions.

    Args:
        restore_at: In `step` number `restore_at` and only where `forget` is set in the options of a reset:
            restore the start from positions and velocities alone.
    """

    def __init__(self):
        self.model = mujoco.MjModel.from_xml_string(MODEL)
        self.data = mujoco.MjData(self.model)
        self.action_space = gymnasium.spaces.Box(-20.0, 20.0, (1,), dtype=np.float64)
        size = self.model.nq
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), dtype=np.float64)
        self.reset(seed=0)

    def reset(self, *, seed=None, options=None):
        """Drop the boxes from places that the seed shifts, and let them come into contact."""
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[0::7] += self.np_random.uniform(-0.02, 0.02, 3)
        mujoco.mj_step(self.model, self.data, 20)
        return self.data.qpos.copy(), {}

    def step(self, action):
        """Push for 0.005 s; the action 20.0 rewinds to the start, by position and velocity only."""
        self.data.xfrc_applied[1, 0] = float(action[0])
        mujoco.mj_step(self.model, self.data)
        return self.data.qpos.copy(), float(self.data.qpos[0]), False, False, {}

    def state(self):
        """Return mjSTATE_INTEGRATION."""
        state = np.zeros(mujoco.mj_stateSize(self.model, STATE))
        mujoco.mj_getState(self.model, self.data, state, STATE)
        return state


def make():
    """Build the boxes."""
    return Boxes()
