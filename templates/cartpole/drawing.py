"""A picture of the cart-pole, drawn by hand: its guest has no library for that."""

import math

WIDTH, HEIGHT = 320, 160
PIXELS_PER_M = 60.0
RAIL_Y = 126
SKY, RAIL, BOUND, LEAN, CART, POLE = (
    bytes.fromhex(colour) for colour in ("f4f5f7", "8a919c", "c0392b", "dfe3e8", "2c5f9e", "d98a29")
)


def picture(x, angle, pole_m, track_m, fallen_rad):
    """Draw the scene.

    Args:
        x: Where the cart is, in metres from the middle.
        angle: How far the pole leans, in radians; positive is to the right.
        pole_m: The pole's length, in metres.
        track_m: How far the cart may go to either side, in metres.
        fallen_rad: How far the pole may lean, in radians.

    Returns:
        (160, 320, 3) of uint8, as a memoryview.
    """
    pixels = bytearray(SKY * (WIDTH * HEIGHT))
    pivot = (WIDTH / 2 + x * PIXELS_PER_M, RAIL_Y - 16)
    length = pole_m * PIXELS_PER_M
    for lean in (-fallen_rad, fallen_rad):
        _line(pixels, pivot, lean, length, 2, LEAN)
    _fill(pixels, [(0, RAIL_Y), (WIDTH, RAIL_Y), (WIDTH, RAIL_Y + 3), (0, RAIL_Y + 3)], RAIL)
    for side in (-1, 1):
        bound = WIDTH / 2 + side * track_m * PIXELS_PER_M
        _fill(
            pixels, [(bound - 2, RAIL_Y - 8), (bound + 2, RAIL_Y - 8), (bound + 2, RAIL_Y), (bound - 2, RAIL_Y)], BOUND
        )
    left, right = pivot[0] - 18, pivot[0] + 18
    _fill(pixels, [(left, pivot[1]), (right, pivot[1]), (right, RAIL_Y - 2), (left, RAIL_Y - 2)], CART)
    _line(pixels, pivot, angle, length, 6, POLE)
    return memoryview(pixels).cast("B", (HEIGHT, WIDTH, 3))


def _line(pixels, start, angle, length, width, colour):
    """Draw a bar that leans by an angle."""
    (x, y), sin, cos = start, math.sin(angle), math.cos(angle)
    end_x, end_y = x + length * sin, y - length * cos
    across, up = cos * width / 2, sin * width / 2
    corners = [(x - across, y - up), (x + across, y + up), (end_x + across, end_y + up), (end_x - across, end_y - up)]
    _fill(pixels, corners, colour)


def _fill(pixels, corners, colour):
    """Fill a convex shape, row by row."""
    edges = list(zip(corners, corners[1:] + corners[:1], strict=True))
    top, bottom = min(y for _, y in corners), max(y for _, y in corners)
    for row in range(max(0, math.ceil(top - 0.5)), min(HEIGHT, math.ceil(bottom - 0.5))):
        middle = row + 0.5
        crossed = [
            ax + (bx - ax) * (middle - ay) / (by - ay)
            for (ax, ay), (bx, by) in edges
            if min(ay, by) <= middle < max(ay, by)
        ]
        if crossed:
            start = min(max(round(min(crossed)), 0), WIDTH)
            end = min(max(round(max(crossed)), start), WIDTH)
            pixels[(row * WIDTH + start) * 3 : (row * WIDTH + end) * 3] = colour * (end - start)
