"""Procedural solids and their approximate convex decomposition.

MuJoCo collides convex hulls only, so a pallet or an open crate must be cut into convex pieces first. A solid
is drawn into a voxel grid, then the piece that fills its hull worst is cut by the axis-aligned plane that
leaves the least empty hull volume, until every piece is nearly convex. MuJoCo's compiler turns the pieces'
points into hulls.

All arithmetic is on small integers held in float32, hence exact: the cuts are the same on every CPU.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

Box = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]


def _directions(reach: int) -> np.ndarray:
    """Return the primitive integer directions within `reach`, one of each opposite pair: (3, n) float32."""
    found = []
    for vector in itertools.product(range(-reach, reach + 1), repeat=3):
        if vector > (0, 0, 0) and math.gcd(*vector) == 1:
            found.append(vector)
    return np.array(found, dtype=np.float32).T.copy()


_HULL_NORMALS = _directions(2)
_VERTEX_DIRECTIONS = _directions(3)


class Solid:
    """A solid drawn into voxels.

    Args:
        size: Extent along x, y, z in metres; the solid is centred in x and y and stands on z = 0.
        voxel: Edge of a voxel in metres.
    """

    def __init__(self, size: tuple[float, float, float], voxel: float):
        self.voxel = voxel
        self.cells = np.zeros([max(1, round(extent / voxel)) for extent in size], dtype=bool)
        self.origin = np.array([-size[0] / 2, -size[1] / 2, 0.0])

    def _slices(self, box: Box) -> tuple[slice, ...]:
        bounds = []
        for (low, high), start, count in zip(box, self.origin, self.cells.shape, strict=True):
            first = min(max(round((low - start) / self.voxel), 0), count - 1)
            bounds.append(slice(first, max(first + 1, round((high - start) / self.voxel))))
        return tuple(bounds)

    def add(self, box: Box) -> Solid:
        """Fill a box given as ((x0, x1), (y0, y1), (z0, z1)) in metres; at least one voxel thick."""
        self.cells[self._slices(box)] = True
        return self

    def cut(self, box: Box) -> Solid:
        """Empty a box given as in `add`."""
        self.cells[self._slices(box)] = False
        return self

    def add_cylinder(self, radius: float, z0: float, z1: float) -> Solid:
        """Fill an upright cylinder around the z axis; metres."""
        x, y, z = (
            (np.arange(count) + 0.5) * self.voxel + start
            for count, start in zip(self.cells.shape, self.origin, strict=True)
        )
        disc = x[:, None] ** 2 + y[None, :] ** 2 <= radius**2
        self.cells |= disc[:, :, None] & ((z > z0) & (z < z1))[None, None, :]
        return self


@dataclass
class _Piece:
    """A part of a solid: the voxels `cells` at the integer `offset`, and the empty volume of its hull."""

    offset: np.ndarray
    cells: np.ndarray
    waste: int


def _hull_waste(cells: np.ndarray) -> int:
    """Count the empty voxels inside the discrete hull (98 half-spaces) of the filled ones."""
    filled = np.argwhere(cells)
    if len(filled) in (0, cells.size):
        return 0
    along = filled.astype(np.float32) @ _HULL_NORMALS
    low, high = along.min(axis=0), along.max(axis=0)
    empty = np.argwhere(~cells).astype(np.float32) @ _HULL_NORMALS
    return int(np.count_nonzero(((empty >= low) & (empty <= high)).all(axis=1)))


def _trim(cells: np.ndarray, offset: np.ndarray) -> _Piece | None:
    """Shrink a block to its filled voxels; None if it has none."""
    filled = np.argwhere(cells)
    if not len(filled):
        return None
    low, high = filled.min(axis=0), filled.max(axis=0) + 1
    block = cells[tuple(slice(a, b) for a, b in zip(low, high, strict=True))]
    return _Piece(offset + low, block, _hull_waste(block))


def _halves(piece: _Piece, axis: int, at: int) -> list[_Piece]:
    """Cut a piece in two across `axis` before voxel `at`."""
    shift = np.zeros(3, dtype=int)
    shift[axis] = at
    first, second = np.split(piece.cells, [at], axis=axis)
    return [half for half in (_trim(first, piece.offset), _trim(second, piece.offset + shift)) if half]


def _cuts(cells: np.ndarray, axis: int, most: int) -> list[int]:
    """Return the promising cut positions: where the cross-section changes most, at most `most` of them."""
    moved = np.swapaxes(cells, 0, axis)
    change = np.count_nonzero(moved[1:] != moved[:-1], axis=(1, 2))
    order = np.argsort(-change, kind="stable")[:most]
    return [int(index) + 1 for index in order if change[index]]


def decompose(solid: Solid, *, max_pieces: int, tolerance: float, cuts_per_axis: int = 5) -> list[np.ndarray]:
    """Cut a solid into nearly convex pieces.

    Args:
        solid: What to cut.
        max_pieces: Never return more pieces than this.
        tolerance: A piece is convex enough when the empty part of its hull is below this share of the solid.
        cuts_per_axis: How many planes to try along each axis for every cut.

    Returns:
        One (n, 3) float64 array of points in metres per piece; its convex hull is the piece.
    """
    allowed = tolerance * np.count_nonzero(solid.cells)
    whole = _trim(solid.cells, np.zeros(3, dtype=int))
    if whole is None:
        return []
    pieces = [whole]
    while len(pieces) < max_pieces:
        worst = max(range(len(pieces)), key=lambda index: pieces[index].waste)
        if pieces[worst].waste <= allowed:
            break
        candidates = [
            _halves(pieces[worst], axis, at)
            for axis in range(3)
            for at in _cuts(pieces[worst].cells, axis, cuts_per_axis)
        ]
        best = min(candidates, key=lambda halves: sum(half.waste for half in halves))
        pieces[worst : worst + 1] = best
    return [_corners(piece) * solid.voxel + solid.origin for piece in pieces]


def _corners(piece: _Piece) -> np.ndarray:
    """Return the outermost voxel corners of a piece, in voxels, as (n, 3) float64."""
    filled = np.argwhere(piece.cells)
    offsets = np.array(list(itertools.product((0, 1), repeat=3)))
    points = np.unique((filled[:, None, :] + offsets).reshape(-1, 3), axis=0)
    along = points.astype(np.float32) @ _VERTEX_DIRECTIONS
    outermost = np.unique(np.concatenate([along.argmin(axis=0), along.argmax(axis=0)]))
    # A box has many points at the same support value: its eight corners must all be there.
    low, high = points.min(axis=0), points.max(axis=0)
    at_corner = ((points == low) | (points == high)).all(axis=1)
    outermost = np.union1d(outermost, np.flatnonzero(at_corner))
    return (points[outermost] + piece.offset).astype(np.float64)


def pallet(voxel: float) -> Solid:
    """Draw a EUR pallet, 1.2 x 0.8 x 0.144 m: three skids, nine blocks, three stringers, five deck boards."""
    solid = Solid((1.2, 0.8, 0.144), voxel)
    for y in (-0.35, 0.0, 0.35):
        solid.add(((-0.6, 0.6), (y - 0.05, y + 0.05), (0.0, 0.022)))
        for x in (-0.5275, 0.0, 0.5275):
            solid.add(((x - 0.0725, x + 0.0725), (y - 0.05, y + 0.05), (0.0, 0.1)))
    for x in (-0.5275, 0.0, 0.5275):
        solid.add(((x - 0.0725, x + 0.0725), (-0.4, 0.4), (0.1, 0.122)))
    for y in (-0.3275, -0.17, 0.0, 0.17, 0.3275):
        solid.add(((-0.6, 0.6), (y - 0.06, y + 0.06), (0.122, 0.144)))
    return solid


def crate(voxel: float) -> Solid:
    """Draw an open crate, 0.8 x 0.6 x 0.5 m, with two hand holes."""
    solid = Solid((0.8, 0.6, 0.5), voxel).add(((-0.4, 0.4), (-0.3, 0.3), (0.0, 0.5)))
    solid.cut(((-0.36, 0.36), (-0.26, 0.26), (0.04, 0.5)))
    return solid.cut(((-0.4, 0.4), (-0.08, 0.08), (0.34, 0.42)))


def stack(voxel: float, rng: np.random.Generator) -> Solid:
    """Draw a unit load of 1.0 x 0.7 x 0.9 m: random cartons in three layers, each on the one below."""
    solid = Solid((1.0, 0.7, 0.9), voxel)
    floor = ((-0.5, 0.5), (-0.35, 0.35))
    for layer in range(3):
        x_cut, y_cut = rng.uniform(-0.2, 0.2), rng.uniform(-0.12, 0.12)
        for low_x, high_x in ((floor[0][0], x_cut), (x_cut, floor[0][1])):
            for low_y, high_y in ((floor[1][0], y_cut), (y_cut, floor[1][1])):
                height = rng.uniform(0.2, 0.3)
                solid.add(((low_x, high_x), (low_y, high_y), (0.3 * layer, 0.3 * layer + height)))
        shrink = rng.uniform(0.8, 1.0, 2)
        floor = (
            (floor[0][0] * shrink[0], floor[0][1] * shrink[0]),
            (floor[1][0] * shrink[1], floor[1][1] * shrink[1]),
        )
    return solid


def drum(voxel: float) -> Solid:
    """Draw a steel drum, 0.6 m wide and 0.86 m high, with two rolling hoops and a recessed lid."""
    solid = Solid((0.64, 0.64, 0.86), voxel).add_cylinder(0.29, 0.0, 0.86)
    for z in (0.0, 0.27, 0.55, 0.82):
        solid.add_cylinder(0.32, z, z + 0.04)
    lid = Solid((0.64, 0.64, 0.86), voxel).add_cylinder(0.25, 0.82, 0.86)
    solid.cells &= ~lid.cells
    return solid


def fork(voxel: float) -> Solid:
    """Draw a fork carriage, 1.1 x 0.9 x 0.9 m: two L-shaped tines on a ladder-like back rest."""
    solid = Solid((1.1, 0.9, 0.9), voxel)
    for y in (-0.28, 0.28):
        solid.add(((-0.55, 0.5), (y - 0.06, y + 0.06), (0.0, 0.05)))
        solid.add(((0.44, 0.5), (y - 0.06, y + 0.06), (0.0, 0.6)))
    for z in (0.15, 0.45, 0.8):
        solid.add(((0.5, 0.55), (-0.45, 0.45), (z, z + 0.1)))
    for y in (-0.42, 0.0, 0.42):
        solid.add(((0.5, 0.55), (y - 0.03, y + 0.03), (0.15, 0.9)))
    return solid


def cradle(voxel: float) -> Solid:
    """Draw the dock's housing, 0.5 x 1.3 x 0.5 m: a back wall with a charging nose and two flared cheeks."""
    solid = Solid((0.5, 1.3, 0.5), voxel).add(((0.15, 0.25), (-0.65, 0.65), (0.0, 0.5)))
    solid.add(((0.05, 0.15), (-0.1, 0.1), (0.1, 0.2)))
    for step in range(8):
        x = 0.15 - 0.05 * step
        y = 0.5 + 0.015 * step
        for low, high in ((y, y + 0.06), (-y - 0.06, -y)):
            solid.add(((x - 0.05, x), (low, high), (0.0, 0.3)))
    return solid
