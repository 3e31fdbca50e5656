"""A stack of boxes in contact, pushed sideways: what a restored position and velocity do not describe."""

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


class Boxes:
    """Observe all positions.

    Action, (2,): force on the lowest box along x in newtons; and, where not 0, go back to the start of the
    episode instead of stepping, by restoring time, positions and velocities, and nothing else.
    """

    def __init__(self):
        self.model = mujoco.MjModel.from_xml_string(MODEL)
        self.data = mujoco.MjData(self.model)
        self.reset(seed=0)

    def reset(self, *, seed=None, options=None):
        """Drop the boxes from places that the seed shifts, and let them come into contact."""
        rng = np.random.default_rng(seed)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[0::7] += rng.uniform(-0.02, 0.02, 3)
        mujoco.mj_step(self.model, self.data, 20)
        self._start = (self.data.time, self.data.qpos.copy(), self.data.qvel.copy())
        return self.data.qpos.copy(), {}

    def step(self, action):
        """Push for 0.005 s, or go back to the start."""
        force, back = action
        self.data.xfrc_applied[1, 0] = force
        if back:
            self.data.time, self.data.qpos[:], self.data.qvel[:] = self._start
        else:
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
