"""Which layers of the jail this machine allows, found out by entering each with a child that ends at once."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass

from microsim_vm.jail import cgroups

# What each is, in the words of its absence.
LAYERS: Mapping[str, str] = {
    "user namespace": "it is in no user namespace of its own",
    "processes": "it sees the host's processes",
    "network": "it is in the host's network",
    "ipc": "it shares System V IPC and the host name with the host",
    "view": "it sees the host's files",
    "user": "it has the same user as other processes",
    "rights": "it may get rights by other programs",
    "memory": "it could write to the memory file that all forks share",
}
NEEDS_NAMESPACE = ("processes", "network", "ipc", "view")


@dataclass(frozen=True)
class Layers:
    """What a jail here is made of.

    Attributes:
        on: The layers that are entered.
        off: Those that cannot be, each with the reason.
        limits: What keeps them: "control groups", "some control groups" or "resource limits".
    """

    on: tuple[str, ...]
    off: Mapping[str, str]
    limits: str

    @property
    def whole(self) -> bool:
        """Nothing is missing."""
        return not self.off and self.limits == "control groups"

    def line(self) -> str:
        """Return what is missing, one phrase; "" where nothing is."""
        lacking = [*self.off, *([] if self.limits == "control groups" else ["control groups"])]
        return f"jailed without: {', '.join(lacking)}" if lacking else ""

    def detail(self) -> str:
        """Return all of it, one line."""
        text = f"QEMU runs in {', '.join(self.on)}; {cgroups.describe()}"
        reasons = [f"not in {name} ({why}), so {LAYERS[name]}" for name, why in self.off.items()]
        resources = [] if self.limits == "control groups" else ["resource limits hold what no group does"]
        return "; ".join([text, *resources, *reasons])


def wanted() -> tuple[str, ...]:
    """Return the layers that this user's jail is to have."""
    root = os.geteuid() == 0
    return tuple(name for name in LAYERS if name != ("user namespace" if root else "user"))


def chosen(why_not: Mapping[str, str]) -> Layers:
    """Return what is entered.

    Args:
        why_not: For each layer why it cannot be, "" where it can.
    """
    off = {name: why for name, why in why_not.items() if why}
    if "user namespace" in off:
        off.update({name: "it needs the user namespace" for name in NEEDS_NAMESPACE if name in why_not})
    if "memory" in off and "user" in why_not and "user" not in off:
        off["user"] = "it has to open the memory file by itself"
    found = cgroups.places()
    limits = "resource limits"
    if found:
        limits = "control groups" if len(found) == len(cgroups.CONTROLLERS) else "some control groups"
    return Layers(tuple(name for name in why_not if name not in off), off, limits)


def here() -> Layers:
    """Return what this machine allows; tried once in each process, which takes some milliseconds."""
    return _here(os.getpid())


@functools.cache
def _here(pid: int) -> Layers:
    from microsim_vm.jail import cell

    wishes = wanted()
    why_not: dict[str, str] = {}
    for name in wishes:
        base = [each for each in ("user namespace",) if why_not.get(each) == ""]
        why_not[name] = cell.attempt((*base, name))
    return chosen(why_not)
