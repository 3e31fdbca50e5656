"""An image's root file system as a folder, for engines that have no disks: its layers unpacked, one over the other.

A layer is unpacked once, beside its file, and an image's root is made of hard links into the layers. However many
images there are, and guests of each, the host holds a file's pages once. Only this user can reach what is unpacked:
parts of it anybody may write to, by their mode.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import filelock

from microsim_vm import digests, tools
from microsim_vm.cache import need_space
from microsim_vm.errors import BakeError

UNPACKED = "unpacked"
TIMEOUT_S = 600.0
SPECIAL = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
# What every root has and a layer need not: mounted over, or made by the initramfs of a machine with disks.
MOUNT_POINTS = ("dev", "proc", "run", "sys", "tmp")


@functools.cache
def why_not() -> str:
    """Return why no layer can be unpacked here, or "" where that can be done."""
    program = tools.found("fsck.erofs")
    if program is None:
        return "erofs-utils is not installed"
    said = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=30, check=False)
    return "" if "--extract" in said.stdout + said.stderr else "its erofs-utils is too old to unpack images"


def ensure(layers: Mapping[str, Path]) -> Path:
    """Return the root folder of these layers, made where it is not there yet; nobody may write to it.

    Args:
        layers: Read-only file systems, lowest first, baked on this machine: what unpacks them trusts them.

    Raises:
        BakeError: It could not be unpacked.
        MissingToolError: erofs-utils is not installed.
        NoSpaceError: It would not fit.
    """
    *_, top = layers.values()
    # Two images may have the same topmost layer.
    root = _place(top) / f"root-{digests.of_data([str(path) for path in layers.values()])[:16]}"
    if not root.exists():
        with _locked(root):
            if not root.exists():
                _build(list(layers.values()), root)
    return root


def _place(layer: Path) -> Path:
    """Return the folder for what is unpacked of a layer, closed to others."""
    folder = layer.parent / UNPACKED
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        with filelock.FileLock(path.with_name(f"{path.name}.lock"), timeout=TIMEOUT_S):
            yield
    except filelock.Timeout:
        raise BakeError(f"waited {TIMEOUT_S:.0f} s for another process to unpack {path}") from None


def _build(layers: list[Path], root: Path) -> None:
    with _partial(root) as partial:
        partial.mkdir(mode=0o755)
        for layer in layers:
            _run("copying", ["cp", "--archive", "--link", "--force", "--no-target-directory", _tree(layer), partial])
        for name in MOUNT_POINTS:
            (partial / name).mkdir(exist_ok=True)


def _tree(layer: Path) -> Path:
    """Return the folder that a layer is unpacked in."""
    tree = _place(layer) / f"{layer.stem}.tree"
    with _locked(tree):
        if not tree.exists():
            need_space(layer.parent, 3 * layer.stat().st_size, f"unpacking {layer}")
            with _partial(tree) as partial:
                extract = [tools.need("fsck.erofs"), f"--extract={partial}"]
                _run("unpacking", [*extract, "--preserve", layer])
                # It gives a file its mode first and its owner then, which takes the special bits away again.
                modes = tree.with_name(f"{tree.name}.modes")
                shutil.rmtree(modes, ignore_errors=True)
                _run("unpacking", [extract[0], f"--extract={modes}", "--no-preserve-owner", "--preserve-perms", layer])
                _copy_special_bits(modes, partial)
                shutil.rmtree(modes)
    return tree


def _copy_special_bits(source: Path, target: Path) -> None:
    for folder, _, names in os.walk(source):
        for name in names:
            info = os.lstat(os.path.join(folder, name))
            if stat.S_ISREG(info.st_mode) and info.st_mode & SPECIAL:
                os.chmod(target / os.path.relpath(os.path.join(folder, name), source), stat.S_IMODE(info.st_mode))


@contextlib.contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """Yield where to build a folder; it has its name only once all of it is on the disk."""
    partial = path.with_name(f"{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    yield partial
    _run("writing", ["sync", "--file-system", partial])
    os.rename(partial, path)


def _run(what: str, argv: list[str | Path]) -> None:
    words = [str(word) for word in argv]
    try:
        tools.run(words, what=f"{what} {words[-1]}", progress=lambda _: None, timeout_s=TIMEOUT_S)
    except BakeError as error:
        if os.geteuid() != 0:
            error.hint = "unpacking an image needs root, to give files their owners"
        raise
