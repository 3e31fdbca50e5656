"""The recording that drives a scenario, read once for the file's check and for all of its seeds."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .spec import RecordingFile

if TYPE_CHECKING:
    from ..trajectories.recordings import Recording


def opened(folder: Path, written: str | RecordingFile) -> Recording:
    """Read a scenario's recording.

    Args:
        folder: The scenario's.
        written: What its file says.

    Raises:
        RecordingError: It cannot be used.
    """
    chosen = RecordingFile(file=written) if isinstance(written, str) else written
    file = folder / chosen.file
    return _read(file, chosen, file.stat().st_mtime_ns if file.exists() else 0)


@functools.lru_cache(maxsize=4)
def _read(file: Path, chosen: RecordingFile, changed_ns: int) -> Recording:
    from ..trajectories.recordings import Recording

    how: dict[str, Any] = {name: getattr(chosen, name) for name in chosen.__struct_fields__ if name != "file"}
    return Recording.open(file, **how)
