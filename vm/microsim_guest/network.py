"""The guest's interface to its island, down until a fork is told who it is, and the names that it knows."""

import fcntl
import socket
import struct
from typing import Any, Dict, Optional

from microsim_guest import kernel

SIOCGIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFHWADDR = 0x8913, 0x8916, 0x891C, 0x8924
ARPHRD_ETHER = 1
HOSTS, RESOLVER = "/etc/hosts", "/etc/resolv.conf"
OURS = "# this island"
OWN_ADDRESS = "127.0.1.1"  # of the host's own name, as in Debian

_current: Optional[Dict[str, Any]] = None


def configure(settings: Optional[Dict[str, Any]], anew: bool = False) -> None:
    """Give the interface its own hardware address, address and route, and bring it up; or nothing, without one.

    Args:
        settings: ``interface``, ``mac``, ``address``, ``bits`` and ``gateway`` (None where nothing is beyond it).
        anew: Whoever is at the other end is another one than before: what is known of him is forgotten.

    Raises:
        OSError: The kernel refused.
    """
    global _current
    if settings is None or (settings == _current and not anew):  # a fork that was started ahead has been told already
        return
    _current = settings
    name = settings["interface"].encode()
    if not kernel.is_gvisor():  # which takes all of it from the host's end
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            _bring(sock, name, up=False)  # which drops what a parent of this fork had, its routes above all
            mac = bytes.fromhex(settings["mac"].replace(":", ""))
            fcntl.ioctl(sock, SIOCSIFHWADDR, struct.pack("16sH14s", name, ARPHRD_ETHER, mac))
            mask = struct.pack("!I", 0xFFFFFFFF << (32 - settings["bits"]) & 0xFFFFFFFF)
            fcntl.ioctl(sock, SIOCSIFADDR, _address(name, socket.inet_aton(settings["address"])))
            fcntl.ioctl(sock, SIOCSIFNETMASK, _address(name, mask))
            _bring(sock, name, up=True)
            if settings["gateway"]:
                kernel.add_route(sock, b"\0" * 4, b"\0" * 4, gateway=socket.inet_aton(settings["gateway"]))


def write_names(settings: Optional[Dict[str, Any]]) -> None:
    """Let this host's own name and those of its island be known here, in place of those of the island before.

    Args:
        settings: ``names`` (addresses by name), and ``gateway``, which is asked for all others where there is one: it
            refuses at once, and the host gets to know of it.

    Raises:
        OSError: A file cannot be written.
    """
    before = _read(HOSTS)
    names = [(socket.gethostname(), OWN_ADDRESS), *(settings["names"].items() if settings else ())]
    lines = [line for line in before.splitlines(True) if not line.rstrip().endswith(OURS)]
    after = "".join([*lines, *("{} {} {}\n".format(address, name, OURS) for name, address in names)])
    if after != before:
        _write(HOSTS, after)
    if settings and settings["gateway"] and (not _read(RESOLVER) or _read(RESOLVER).startswith(OURS)):
        _write(RESOLVER, "{}\nnameserver {}\noptions timeout:1 attempts:1\n".format(OURS, settings["gateway"]))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


def prepare() -> None:
    """Make the file of names this guest's own already, in memory: a copy of it is what takes long in a fork."""
    with open(HOSTS, "a", encoding="utf-8"):
        pass


def _bring(sock: socket.socket, name: bytes, up: bool) -> None:
    request = fcntl.ioctl(sock, SIOCGIFFLAGS, struct.pack("16sH14x", name, 0))
    (flags,) = struct.unpack_from("H", request, 16)
    flags = flags | kernel.IFF_UP if up else flags & ~kernel.IFF_UP
    fcntl.ioctl(sock, kernel.SIOCSIFFLAGS, struct.pack("16sH14x", name, flags))


def _address(name: bytes, address: bytes) -> bytes:
    return struct.pack("16sHH4s8x", name, socket.AF_INET, 0, address)
