"""Namespaces, links, and sockets in them, made for this process by a child that may; see :mod:`maker`."""

from __future__ import annotations

import atexit
import errno
import ipaddress
import json
import os
import socket
import sys
import threading
import time
from typing import Any, NamedTuple

from microsim_vm import shield
from microsim_vm.companion import Companion
from microsim_vm.errors import NetworkError
from microsim_vm.islands.plug import Plug

ROUTES_S = 2.0
MAX_ANSWER = 1 << 20
MAX_DESCRIPTORS = 253  # as many as the kernel passes at a time
# What a number of the kernel's usually means here.
CAUSES = {
    errno.EPERM: "this user may make no network namespaces, or nothing in them: the kernel or the container forbids it",
    errno.EACCES: "this user may not open /dev/net/tun, or a security module forbids it",
    errno.ENOENT: "/dev/net/tun does not exist: the kernel's module tun is not loaded",
    errno.ENODEV: "/dev/net/tun exists, and the kernel's module tun does not",
    errno.EOPNOTSUPP: "the kernel has no support for a kind of link: tun, veth or bridge",
    errno.ENOSPC: "the limit of network namespaces is reached (sysctl user.max_net_namespaces)",
    errno.EMFILE: "too many files are open (ulimit -n)",
}

_lock = threading.Lock()
_current: Maker | None = None
_routed: dict[ipaddress.IPv4Network, tuple[float, list[ipaddress.IPv4Network]]] = {}


class Made(NamedTuple):
    """What came of a request: an answer and descriptors, which are the caller's."""

    value: Any
    descriptors: list[int]

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in self.descriptors:
            os.close(descriptor)


class Maker(Companion):
    """The child of this process that makes namespaces.

    Args:
        user: The user namespace of one that was there before, whose islands live on; None for the first.

    Attributes:
        user: Descriptor of the user namespace that they belong to; None where they are the host's.

    Raises:
        NetworkError: None can be made on this machine.
    """

    def __init__(self, user: int | None = None) -> None:
        # The child has no environment, and is to find the packages where we have found them.
        code = f"import sys; sys.path[:] = {sys.path!r}; from microsim_vm.islands import maker; maker.main()"
        super().__init__([sys.executable, "-c", code])
        self.user = user
        try:
            entered = self.ask("begin", () if user is None else (user,)).descriptors
        except BaseException:
            self.leave()
            raise
        if entered:
            self.user = entered[0]

    def ask(self, op: str, descriptors: tuple[int, ...] = (), **request: Any) -> Made:
        """Have something made.

        Raises:
            NetworkError: It cannot be.
        """
        return shield.made(lambda: self._exchange(op, descriptors, request), Made.close)

    def _exchange(self, op: str, descriptors: tuple[int, ...], request: dict[str, Any]) -> Made:
        with self._turn:
            try:
                socket.send_fds(self._link, [json.dumps({"op": op, **request}).encode()], list(descriptors))
            except OSError as error:
                raise self._lost(error) from error
            return self._receive()

    def _receive(self) -> Made:
        try:
            data, made, _, _ = socket.recv_fds(self._link, MAX_ANSWER, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            raise self._lost(None)
        answer = json.loads(data)
        if "error" in answer:
            raise NetworkError(
                f"an island could not be made: {answer['error']}",
                cause=CAUSES.get(answer["errno"], ""),
                hint="microsim doctor tries each step; network: none in the template does without",
            )
        return Made(answer["ok"], made)

    def _lost(self, error: OSError | None) -> NetworkError:
        return NetworkError(
            "the process that makes islands has ended", cause=str(error or ""), details=self._last_words()
        )


def maker() -> Maker:
    """Return this process's maker, started where there is none.

    Raises:
        NetworkError: None can be made on this machine.
    """
    global _current
    with _lock:
        if _current is None or not _current.alive():
            user = None if _current is None else _current.user
            _leave()
            _current = Maker(user)
        return _current


@atexit.register
def _leave() -> None:
    global _current
    if _current is not None:
        _current.leave()
        _current = None


def socket_in(namespace: int, family: int, kind: int, protocol: int = 0) -> socket.socket:
    """Return a socket that belongs to a network namespace, whoever uses it.

    Raises:
        NetworkError: It cannot be made.
    """
    (descriptor,) = maker().ask("socket", (namespace,), family=family, type=kind, protocol=protocol).descriptors
    return socket.socket(fileno=descriptor)


def renew(plug: Plug) -> None:
    """Give the far end of a veth its address again, which its engine has taken from it.

    Raises:
        NetworkError: It cannot be given.
    """
    maker().ask("address", (plug.namespace,), **plug.link())


def routed(pool: ipaddress.IPv4Network) -> list[ipaddress.IPv4Network]:
    """Return what the host routes of a range; hosts may have very many routes, so it is not asked at each island.

    Raises:
        NetworkError: It cannot be asked.
    """
    now = time.monotonic()
    known = _routed.get(pool)
    if known is None or now - known[0] > ROUTES_S:
        found = maker().ask("routes", pool=str(pool)).value
        known = _routed[pool] = now, [ipaddress.IPv4Network(text) for text in found]
    return known[1]
