"""Arguments of a new sandbox, checked before anything is baked, booted or written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from microsim_vm.errors import ArgumentError, VolumeError
from microsim_vm.sandbox.store import Mount

Volumes = Mapping[str, str | Mount]
MACHINE = {"vcpus": (1, 64), "memory_mib": (128, 65536)}  # as a template may ask for


def life(
    *, metadata: Mapping[str, str] | None, persistent: bool, detached: bool, ttl_seconds: float | None,
    hibernate_after: float | None,
) -> dict[str, Any]:  # fmt: skip
    """Return how long a sandbox lives, and the words written on it, as its record has them.

    Raises:
        ArgumentError: A time is none, or the words are no text.
    """
    words = dict(metadata or {})
    for key, value in words.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ArgumentError(f"metadata is text: {key!r}: {value!r}", hint=f"write {str(key)!r}: {str(value)!r}")
    return {
        "metadata": words,
        "persistent": bool(persistent),
        "detached": bool(detached or persistent),
        "ttl_seconds": None if persistent else _seconds("ttl_seconds", ttl_seconds),
        "hibernate_after": _seconds("hibernate_after", hibernate_after),
    }


def shape(**wanted: int | None) -> dict[str, int]:
    """Return what is wanted of ``vcpus`` and ``memory_mib``.

    Raises:
        ArgumentError: It is no whole number, or out of bounds.
    """
    found = {}
    for name, value in wanted.items():
        low, high = MACHINE[name]
        if value is None:
            continue
        if type(value) is not int or not low <= value <= high:
            raise ArgumentError(f"{name} is a whole number from {low} to {high}, not {value!r}")
        found[name] = value
    return found


def mounts(wanted: Volumes | None) -> tuple[Mount, ...]:
    """Return the volumes of ``{path: name or Mount}``.

    Raises:
        VolumeError: A path is none, or a volume is asked for twice.
    """
    found = []
    for path, each in (wanted or {}).items():
        mount = each if isinstance(each, Mount) else Mount(each, path)
        if mount.path not in ("", path):
            raise VolumeError(f"volume {mount.volume} is to be mounted at {path!r} and at {mount.path!r}")
        if not path.startswith("/") or ".." in path.split("/") or path.strip("/") == "":
            raise VolumeError(f"volume {mount.volume} cannot be mounted at {path!r}", hint="name an absolute path")
        found.append(msgspec.structs.replace(mount, path=path))
    if len({mount.volume for mount in found}) < len(found):
        raise VolumeError("a volume is mounted once in a sandbox, not twice")
    return tuple(found)


def _seconds(name: str, value: float | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ArgumentError(f"{name} is a number of seconds, more than 0, or None for never; not {value!r}")
    return float(value)
