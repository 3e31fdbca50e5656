"""Bake: turn a template into an image, which is three read-only layers, a kernel and an initramfs.

The base layer (Debian), the python layer (wheels) and the world layer (guest package, world code, files) are
built and cached apart, so that an edit of a world's code rebuilds only the last, in about a second.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from microsim_vm import digests
from microsim_vm.cache import Cache
from microsim_vm.errors import LockDriftError
from microsim_vm.templates import base as base_layer
from microsim_vm.templates import lock as locks
from microsim_vm.templates import wheels as python_layer
from microsim_vm.templates.lock import Lock
from microsim_vm.templates.spec import Template
from microsim_vm.tools import Progress

RECIPE = 1
GUEST_TARGET = "opt/microsim"


@dataclass(frozen=True)
class Image:
    """A baked image.

    Attributes:
        name: The template's name.
        digest: Digest over all parts, hex.
        layers: Read-only file systems, lowest first, by name.
        kernel: The kernel to boot.
        initramfs: Its initramfs.
        lock: The record of what went into it.
    """

    name: str
    digest: str
    layers: dict[str, Path]
    kernel: Path
    initramfs: Path
    lock: Lock


def bake(template: Template, cache: Cache, *, locked: bool, progress: Progress) -> Image:
    """Return the template's image, building what is not in the cache.

    Args:
        template: What to bake.
        cache: Where layers and images are kept.
        locked: Refuse any difference from ``template.lock``.
        progress: Takes one-line texts.

    Raises:
        LockDriftError: ``locked``, and an input is not as the lock says, or there is no lock.
        BakeError: A step failed.
        MissingToolError: A program is not installed.
        NoSpaceError: The cache's file system is too full.
    """
    folder = template.path.parent
    old = locks.read(folder)
    if locked and old is None:
        raise LockDriftError(
            f"template {template.name} has no {locks.FILENAME}, and --microsim-locked was given",
            hint=f"run once without --microsim-locked and commit {folder / locks.FILENAME}",
        )
    inputs = _inputs(template)
    if locked and old is not None:
        # What can be compared without building is compared first.
        locks.refuse_drift(template.name, old, msgspec.structs.replace(old, **inputs))
    pinned = old if old is not None and _same_request(old, inputs) else None
    key = digests.of_data([RECIPE, base_layer.recipe(), python_layer.RECIPE, inputs, _pins(pinned)])[:32]
    image_folder = cache.folder("images") / key
    with cache.lock(f"image-{key}", what=f"the image of {template.name}", progress=progress, timeout_s=3600):
        image = _load(image_folder, template.name, cache)
        if image is None:
            shutil.rmtree(image_folder, ignore_errors=True)
            image = _build(template, inputs, pinned, cache, image_folder, progress)
    # The kernel of gVisor's guests comes with this machine, not with the image: whoever runs it pins it.
    lock = image.lock if old is None else msgspec.structs.replace(image.lock, gvisor_kernel=old.gvisor_kernel)
    if locked and old is not None:
        locks.refuse_drift(template.name, old, lock)
    elif old != lock and locks.write(folder, lock):
        progress(f"wrote {folder / locks.FILENAME}")
    return image


def _inputs(template: Template) -> dict[str, Any]:
    return {
        "template": json.loads(template.canonical()),
        "files": {label: f"{digests.of_file(path)}:{mode:o}" for label, path, mode in template.input_files()},
        "guest": digests.of_data({name: digests.of_file(path) for name, path in guest_files()}),
    }


def _same_request(old: Lock, inputs: dict[str, Any]) -> bool:
    """Tell whether the lock's wheels still answer what the template asks for."""
    return bool(old.template.get("python") == inputs["template"].get("python"))


def _pins(lock: Lock | None) -> Any:
    return [] if lock is None else [lock.python, [msgspec.to_builtins(wheel) for wheel in lock.wheels]]


def guest_files() -> list[tuple[str, Path]]:
    """Return the guest package's files as (path inside the package, path here)."""
    spec = importlib.util.find_spec("microsim_guest")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    root = Path(next(iter(spec.submodule_search_locations)))
    return [(str(path.relative_to(root)), path) for path in sorted(root.rglob("*.py"))]


def _build(
    template: Template, inputs: dict[str, Any], pinned: Lock | None, cache: Cache, folder: Path, progress: Progress
) -> Image:
    base, base_folder = base_layer.ensure(
        template.base.suite, list(template.base.packages), template.kernel.package, cache, progress
    )
    if pinned is not None and pinned.python == base.python:
        resolved = pinned.wheels
    else:
        resolved = python_layer.resolve(template.python, base.python, progress)
    python_folder = python_layer.ensure(resolved, base.python, cache, progress)
    python = digests.read_json(python_folder / "manifest.json")
    with cache.staging("world") as staging:
        image_file = staging / "world.erofs"
        progress(f"packing the world layer of {template.name}")
        _lay_out_world(template, staging / "root", compiled=python["bytecode"])
        python_layer.make_image(staging / "root", image_file, progress)
        folder.mkdir(parents=True)
        shutil.move(image_file, folder / image_file.name)
    parts = {**base.sha256, "python.erofs": python["sha256"], "world.erofs": digests.of_file(folder / "world.erofs")}
    lock = Lock(
        **inputs,
        kernel=base.kernel_package,
        packages=base.packages,
        python=base.python,
        wheels=resolved,
        image=parts,
        digest=digests.of_data([inputs["template"], parts]),
    )
    # The manifest comes last: without it the folder counts as half-written.
    digests.write_json(folder / "manifest.json", {
        "base": base_folder.name, "python": python_folder.name, "lock": msgspec.to_builtins(lock),
    })  # fmt: skip
    image = _load(folder, template.name, cache)
    assert image is not None
    progress(f"image of {template.name}: {image.digest[:12]}")
    return image


def _load(folder: Path, name: str, cache: Cache) -> Image | None:
    """Return the image in a folder, or None where it, or a layer that it shares, is not whole."""
    manifest = digests.read_json(folder / "manifest.json")
    if manifest is None:
        return None
    base = cache.folder("bases") / manifest["base"]
    python = cache.folder("pythons") / manifest["python"]
    layers = {"base": base / "base.erofs", "python": python / "python.erofs", "world": folder / "world.erofs"}
    if not all(path.exists() for path in (*layers.values(), base / "manifest.json", python / "manifest.json")):
        return None
    lock = msgspec.convert(manifest["lock"], type=Lock)
    return Image(name, lock.digest, layers, base / "vmlinuz", base / "initramfs.cpio", lock)


def _lay_out_world(template: Template, root: Path, *, compiled: bool) -> None:
    """Lay out the world layer: the guest package, its configuration, world code and the template's files."""
    target = root / GUEST_TARGET
    for name, path in guest_files():
        place = target / "guest/microsim_guest" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    (target / "world").mkdir()
    for label, path, mode in template.input_files():
        place = root / template.target_of(label).lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
        place.chmod(mode)
    (target / "config.json").write_text(json.dumps(_config(template), sort_keys=True))
    if compiled:
        python_layer.compile_bytecode(root)
    # World code and its configuration are ground truth: controllers run as another user and must not read them.
    for secret in (target / "world", target / "config.json"):
        secret.chmod(secret.stat().st_mode | stat.S_ISVTX)


def _config(template: Template) -> dict[str, Any]:
    """Return what the guest needs to know of its template."""
    return {
        "env": dict(template.env),
        "world": None if template.world is None else msgspec.to_builtins(template.world),
        "processes": msgspec.to_builtins(template.processes),
        "controller": msgspec.to_builtins(template.controller.sight),
    }
