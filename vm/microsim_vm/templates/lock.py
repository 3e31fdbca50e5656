"""``template.lock``: what a bake used, name by name and hash by hash, and how two of them differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from microsim_vm import digests
from microsim_vm.errors import LockDriftError, TemplateError
from microsim_vm.templates.base import Package
from microsim_vm.templates.wheels import Wheel

FILENAME = "template.lock"


class Lock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a lock file; holds no path of the machine that wrote it.

    Attributes:
        template: The template in canonical form (inheritance resolved).
        files: SHA-256 of every file that goes into the image, by its label.
        guest: Digest of the guest package.
        kernel: Name of the kernel's package.
        packages: Every Debian package of the base system, and the kernel's.
        python: The guest's Python version.
        wheels: Every wheel of the python layer.
        image: SHA-256 of each part of the image.
        digest: The image's digest, over all its parts.
        gvisor_kernel: The release of runsc, which is the kernel of gVisor's guests, or "" where none has run it yet.
    """

    template: dict[str, Any]
    files: dict[str, str]
    guest: str
    kernel: str
    packages: dict[str, Package]
    python: str
    wheels: list[Wheel]
    image: dict[str, str]
    digest: str
    version: int = 1
    gvisor_kernel: str = ""


def read(folder: Path) -> Lock | None:
    """Return a template's lock, or None where there is none.

    Raises:
        TemplateError: The file is there but is no lock.
    """
    path = folder / FILENAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Lock)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TemplateError(
            f"{path}:1: not a lock file: {error}", cause="it was edited or merged by hand",
            hint="delete it and run once without --microsim-locked to write it anew",
        ) from None  # fmt: skip


def write(folder: Path, lock: Lock) -> bool:
    """Write a template's lock where it changed and its folder can be written; return whether it was written."""
    try:
        if read(folder) == lock:
            return False
    except TemplateError:
        pass  # it was edited by hand
    try:
        digests.write_json(folder / FILENAME, msgspec.to_builtins(lock))
    except OSError:
        return False  # an installed, read-only template; the image in the cache carries the same record
    return True


def pin_gvisor(folder: Path, name: str, release: str, *, locked: bool) -> bool:
    """Record the release of runsc that runs a template's guests; return whether the lock was written for it.

    Raises:
        LockDriftError: ``locked``, and it is another one than the lock's.
    """
    old = read(folder)
    if old is None or old.gvisor_kernel == release:
        return False
    new = msgspec.structs.replace(old, gvisor_kernel=release)
    if locked:
        refuse_drift(name, old, new)
    return write(folder, new)


def differences(old: Lock, new: Lock) -> Iterator[str]:
    """Name each input that differs, most telling first."""
    yield from _compare("template", old.template, new.template)
    yield from _compare("file", old.files, new.files)
    if old.guest != new.guest:
        yield "the guest package: this pytest-microsim is not the version that wrote the lock"
    yield from _compare("Debian package", old.packages, new.packages)
    yield from _compare("wheel", {w.name: w for w in old.wheels}, {w.name: w for w in new.wheels})
    yield from _compare("result", _results(old), _results(new))


def _results(lock: Lock) -> dict[str, Any]:
    return {"kernel": lock.kernel, "gvisor_kernel": lock.gvisor_kernel, "python": lock.python, "image": lock.image,
            "digest": lock.digest}  # fmt: skip


def _compare(kind: str, old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        name = f"{prefix}{key}"
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _compare(kind, before, after, f"{name}.")
        elif before in (None, ""):
            yield f"{kind} {name} was added"
        elif after in (None, ""):
            yield f"{kind} {name} was removed"
        else:
            yield f"{kind} {name} changed: {_short(before)} -> {_short(after)}"


def _short(value: Any) -> str:
    if isinstance(value, (Package, Wheel)):
        return f"{value.version} ({value.sha256[:12]})"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:16]}..."


def refuse_drift(name: str, old: Lock, new: Lock) -> None:
    """Raise where two locks differ.

    Raises:
        LockDriftError: Names up to ten inputs that changed.
    """
    changed = list(differences(old, new))
    if changed:
        more = f"\n... and {len(changed) - 10} more" if len(changed) > 10 else ""
        raise LockDriftError(
            f"template {name} no longer matches its {FILENAME}: {changed[0]}",
            hint="undo the change, or run once without --microsim-locked and commit the new lock",
            details="\n".join(changed[:10]) + more,
        )
