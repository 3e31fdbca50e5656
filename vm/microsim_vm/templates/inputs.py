"""The files of a template whose bytes go into the image."""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from microsim_vm.templates.checks import Complaint

WORLD_TARGET = "/opt/microsim/world"
MAX_FILES = 100_000

# Written by tools beside the sources; they would change the digest without changing the world.
_JUNK_FOLDERS = frozenset(
    ("__pycache__", ".git", ".hg", ".svn", ".idea", ".vscode", ".mypy_cache", ".pytest_cache", ".ruff_cache")
)
_JUNK_FILES = ("*.pyc", "*~", ".*.sw[a-p]", ".#*", "#*#", ".DS_Store", ".nfs*")
_OWN_FILES = frozenset(("template.yaml", "template.lock"))


class InputFile(NamedTuple):
    """One file of the image.

    Attributes:
        label: ``world/<path in the folder>`` or ``files/<path in the guest>``: the same on every machine.
        path: The file on the host.
        mode: Its permissions in the image.
    """

    label: str
    path: Path
    mode: int


def target_of(label: str) -> str:
    """Return the absolute path in the guest of a label."""
    kind, _, rest = label.partition("/")
    return f"{WORLD_TARGET}/{rest}" if kind == "world" else f"/{rest}"


class Entry(Protocol):
    """What is needed of a ``files`` entry."""

    @property
    def source(self) -> Path:
        """File or folder on the host."""

    @property
    def target(self) -> str:
        """Absolute path in the guest."""

    @property
    def mode(self) -> str | None:
        """Octal permissions, for a single file."""


def collect(world_folders: Iterable[Path], entries: Sequence[Entry]) -> list[InputFile]:
    """Return all files of a template, sorted by label; a later world folder's file hides an earlier one's.

    Raises:
        Complaint: See :func:`of_folder` and :func:`of_entry`; or two files want the same place.
    """
    found: dict[str, InputFile] = {}
    for folder in world_folders:
        found.update((file.label, file) for file in of_folder(folder, "world", own=True))
    for entry in entries:
        for file in of_entry(entry):
            if file.label in found:
                place, first = target_of(file.label), found[file.label].path
                raise Complaint(
                    f"two entries of files write {place}: {first} and {file.path}",
                    "remove one of them, or give it another target",
                )
            found[file.label] = file
    for label in found:
        above = os.path.dirname(label)
        while above:
            if above in found:
                raise Complaint(
                    f"{target_of(above)} would be a file and a folder: {found[above].path} is a file, "
                    f"{found[label].path} is below it",
                    "rename one of them",
                )
            above = os.path.dirname(above)
    return [found[label] for label in sorted(found)]


def of_entry(entry: Entry) -> Iterator[InputFile]:
    """Yield the files of one ``files`` entry.

    Raises:
        Complaint: The source is missing or not a file or folder, or a folder was given a mode.
    """
    label = "files" + entry.target
    try:
        status = entry.source.stat()
    except OSError as error:
        raise Complaint(
            f"source {entry.source} cannot be read: {error.strerror}",
            "paths are relative to the file that writes them",
        ) from None
    if stat.S_ISDIR(status.st_mode):
        if entry.mode is not None:
            raise Complaint(
                f"mode {entry.mode} is for a single file, and {entry.source} is a folder",
                "leave mode out: files keep their executable bit",
            )
        yield from of_folder(entry.source, label, own=False)
        return
    _regular(entry.source, status)
    yield InputFile(label, entry.source, int(entry.mode, 8) if entry.mode else _mode(status))


def of_folder(folder: Path, label: str, *, own: bool) -> Iterator[InputFile]:
    """Yield the files below a folder, without what editors and tools leave there; empty folders do not count.

    Args:
        folder: Where to look.
        label: Prefix of the labels.
        own: True for a template's folder: its ``template.yaml`` and ``template.lock`` are left out.

    Raises:
        Complaint: A link leaves the folder or leads to a folder, a file is not regular or has a name that is
            not printable text, or there are too many files.
    """
    root = folder.resolve()
    pending = [(folder, label)]
    count = 0
    while pending:
        current, prefix = pending.pop()
        try:
            with os.scandir(current) as scan:
                children = list(scan)
        except OSError as error:
            raise Complaint(f"folder {current} cannot be read: {error.strerror}") from None
        for child in children:
            path = current / child.name
            if child.is_dir(follow_symlinks=False):
                if child.name not in _JUNK_FOLDERS:
                    pending.append((path, f"{prefix}/{child.name}"))
                continue
            if any(fnmatch.fnmatchcase(child.name, junk) for junk in _JUNK_FILES):
                continue
            if own and current == folder and child.name in _OWN_FILES:
                continue
            count += 1
            if count > MAX_FILES:
                raise Complaint(
                    f"folder {folder} holds more than {MAX_FILES} files",
                    "keep only the world in it: all of it is copied into the image",
                )
            if not child.name.isprintable():
                raise Complaint(f"file name {child.name!r} in {current} is not printable text", "rename the file")
            yield InputFile(f"{prefix}/{child.name}", path, _mode(_status(path, root)))


def _status(path: Path, root: Path) -> os.stat_result:
    """Return the status of what is read at a path, having checked that it is a file of this folder."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        destination = Path(os.path.realpath(path))
        if not destination.is_relative_to(root):
            raise Complaint(
                f"link {path} leaves its folder: it leads to {os.readlink(path)}",
                "copy the file into the folder, or name it under files",
            )
        try:
            status = path.stat()
        except OSError as error:
            raise Complaint(f"link {path} leads nowhere: {error.strerror}", "remove it") from None
        if stat.S_ISDIR(status.st_mode):
            raise Complaint(f"link {path} leads to a folder", "put a real folder in its place")
    _regular(path, status)
    return status


def _regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise Complaint(f"{path} is not a regular file (a pipe, socket or device)", "remove it from the template")


def _mode(status: os.stat_result) -> int:
    # The host's umask must not reach the image, nor its digest.
    return 0o755 if status.st_mode & stat.S_IXUSR else 0o644
