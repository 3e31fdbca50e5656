"""Names of the files that a test leaves: made of its id, safe on every file system, and another one for each test."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

MOST_BYTES = 100
HASH_DIGITS = 16


def named(text: str, suffix: str = "") -> str:
    """Return a name of at most 100 bytes of ASCII, which ends with ``suffix``, and is another one for each text."""
    tail = f"-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:HASH_DIGITS]}{suffix}"
    words = re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("._-")
    room = MOST_BYTES - len(tail)
    if len(words) > room:
        half = room // 2 - 1
        words = f"{words[:half]}--{words[-half:]}"  # where it is, and what it is called
    return words + tail


def place(folder: Path, test: str, seed: int, *, run: int = 1, episode: int = 1, suffix: str) -> Path:
    """Return the path of a rollout's file: ``<folder>/<test>/<seed>.mcap``; its folder need not exist.

    Args:
        folder: That of all files.
        test: What the rollouts of one group have in common.
        seed: The rollout's.
        run: Which run of the seed it is, from 1; the name has it from 2.
        episode: Which episode of the rollout it is, likewise.
        suffix: What the name ends with.
    """
    further = (f"-run{run}" if run > 1 else "") + (f"-episode{episode}" if episode > 1 else "")
    return folder / named(test) / f"{seed}{further}{suffix}"
