"""The warehouse as a MuJoCo model: hall, racks with stock, loose pallets, dock and robot.

Axes: x points from the start area (west) to the dock (east), y to the north, z up; metres and radians.
Everything that never moves sits on the world body, so MuJoCo collides none of it with itself.
"""

from __future__ import annotations

import math

import meshes
import mujoco
import numpy as np

HALL_X, HALL_Y = 7.0, 5.0
AISLE_HALF_WIDTH = 1.6
RACK_X = (-5.0, -2.6, -0.2, 2.2)
RACK_DEPTH, RACK_LENGTH, LEVELS = 1.0, 3.2, (0.9, 1.9, 2.9)
DOCK_ORIGIN = (6.7, 0.0)
# The robot's centre when docked: its bumper is then 0.1 m from the charging nose.
DOCK_POINT = (DOCK_ORIGIN[0] - 0.3, 0.0)
PALLETS = 8
WHEEL_RADIUS, TRACK, CHASSIS_RADIUS = 0.08, 0.36, 0.25

# Geom groups: the range sensors look at group 2 only.
GROUP_FLOOR, GROUP_ROBOT, GROUP_SEEN, GROUP_SOLID, GROUP_SCENERY = range(5)
# Contact bits: wheels meet the floor, the chassis meets obstacles, nothing else meets anything.
_FLOOR, _OBSTACLE, _SCENERY = {"contype": 1}, {"contype": 2}, {"contype": 0}

_ROBOT_AND_HALL = f"""
<mujoco model="warehouse">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.02" integrator="implicitfast" cone="pyramidal" iterations="10" tolerance="1e-8"/>
  <size memory="4M"/>
  <worldbody>
    <light pos="0 0 9" dir="0 0 -1"/>
    <camera name="overview" pos="-11 -9 11" xyaxes="0.66 -0.75 0 0.5 0.44 0.75"/>
    <geom name="floor" type="plane" size="{HALL_X} {HALL_Y} 1" contype="1" conaffinity="0" rgba=".6 .6 .6 1"/>
    <body name="robot" pos="0 0 {WHEEL_RADIUS}">
      <freejoint name="robot"/>
      <geom name="chassis" type="cylinder" size="{CHASSIS_RADIUS} 0.08" pos="0 0 .07" mass="12" group="1"
            contype="0" conaffinity="2" friction="0.2" rgba=".1 .4 .8 1"/>
      <!-- Casters: frictionless, and 2 mm off the floor so that the wheels keep their grip. -->
      <geom type="sphere" size="0.04" pos="0.18 0 -0.038" mass="0.3" group="1" condim="1" priority="1"
            contype="0" conaffinity="1"/>
      <geom type="sphere" size="0.04" pos="-0.18 0 -0.038" mass="0.3" group="1" condim="1" priority="1"
            contype="0" conaffinity="1"/>
      <site name="bumper" type="cylinder" size="{CHASSIS_RADIUS + 0.05} 0.1" pos="0 0 .07" group="4"/>
      <body name="left" pos="0 {TRACK / 2} 0">
        <joint name="left" axis="0 1 0" armature="0.01" damping="0.01"/>
        <geom name="left" type="sphere" size="{WHEEL_RADIUS}" mass="0.5" group="1" priority="1"
              contype="0" conaffinity="1" rgba=".1 .1 .1 1"/>
      </body>
      <body name="right" pos="0 {-TRACK / 2} 0">
        <joint name="right" axis="0 1 0" armature="0.01" damping="0.01"/>
        <geom name="right" type="sphere" size="{WHEEL_RADIUS}" mass="0.5" group="1" priority="1"
              contype="0" conaffinity="1" rgba=".1 .1 .1 1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <velocity joint="left" kv="1.5" forcerange="-1.5 1.5"/>
    <velocity joint="right" kv="1.5" forcerange="-1.5 1.5"/>
  </actuator>
  <sensor><touch site="bumper"/></sensor>
</mujoco>
"""


class _Builder:
    """Adds the parts of the warehouse to a MuJoCo specification."""

    def __init__(self, voxel: float, variants: int, scene_seed: int):
        self.spec = mujoco.MjSpec.from_string(_ROBOT_AND_HALL)
        self.rng = np.random.default_rng(scene_seed)
        self.pieces: dict[str, list[str]] = {}
        for name in ("pallet", "crate", "drum", "fork", "cradle"):
            self._add_solid(name, getattr(meshes, name)(voxel))
        for index in range(variants):
            self._add_solid(f"stack{index}", meshes.stack(voxel, self.rng))

    def _add_solid(self, name: str, solid: meshes.Solid) -> None:
        """Decompose a solid; its pieces become mesh assets called name_0, name_1, ..."""
        self.pieces[name] = []
        for index, points in enumerate(meshes.decompose(solid, max_pieces=24, tolerance=0.02)):
            piece = f"{name}_{index}"
            self.spec.add_mesh(name=piece, uservert=points.ravel().tolist())
            self.pieces[name].append(piece)

    def box(self, body, size, pos, group, bits, rgba) -> None:
        """Add a box; `size` is its full extent and `pos` its centre."""
        half = [extent / 2 for extent in size]
        kind = mujoco.mjtGeom.mjGEOM_BOX
        body.add_geom(type=kind, size=half, pos=pos, group=group, conaffinity=0, rgba=rgba, **bits)

    def solid(self, body, name, pos, yaw, group, bits, rgba) -> None:
        """Add all pieces of a decomposed solid, standing at `pos` and turned by `yaw`."""
        quat = [math.cos(yaw / 2), 0, 0, math.sin(yaw / 2)]
        for piece in self.pieces[name]:
            body.add_geom(
                type=mujoco.mjtGeom.mjGEOM_MESH, meshname=piece, pos=pos, quat=quat, group=group,
                conaffinity=0, rgba=rgba, **bits,
            )  # fmt: skip

    def hall(self) -> None:
        """Add the four walls."""
        grey, world = [0.8, 0.8, 0.75, 0.3], self.spec.worldbody
        for sign in (-1, 1):
            size, pos = [0.1, 2 * HALL_Y, 1.0], [sign * (HALL_X + 0.05), 0, 0.5]
            self.box(world, size, pos, GROUP_SEEN, _OBSTACLE, grey)
            size, pos = [2 * HALL_X, 0.1, 1.0], [0, sign * (HALL_Y + 0.05), 0.5]
            self.box(world, size, pos, GROUP_SEEN, _OBSTACLE, grey)

    def rack(self, x: float, side: int) -> None:
        """Add a rack north (side 1) or south (-1) of the aisle: posts, boards, stock and a kick plate."""
        world, blue, wood = self.spec.worldbody, [0.15, 0.3, 0.6, 1], [0.7, 0.55, 0.35, 1]
        y = side * (AISLE_HALF_WIDTH + RACK_LENGTH / 2)
        # The kick plate closes the rack below: the one part of it that robot and sensors meet.
        self.box(world, [RACK_DEPTH, RACK_LENGTH, 0.5], [x, y, 0.25], GROUP_SEEN, _OBSTACLE, blue)
        for dx in (-0.47, 0.47):
            for dy in np.linspace(-RACK_LENGTH / 2 + 0.04, RACK_LENGTH / 2 - 0.04, 4):
                self.box(world, [0.06, 0.06, 3.8], [x + dx, y + dy, 1.9], GROUP_SCENERY, _SCENERY, blue)
        names = [name for name in self.pieces if name not in ("pallet", "fork", "cradle")]
        for level in LEVELS:
            size = [RACK_DEPTH, RACK_LENGTH, 0.04]
            self.box(world, size, [x, y, level - 0.02], GROUP_SCENERY, _SCENERY, wood)
            for dy in (-0.8, 0.8):
                name = names[self.rng.integers(len(names))]
                yaw = math.pi / 2 + self.rng.uniform(-0.05, 0.05)
                rgba = [*self.rng.uniform(0.3, 0.8, 3), 1]
                self.solid(world, name, [x, y + dy, level], yaw, GROUP_SCENERY, _SCENERY, rgba)

    def pallet(self, index: int) -> None:
        """Add a loose pallet with its load: moved between episodes, immovable within one."""
        body = self.spec.worldbody.add_body(name=f"pallet{index}", mocap=True, pos=[0, 0, -5 - index])
        wood = [0.7, 0.5, 0.3, 1]
        self.solid(body, "pallet", [0, 0, 0], 0.0, GROUP_SOLID, _OBSTACLE, wood)
        self.box(body, [1.16, 0.76, 0.5], [0, 0, 0.394], GROUP_SEEN, _OBSTACLE, [0.75, 0.65, 0.5, 1])

    def dock(self) -> None:
        """Add the dock and, in the corners beside it, two parked fork carriages."""
        world, (x, y) = self.spec.worldbody, DOCK_ORIGIN
        self.solid(world, "cradle", [x, y, 0], 0.0, GROUP_SEEN, _OBSTACLE, [0.2, 0.7, 0.3, 1])
        for side in (-1, 1):
            self.solid(world, "fork", [6.2, side * 4.2, 0], 0.0, GROUP_SEEN, _OBSTACLE, [0.8, 0.3, 0.1, 1])


def build(*, voxel: float, variants: int, scene_seed: int) -> mujoco.MjModel:
    """Generate every mesh and compile the warehouse.

    Args:
        voxel: Resolution of the generated meshes in metres; the loading time grows as its third power.
        variants: How many different carton stacks fill the racks.
        scene_seed: Seed of the fixed scenery (stock on the racks), not of episodes.

    Returns:
        The compiled model, with the bodies `robot` and `pallet0` ... `pallet7` (mocap, in that order).
    """
    builder = _Builder(voxel, variants, scene_seed)
    builder.hall()
    for x in RACK_X:
        for side in (-1, 1):
            builder.rack(x, side)
    for index in range(PALLETS):
        builder.pallet(index)
    builder.dock()
    return builder.spec.compile()


def draw_pallets(rng: np.random.Generator) -> list[tuple[float, float, float]]:
    """Draw (x, y, yaw) for each loose pallet.

    Three stand in the main aisle, one beside each of three racks and clearly off its middle line: at least
    1.1 m stay free on the other side, so the dock can always be reached. The rest stand in side aisles.
    """
    poses = []
    for x in RACK_X[1:]:
        side = rng.choice((-1.0, 1.0))
        poses.append((x + rng.uniform(-0.2, 0.2), side * rng.uniform(0.35, 1.0), rng.uniform(-0.4, 0.4)))
    for x in (-3.8, -1.4, 1.0):
        side = rng.choice((-1.0, 1.0))
        poses.append((x, side * rng.uniform(2.6, 4.0), math.pi / 2 + rng.uniform(-0.08, 0.08)))
    for side in (-1.0, 1.0):
        poses.append((4.3 + rng.uniform(-0.3, 0.3), side * rng.uniform(2.6, 3.6), rng.uniform(-3.1, 3.1)))
    return poses
