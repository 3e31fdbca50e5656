"""Videos of rollouts, as far as they fit into the page."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...results.model import RunResult

KINDS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif", ".png": "image/png", ".webp": "image/webp"}
ONE_BYTES, ALL_BYTES = 8 << 20, 48 << 20


class Medium(NamedTuple):
    """A video, or a picture.

    Attributes:
        group, rollout: Whose it is, by their indices.
        kind: Its media type.
        data: The file's bytes, in base64.
    """

    group: int
    rollout: int
    kind: str
    data: str


def media(run: RunResult, base: Path) -> Iterator[Medium]:
    """Yield what fits, those of rollouts that did not pass first; what cannot be read is left to its path.

    Args:
        run: The results.
        base: The folder that paths in them are relative to.
    """
    rollouts = [
        (rollout.outcome == "passed", at, index, rollout.files["video"])
        for at, group in enumerate(run.groups)
        for index, rollout in enumerate(group.rollouts)
        if "video" in rollout.files
    ]
    left = ALL_BYTES
    for _, at, index, name in sorted(rollouts):
        kind = KINDS.get(Path(name).suffix.lower())
        data = _content(base / name, min(left, ONE_BYTES)) if kind else None
        if kind and data is not None:
            left -= len(data)
            yield Medium(at, index, kind, base64.b64encode(data).decode("ascii"))


def _content(path: Path, limit: int) -> bytes | None:
    """Read a regular file that is not larger than the limit; not a pipe, which would have us wait."""
    try:
        if not path.is_file() or path.stat().st_size > limit:
            return None
        return path.read_bytes()
    except (OSError, ValueError):  # ValueError: a path with NUL in it
        return None
