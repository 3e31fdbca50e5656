"""Makes namespaces, links and sockets for a process of ours, as a child of it: ``python -m ...maker``.

To make a network namespace, a thread has to enter it, and who is not root has to enter a user namespace first, which
a process with threads cannot. So one small child does it, reads requests from its standard input (a socket), and
sends back descriptors. It lives in a network namespace of its own: nothing that it does can reach the host's.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import ipaddress
import json
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute, NetlinkError

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
MAX_REQUEST = 1 << 16
NAMESPACE = "/proc/thread-self/ns/net"
LOCAL_TABLE = 255
# Forwarding may be on where the host forwards; without IPv6 the gateway has no second way to be reached.
SETTINGS = {"ipv4/ip_forward": "0", "ipv6/conf/all/disable_ipv6": "1", "ipv6/conf/default/disable_ipv6": "1"}

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *words: int) -> None:
    if getattr(_libc, name)(*words) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def leave_host(user: int | None) -> int | None:
    """Enter a network namespace of our own; return the user namespace that was made for it, None where none was.

    Args:
        user: The user namespace to enter for it; None to do without one where that is possible.

    Raises:
        OSError: This user may make none.
    """
    if user is not None:
        _call("setns", user, CLONE_NEWUSER)
        _call("unshare", CLONE_NEWNET)
        return None
    try:
        _call("unshare", CLONE_NEWNET)
        return None
    except PermissionError:
        owner, group = os.geteuid(), os.getegid()
        _call("unshare", CLONE_NEWUSER | CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {owner} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        return os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)


class Maker:
    """Carries requests out.

    Args:
        host: Asks the host's network for its routes.
    """

    def __init__(self, host: IPRoute) -> None:
        self._host = host
        self._home = os.open(NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)

    def routes(self, request: dict[str, Any], given: list[int]) -> tuple[Any, list[int]]:
        """Return what the host routes of a range, in all of its tables."""
        pool = ipaddress.IPv4Network(request["pool"])
        found = set()
        for route in self._host.get_routes(family=socket.AF_INET):
            destination = route.get_attr("RTA_DST")
            if destination is not None:
                network = ipaddress.IPv4Network(f"{destination}/{route['dst_len']}", strict=False)
                if network.overlaps(pool):
                    found.add(network)
        # What is inside another one says nothing more.
        return [str(network) for network in ipaddress.collapse_addresses(found)], []

    def island(self, request: dict[str, Any], given: list[int]) -> tuple[Any, list[int]]:
        """Make a namespace with a gateway and links; return its descriptor, and one for each link.

        Those are a tap's, or that of another namespace, in which the link's far end is.
        """
        made: list[int] = []
        try:
            gateway = self._new_namespace(made)
            for name, value in SETTINGS.items():
                _set(name, value)
            with IPRoute() as network:
                main = request["bridge"] or request["links"][0]["name"]
                if request["bridge"]:
                    network.link("add", ifname=main, kind="bridge")
                for link in request["links"]:
                    if link["wire"] == "tap":
                        made.append(_tap(link["name"]))
                    else:
                        self._veth(link, gateway, made)
                for link in request["links"]:
                    index = network.link_lookup(ifname=link["name"])[0]
                    if request["bridge"]:
                        network.link("set", index=index, master=network.link_lookup(ifname=main)[0])
                    network.link("set", index=index, state="up")
                index = network.link_lookup(ifname=main)[0]
                network.addr("add", index=index, address=request["gateway"], prefixlen=request["bits"])
                network.link("set", index=index, state="up")
                network.link("set", index=1, state="up")
                if request["any_address"]:
                    # Whatever a machine connects to is the gateway, which then decides; all but the machines, that is.
                    # It may answer in the name of an address only where that is in the kernel's own table.
                    network.route("add", dst=request["subnet"], oif=index, scope="link", table=LOCAL_TABLE)
                    network.route("add", dst="0.0.0.0/0", oif=1, type="local", scope="host", table=LOCAL_TABLE)
                    _set("ipv4/icmp_echo_ignore_all", "1")  # else everything could be pinged
                    _set("ipv4/icmp_ratelimit", "0")  # each datagram is refused, not one in a while
        except BaseException:
            for descriptor in made:
                os.close(descriptor)
            raise
        finally:
            _call("setns", self._home, CLONE_NEWNET)
        return {}, made

    def address(self, request: dict[str, Any], given: list[int]) -> tuple[Any, list[int]]:
        """Give the far end of a link, in the namespace that is given, its address again."""
        _call("setns", given[0], CLONE_NEWNET)
        try:
            _address(request)
        finally:
            _call("setns", self._home, CLONE_NEWNET)
        return {}, []

    def socket(self, request: dict[str, Any], given: list[int]) -> tuple[Any, list[int]]:
        """Make a socket in the namespace that is given."""
        _call("setns", given[0], CLONE_NEWNET)
        try:
            made = socket.socket(request["family"], request["type"], request["protocol"])
            return {}, [made.detach()]
        finally:
            _call("setns", self._home, CLONE_NEWNET)

    def _new_namespace(self, made: list[int]) -> int:
        _call("unshare", CLONE_NEWNET)
        made.append(os.open(NAMESPACE, os.O_RDONLY | os.O_CLOEXEC))
        return made[-1]

    def _veth(self, link: dict[str, Any], gateway: int, made: list[int]) -> None:
        """Make a pair of interfaces whose far end is in a namespace of its own, with the guest's address."""
        far = self._new_namespace(made)
        for name, value in SETTINGS.items():
            _set(name, value)
        _call("setns", gateway, CLONE_NEWNET)
        with IPRoute() as network:
            peer = {"ifname": link["guest"], "net_ns_fd": far, "address": link["mac"]}
            network.link("add", ifname=link["name"], kind="veth", peer=peer)
        _call("setns", far, CLONE_NEWNET)
        _address(link)
        _call("setns", gateway, CLONE_NEWNET)


def _address(link: dict[str, Any]) -> None:
    """Give the far end of a link its address, and its way out where it has one; in the namespace that we are in."""
    with IPRoute() as network:
        index = network.link_lookup(ifname=link["guest"])[0]
        network.link("set", index=1, state="up")
        network.link("set", index=index, state="up")
        network.addr("replace", index=index, address=link["address"], prefixlen=link["bits"])
        if link["gateway"]:
            network.route("replace", dst="0.0.0.0/0", gateway=link["gateway"])


def _set(name: str, value: str) -> None:
    """Change a setting of the network, where it has another value.

    Containers may have all settings read-only. That is passed over: there is no second link to forward to, and a
    gateway that answers more than it should has nothing to tell.
    """
    path = Path("/proc/sys/net", name)
    with contextlib.suppress(FileNotFoundError):  # a kernel may have no IPv6
        if path.read_text().strip() != value:
            try:
                path.write_text(value)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise


def _tap(name: str) -> int:
    """Make a tap, which lasts as long as its descriptor."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    except BaseException:
        os.close(tap)
        raise
    return tap


def _answer(link: socket.socket, told: dict[str, Any], descriptors: list[int]) -> None:
    socket.send_fds(link, [json.dumps(told).encode()], descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def _failed(error: Exception, doing: str) -> dict[str, Any]:
    code = error.code if isinstance(error, NetlinkError) else getattr(error, "errno", None)
    return {"error": f"{doing}: {error}", "errno": code or errno.EIO}


def main() -> None:
    """Serve one process until it closes its end."""
    link = socket.socket(fileno=os.dup(0))
    host = IPRoute()  # before we leave it
    _, given, _, _ = socket.recv_fds(link, MAX_REQUEST, 1)
    try:
        user = leave_host(given[0] if given else None)
        maker = Maker(host)
    except OSError as error:
        _answer(link, _failed(error, "making a namespace"), [])
        sys.exit(1)
    _answer(link, {"ok": {}}, [] if user is None else [user])
    while True:
        data, given, _, _ = socket.recv_fds(link, MAX_REQUEST, 4)
        if not data:
            return
        request = json.loads(data)
        try:
            value, made = getattr(maker, request["op"])(request, given)
            _answer(link, {"ok": value}, made)
        except (OSError, NetlinkError, IndexError) as error:
            _answer(link, _failed(error, request["op"]), [])
        finally:
            for descriptor in given:
                os.close(descriptor)


if __name__ == "__main__":
    main()
