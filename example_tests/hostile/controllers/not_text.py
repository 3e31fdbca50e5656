"""Prints bytes that are no text: no UTF-8, a NUL, an escape, and a character in two pieces."""

import sys


def act(observation):
    for piece in (b"\xff\xfe\x00\x1b[2J", b"\xe2\x82", b"\xac"):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    return 0.0
