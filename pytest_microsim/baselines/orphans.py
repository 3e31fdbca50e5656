"""Baselines that belong to no test any more."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .store import FOLDER, SUFFIX


def orphans(files: Mapping[str, Sequence[str]], roots: Iterable[Path]) -> list[Path]:
    """Return baselines without a test, in order.

    That is one whose test file has no such test, or is no more. A test file that is there and was not collected is
    left alone.

    Args:
        files: All tests that were collected: their baselines, by the test file.
        roots: Directories that were collected as a whole.
    """
    known = {Path(path) for paths in files.values() for path in paths}
    found = set()
    for folder in _folders(files, roots):
        for of_file in _subfolders(folder):
            test_file = folder.parent / of_file.name
            if str(test_file) in files or not test_file.exists():
                found |= {path for path in of_file.glob(f"*{SUFFIX}") if path not in known}
    return sorted(found)


def _folders(files: Iterable[str], roots: Iterable[Path]) -> set[Path]:
    found = {Path(file).parent / FOLDER for file in files}
    for root in roots:
        for directory, names, _ in os.walk(root):
            names[:] = [name for name in names if not name.startswith((".", "_")) and name != "node_modules"]
            if FOLDER in names:
                found.add(Path(directory) / FOLDER)
                names.remove(FOLDER)
    return found


def _subfolders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
