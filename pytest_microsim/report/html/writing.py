"""A page on the disk: the whole of it, or what was there before."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

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
    partial: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        partial = Path(name)
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(page(run, base=base or path.parent, comparison=comparison))
        # mkstemp's files are their owner's alone; a report is as public as any file that its user makes.
        umask = os.umask(0)
        os.umask(umask)
        partial.chmod(0o666 & ~umask)
        partial.replace(path)
    except OSError as error:
        raise ReportError(
            f"the report {path} cannot be written: {error.strerror or error}",
            hint="choose a file in a folder that you may write to, on a disk that has room",
        ) from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)
