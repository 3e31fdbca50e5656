"""Control groups: a command, or a controller, and all its descendants, however they detach themselves."""

import os

from microsim_guest import kernel
from microsim_guest.controlgroup import ROOT, ControlGroup
from microsim_guest.watchedgroup import WatchedGroup


def mount() -> None:
    """Mount the control groups that the kernel has: version 2, or (gVisor) processes by version 1."""
    if kernel.is_gvisor():
        kernel.mount("cgroup", ROOT, "cgroup", data="pids")
        return
    kernel.mount("cgroup2", ROOT, "cgroup2")
    with open(os.path.join(ROOT, "cgroup.subtree_control"), "w") as file:
        file.write("+memory +pids")


def create(name: str, **limits: int) -> ControlGroup:
    """Return a new group. See :meth:`ControlGroup.limit`."""
    unified = os.path.exists(os.path.join(ROOT, "cgroup.controllers"))
    return (ControlGroup if unified else WatchedGroup)(name, **limits)
