"""The guest kernel's own knobs: entropy, wall clock, loopback, mounts, privileges."""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import time
from typing import Dict

RNDADDENTROPY = 0x40085203
RNDRESEEDCRNG = 0x5207
SIOCSIFFLAGS = 0x8914
SIOCADDRT = 0x890B
IFF_UP, IFF_LOOPBACK, IFF_RUNNING, IFF_MULTICAST = 0x1, 0x8, 0x40, 0x1000
RTF_UP, RTF_GATEWAY = 0x1, 0x2
PR_SET_NO_NEW_PRIVS = 38
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE = 1 << 14, 1 << 18
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
SYS_PIVOT_ROOT, PR_CAPBSET_DROP, CAPABILITY_VERSION_3 = 155, 24, 0x20080522
RB_AUTOBOOT = 0x01234567

# Whom the kernel kills first when the guest runs out of memory: user code, then the world, never the agent.
OOM_USER, OOM_WORLD, OOM_AGENT = 500, -500, -1000


# What an engine tells the guest's first process about a kernel that cannot be asked.
KERNEL, MEMORY_MIB = "MICROSIM_KERNEL", "MICROSIM_MEMORY_MIB"


def told() -> Dict[str, str]:
    """Return the part of the environment that a process needs to be told the same."""
    return {name: os.environ[name] for name in (KERNEL, MEMORY_MIB) if name in os.environ}


def is_gvisor() -> bool:
    """Tell whether this guest's kernel is gVisor's; asked of what the engine started, and of nothing it has left."""
    return os.environ.get(KERNEL) == "gvisor"


def memory_bytes() -> int:
    """Return this guest's memory; a kernel that has not memory of its own is told how much it may use."""
    mib = os.environ.get(MEMORY_MIB)
    return int(mib) << 20 if mib else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def add_entropy(data: bytes) -> None:
    """Credit host entropy to the kernel and reseed its generator at once.

    A fork's kernel repeats its parent's random bytes until its generator is reseeded. gVisor's has no generator: it
    takes what it gives from the host's, so that there is nothing to reseed.

    Raises:
        OSError: The kernel refused; the fork must not be used.
    """
    if is_gvisor():
        return
    fd = os.open("/dev/urandom", os.O_WRONLY)
    try:
        fcntl.ioctl(fd, RNDADDENTROPY, struct.pack("ii", len(data) * 8, len(data)) + data)
        fcntl.ioctl(fd, RNDRESEEDCRNG)
    finally:
        os.close(fd)


def set_wall_clock(wall_ns: int) -> None:
    """Set CLOCK_REALTIME; the monotonic clock continues from the snapshot. On gVisor both are the host's."""
    if is_gvisor():
        return
    time.clock_settime_ns(time.CLOCK_REALTIME, wall_ns)


def loopback_up() -> None:
    """Bring ``lo`` up with the multicast flag and a multicast route (DDS discovery needs both)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        flags = IFF_UP | IFF_LOOPBACK | IFF_RUNNING | IFF_MULTICAST
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags))
        add_route(sock, b"\xe0\0\0\0", b"\xf0\0\0\0", device=b"lo")


def add_route(sock: socket.socket, network: bytes, mask: bytes, device: bytes = b"", gateway: bytes = b"") -> None:
    """Route a network to a device, or to a gateway that can be reached already.

    Raises:
        OSError: The kernel refused; a route that is there already is none of the reasons.
    """
    name = ctypes.create_string_buffer(device)
    route = bytearray(120)  # struct rtentry
    for offset, address in ((8, network), (24, gateway or b"\0" * 4), (40, mask)):
        struct.pack_into("=HH4s", route, offset, socket.AF_INET, 0, address)
    struct.pack_into("=H", route, 56, RTF_UP | (RTF_GATEWAY if gateway else 0))
    if device:
        struct.pack_into("=Q", route, 88, ctypes.addressof(name))
    with contextlib.suppress(FileExistsError):
        fcntl.ioctl(sock, SIOCADDRT, bytes(route))


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    """Call ``mount(2)``."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.makedirs(target, exist_ok=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()) != 0:
        code = ctypes.get_errno()
        raise OSError(code, "mount {} on {}: {}".format(kind, target, os.strerror(code)))


def pivot_root(new: str, old: str) -> None:
    """Make a mounted folder the root of the calling process's mount namespace, and mount the old root at ``old``."""
    _checked(_libc().syscall(SYS_PIVOT_ROOT, new.encode(), old.encode()), "pivot_root")


def detach(target: str) -> None:
    """Take a mounted file system, and all that is mounted in it, out of the file tree, in use or not."""
    _checked(_libc().umount2(target.encode(), MNT_DETACH), "umount2")


def detach_all(target: str) -> None:
    """Detach a file system and those in it, one by one: gVisor leaves those in it behind."""
    with open("/proc/mounts") as file:
        found = [line.split()[1] for line in file]
    for place in reversed([place for place in found if place == target or place.startswith(target + "/")]):
        detach(place)


def unshare(flags: int) -> None:
    """Give the calling process, or with ``CLONE_NEWPID`` its next children, namespaces of its own."""
    _checked(_libc().unshare(flags), "unshare")


def forbid_capabilities() -> None:
    """Let no program that the calling process starts gain a capability."""
    libc, number = _libc(), 0
    while libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1


def drop_capabilities() -> None:
    """Give up all capabilities of the calling process."""
    header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
    _checked(_libc().capset(header, bytes(24)), "capset")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, call: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, "{}: {}".format(call, os.strerror(code)))


def mount_disk(serial: str, target: str, read_only: bool) -> None:
    """Mount the ext4 file system on the disk with this serial number."""
    for name in os.listdir("/sys/block"):
        try:
            with open("/sys/block/{}/serial".format(name)) as file:
                found = file.read().strip()
        except OSError:
            continue
        if found == serial:
            mount("/dev/" + name, target, "ext4", MS_RDONLY if read_only else 0)
            return
    raise FileNotFoundError("no disk is called {}".format(serial))


def unmount(target: str) -> None:
    """Unmount a file system; one in use is flushed and left."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.sync()
    libc.umount2(target.encode(), 0)


def sync_file_system(path: str) -> None:
    """Write out one file system; unlike ``sync``, ``syncfs`` says whether that worked.

    Raises:
        OSError: A write failed, now or since the last time.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(fd)


def set_oom_score(score: int) -> None:
    """Set how early the kernel kills the calling process, and what it starts, when memory runs out."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(score))


def forbid_new_privileges() -> None:
    """Make set-user-id programs powerless for the calling process and what it starts."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")


def restart() -> None:
    """End the guest: its engine holds it rather than restart it."""
    ctypes.CDLL(None).reboot(RB_AUTOBOOT)
