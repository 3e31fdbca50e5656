"""Pictures of the warehouse from above, drawn by Mesa in software: no screen, no graphics card."""

from __future__ import annotations

import mujoco
import numpy as np
from mujoco.osmesa import GLContext

WIDTH, HEIGHT = 480, 270
_MOST_SHAPES = 4000
_TRAIL = 600
_RED = np.array([0.9, 0.2, 0.1, 1.0], dtype=np.float32)


class Pictures:
    """Draws one model, and where its robot has been since the pictures of an episode began.

    Args:
        model: The warehouse.

    Raises:
        ImportError: The guest has no OSMesa: Debian's package libosmesa6.
    """

    def __init__(self, model: mujoco.MjModel) -> None:
        model.vis.global_.offwidth, model.vis.global_.offheight = WIDTH, HEIGHT
        model.vis.quality.shadowsize = model.vis.quality.offsamples = 0
        # A plan: with a vanishing point, racks would hide what passes beside them.
        model.vis.global_.fovy = 8.3
        # Light from everywhere: the scene's own lamp, right below the camera, would wash out the middle of the aisle.
        model.vis.headlight.ambient[:], model.vis.headlight.diffuse[:] = 0.6, 0.3
        model.vis.headlight.specular[:] = model.light_specular[:] = 0.0
        model.light_diffuse[:] = 0.2
        self._model = model
        self._gl = GLContext(WIDTH, HEIGHT)
        self._gl.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(model, _MOST_SHAPES)
        self._shown = mujoco.MjvOption()
        self._shown.geomgroup[:] = 1
        self._camera = mujoco.MjvCamera()
        self._camera.orthographic = 1
        self._camera.lookat[:] = (0.0, 0.0, 0.0)
        self._camera.distance, self._camera.azimuth, self._camera.elevation = 10.8, 90.0, -89.9
        self._trail: list[tuple[float, float]] = []

    def take(self, data: mujoco.MjData, *, first: bool) -> np.ndarray:
        """Draw the present.

        Args:
            data: The simulation.
            first: It is the first picture of an episode: the trail begins here.

        Returns:
            (270, 480, 3) of uint8.
        """
        x, y = (float(value) for value in data.qpos[:2])
        self._trail = [(x, y)] if first else [*self._trail[-_TRAIL:], (x, y)]
        mujoco.mjv_updateScene(
            self._model, data, self._shown, None, self._camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene
        )
        for spot in self._trail:
            self._add(mujoco.mjtGeom.mjGEOM_SPHERE, [0.035, 0.0, 0.0], (*spot, 0.5), np.eye(3))
        # The chassis is round: an arrow says where it is heading.
        heading = data.xmat[self._model.body("robot").id].reshape(3, 3)
        ahead = np.column_stack([-heading[:, 2], heading[:, 1], heading[:, 0]])
        self._add(mujoco.mjtGeom.mjGEOM_ARROW, [0.05, 0.05, 0.9], (x, y, 0.5), ahead)
        view = mujoco.MjrRect(0, 0, WIDTH, HEIGHT)
        mujoco.mjr_render(view, self._scene, self._context)
        picture = np.empty((HEIGHT, WIDTH, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(picture, None, view, self._context)
        return picture[::-1]

    def _add(self, kind: mujoco.mjtGeom, size: list[float], at: tuple[float, ...], turned: np.ndarray) -> None:
        if self._scene.ngeom < self._scene.maxgeom:
            shape = self._scene.geoms[self._scene.ngeom]
            mujoco.mjv_initGeom(shape, kind, np.array(size), np.array(at), turned.ravel(), _RED)
            self._scene.ngeom += 1
