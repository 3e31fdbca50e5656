"""Islands tried out for real, for who wants to know what this machine can do and what it lacks."""

from __future__ import annotations

import errno
import os
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from microsim_vm.errors import MicrosimError, NetworkError
from microsim_vm.islands import namespaces, subnets
from microsim_vm.islands.island import ALONE, Island
from microsim_vm.islands.plug import Wire
from microsim_vm.islands.policy import VARIABLE, Network, pool_of

TUN = Path("/dev/net/tun")
SYSCTLS = Path("/proc/sys")
PCAP_HEADER = 24  # bytes that a capture of nothing has
DISCARD = 9
PREFIX = "an island could not be made: "
MAKING = f"{PREFIX}making a namespace: "
MANY = 65536  # namespaces
# What closes user namespaces to users, and its value then.
CLOSED = {"kernel.unprivileged_userns_clone": "0", "kernel.apparmor_restrict_unprivileged_userns": "1"}


class Trial(NamedTuple):
    """How a trial went.

    Attributes:
        state: "ok", "missing" where a part of the kernel is, or "unusable".
        detail: How, one line.
        fix: The command that helps; "" where there is none, or it works.
    """

    state: Literal["ok", "missing", "unusable"]
    detail: str
    fix: str = ""


def alone() -> Trial:
    """Raise an island for one machine of QEMU's."""
    return _tried({ALONE: "tap"}, "a network with a tap, for QEMU's guests,")


def several(*, taps: bool) -> Trial:
    """Raise an island for three machines, on a bridge.

    Args:
        taps: Taps work: try them beside a link of gVisor's.
    """
    kind: Wire = "tap" if taps else "veth"
    others = "taps and a veth" if taps else "veths"
    return _tried({ALONE: kind, "second": kind, "third": "veth"}, f"a network of three, with a bridge, {others},")


def capturing(*, taps: bool) -> Trial:
    """Read what passes in an island.

    Args:
        taps: Taps work: try one rather than a link of gVisor's.
    """
    with tempfile.TemporaryDirectory(prefix="microsim-") as folder:
        path = Path(folder, "frames")

        def capture(island: Island) -> None:
            island.capture(path)
            with namespaces.socket_in(island.namespace, socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.sendto(b"microsim", (str(island.plugs[ALONE].address.ip), DISCARD))  # asks who that is

        trial = _tried({ALONE: "tap" if taps else "veth"}, "a capture of its frames", capture)
        if trial.state == "ok" and path.stat().st_size <= PCAP_HEADER:
            return Trial("unusable", "a capture of its frames shows nothing of what was sent")
        return trial


def addresses() -> Trial:
    """Count the addresses that there are for islands."""
    try:
        pool = pool_of()
        found = subnets.usage(pool, namespaces.routed(pool))
    except MicrosimError as error:
        return _explained(error, {})
    free = found.total - found.routed
    detail = f"{free} of {found.total} subnets of {pool} are free of the host's routes, {found.taken} are taken now"
    return Trial("ok", detail) if free else Trial("unusable", detail, f"export {VARIABLE}=10.213.0.0/16")


def _raised(wires: Mapping[str, Wire]) -> Island:
    return Island(Network("island"), f"trial {uuid.uuid4().hex}", wires, pool=pool_of(), wait_s=0.0)


def _tried(wires: Mapping[str, Wire], what: str, use: Callable[[Island], None] = lambda island: None) -> Trial:
    try:
        user = namespaces.maker().user  # started before it is timed: a process needs it once
        began = time.monotonic()
        with _raised(wires) as island:
            use(island)
        took_ms = (time.monotonic() - began) * 1000.0
    except (MicrosimError, OSError) as error:
        return _explained(error, wires)
    return Trial("ok", f"{what} made in {took_ms:.0f} ms, {'as root' if user is None else 'in a user namespace'}")


def _explained(error: MicrosimError | OSError, wires: Mapping[str, Wire]) -> Trial:
    """Find out what is missing, and what helps."""
    if not isinstance(error, NetworkError):
        return Trial("unusable", error.what if isinstance(error, MicrosimError) else str(error))
    said = error.what.removeprefix(MAKING).removeprefix(PREFIX)
    number = next((number for number, cause in namespaces.CAUSES.items() if cause == error.cause), None)
    if number in (errno.ENOENT, errno.ENODEV):
        return Trial("missing", error.cause, "sudo modprobe tun")
    if number == errno.EOPNOTSUPP:
        kind = "bridge" if _works({ALONE: "veth"}) else "veth"
        return Trial("missing", f"the kernel's module {kind} is not loaded ({said})", f"sudo modprobe {kind}")
    if number == errno.ENOSPC:
        names = ["user.max_net_namespaces", *(["user.max_user_namespaces"] if os.geteuid() else [])]
        name = min(names, key=lambda name: int(_setting(name) or sys.maxsize))
        detail = f"there are as many namespaces as {name} allows: {_setting(name)}"
        return Trial("unusable", detail, f"sudo sysctl {name}={MANY}")
    if number in (errno.EPERM, errno.EACCES):
        if error.what.startswith(MAKING):
            return _forbidden(f"this user may make no network namespace ({said})")
        if "tap" in wires.values() and _works({ALONE: "veth"}):
            fix = "" if os.access(TUN, os.R_OK | os.W_OK) else f"sudo chmod 0666 {TUN}"
            return Trial("unusable", f"this user may not use {TUN}, or the container has it not ({said})", fix)
        return _forbidden(f"a namespace can be made, and nothing in it: its rights are withheld ({said})")
    last = error.details.rstrip().rpartition("\n")[2]
    return Trial("unusable", ": ".join(part for part in (said, error.cause, last) if part))


def _forbidden(what: str) -> Trial:
    """Say who forbids it, where the kernel tells."""
    if os.geteuid() != 0:
        for name, closed in CLOSED.items():
            if _setting(name) == closed:
                return Trial("unusable", f"{what}: {name} is {closed}", f"sudo sysctl {name}={1 - int(closed)}")
    return Trial("unusable", f"{what}; a container needs the capabilities SYS_ADMIN and NET_ADMIN, or user namespaces")


def _works(wires: Mapping[str, Wire]) -> bool:
    try:
        _raised(wires).close()
    except (MicrosimError, OSError):
        return False
    return True


def _setting(name: str) -> str:
    try:
        return (SYSCTLS / name.replace(".", "/")).read_text().strip()
    except OSError:  # this kernel has none
        return ""
