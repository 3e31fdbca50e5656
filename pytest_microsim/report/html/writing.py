"""A page on the disk: the whole of it, or what was there before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from microsim_vm import digests

from ...errors import ReportError
from ...results.model import RunResult
from .page import page


def write(path: Path, run: RunResult, *, base: Path | None = None, comparison: dict[str, Any] | None = None) -> None:
    """Write a report; a file of that name is replaced once the new one is complete.

    Args:
        path: The file; its folder is made.
        run: The results.
        base: The folder that paths in them are relative to (default: the file's).
        comparison: What :func:`~pytest_microsim.results.comparison.compare` says of it and an earlier run.

    Raises:
        ReportError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(page(run, base=base or path.parent, comparison=comparison))
        digests.write_atomically(path, text.encode(), durable=False)
    except OSError as error:
        raise ReportError(
            f"the report {path} cannot be written: {error.strerror or error}",
            hint="choose a file in a folder that you may write to, on a disk that has room",
        ) from error
