"""An image's root file system as a folder, for engines that have no disks: its layers unpacked, one over the other.

A layer is unpacked once, beside its file, and an image's root is made of hard links into the layers. However many
images there are, and guests of each, the host holds a file's pages once.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import filelock

from microsim_vm import digests, tools
from microsim_vm.errors import BakeError

TREE = "tree"
TIMEOUT_S = 600.0
# What every root has and a layer need not: mounted over, or made by the initramfs of a machine with disks.
MOUNT_POINTS = ("dev", "proc", "run", "sys", "tmp")


def ensure(layers: Mapping[str, Path]) -> Path:
    """Return the root folder of these layers, made where it is not there yet; nobody may write to it.

    Args:
        layers: Read-only file systems, lowest first.

    Raises:
        BakeError: It could not be unpacked.
        MissingToolError: erofs-utils is not installed.
    """
    *_, top = layers.values()
    # Two images may have the same topmost layer.
    root = top.parent / f"root-{digests.of_data([str(path) for path in layers.values()])[:16]}"
    if not root.exists():
        with filelock.FileLock(root.with_suffix(".lock"), timeout=TIMEOUT_S):
            if not root.exists():
                _build(list(layers.values()), root)
    return root


def _build(layers: list[Path], root: Path) -> None:
    partial = root.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o755)
    for layer in layers:
        _run("copying", ["cp", "--archive", "--link", "--force", "--no-target-directory", _tree(layer), partial])
    for name in MOUNT_POINTS:
        (partial / name).mkdir(exist_ok=True)
    os.rename(partial, root)


def _tree(layer: Path) -> Path:
    """Return the folder that a layer is unpacked in."""
    tree = layer.with_name(f"{layer.stem}.{TREE}")
    with filelock.FileLock(layer.with_name(f"{layer.stem}.lock"), timeout=TIMEOUT_S):
        if not tree.exists():
            partial = tree.with_name(f"{tree.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            _run("unpacking", [tools.need("fsck.erofs"), f"--extract={partial}", "--preserve", layer])
            os.rename(partial, tree)
    return tree


def _run(what: str, argv: list[str | Path]) -> None:
    words = [str(word) for word in argv]
    try:
        tools.run(words, what=f"{what} {words[-1]}", progress=lambda _: None, timeout_s=TIMEOUT_S)
    except BakeError as error:
        error.hint = "the gVisor engine needs root, to give files their owners, and an erofs-utils that can extract"
        raise
