"""What gVisor's kernel does otherwise than Linux, and what user code would trip over."""

import contextlib
import ctypes
import errno
import os
import socket
import struct

BUSYBOX, BEFORE_OTHERS = "/usr/bin/busybox", "/usr/local/bin"
RTM_NEWADDR, RTM_DELADDR, NLM_F_REQUEST, NLM_F_ACK, IFA_ADDRESS, IFA_LOCAL = 20, 21, 1, 4, 1, 2
RT_SCOPE_HOST, LOOPBACK = 254, 1
ALL_HOSTS = socket.inet_aton("224.0.0.1")
AT_FDCWD, AT_NO_AUTOMOUNT, STATX_BASIC_STATS = -100, 0x800, 0x7FF


def stand_in_for_coreutils() -> None:
    """Put busybox's ``ls`` and ``stat`` before those of coreutils 9, where they cannot work.

    They ask not to trigger automounts, and a gVisor of 2022 refuses a request with that flag, which Linux ignores
    where it means nothing.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(256)
    refused = libc.statx(AT_FDCWD, b"/", AT_NO_AUTOMOUNT, STATX_BASIC_STATS, buffer) != 0
    if refused and ctypes.get_errno() == errno.EINVAL:
        os.makedirs(BEFORE_OTHERS, exist_ok=True)
        for name in ("ls", "stat"):
            with contextlib.suppress(FileExistsError):  # the template's own
                os.symlink(BUSYBOX, os.path.join(BEFORE_OTHERS, name))


def route_multicast() -> None:
    """Route multicast to the loopback: without that, who names no interface for it is told "Network is unreachable".

    This kernel takes no routes. It makes one for the network of each address that an interface is given. The address
    itself is taken away again, as one of a network other than its own, so that the route stays: a multicast address is
    none that programs expect an interface to have, and Fast DDS would announce itself there. A restored guest's network
    has none of that any more.

    Raises:
        OSError: The kernel refused.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.bind((0, 0))
        _change_address(link, RTM_NEWADDR, 4)
        _change_address(link, RTM_DELADDR, 32)


def _change_address(link: socket.socket, kind: int, prefix: int) -> None:
    attributes = b"".join(struct.pack("HH4s", 8, name, ALL_HOSTS) for name in (IFA_LOCAL, IFA_ADDRESS))
    body = struct.pack("BBBBI", socket.AF_INET, prefix, 0, RT_SCOPE_HOST, LOOPBACK) + attributes
    link.send(struct.pack("IHHII", 16 + len(body), kind, NLM_F_REQUEST | NLM_F_ACK, 1, 0) + body)
    (code,) = struct.unpack_from("i", link.recv(4096), 16)
    if code not in (0, -errno.EEXIST):
        raise OSError(-code, os.strerror(-code))
