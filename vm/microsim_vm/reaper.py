"""Remove what dead processes left: guests, half-written files, sandboxes, doors, groups. Runs at every start."""

from __future__ import annotations

from microsim_vm import runtime
from microsim_vm.cache import Cache
from microsim_vm.jail import cgroups
from microsim_vm.sandbox import door
from microsim_vm.sandbox.store import Store


def reap(cache: Cache) -> list[str]:
    """Remove what processes that are gone left behind; everything else stays untouched.

    Returns:
        One line per thing removed.
    """
    removed = [*runtime.reap(cache), *Store(cache).reap()]
    door.reap()
    with runtime.locked() as folder:
        removed += cgroups.reap(folder)
    return removed
