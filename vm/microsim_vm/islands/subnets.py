"""The addresses of islands: each has a subnet of its own among all that live on this host.

A subnet is taken by a lock on one byte of a file, at the offset that its address has: the kernel gives it up with its
holder, however that dies, so that there is no record that could be wrong. Islands of several machines take several
neighbouring subnets as one, by a lock on as many bytes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import ipaddress
import os
import struct
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from microsim_vm import admission, runtime
from microsim_vm.errors import SubnetsExhaustedError
from microsim_vm.islands.policy import PREFIX

WAIT_S = 60.0
FILE = "subnets"
ALL_ROUTED = 8  # a route of fewer bits stands for "everything else", and takes no address from anybody


class Subnet:
    """A subnet that is ours until it is closed.

    Attributes:
        network: Its addresses.
    """

    def __init__(self, network: ipaddress.IPv4Network, lock: int) -> None:
        self.network = network
        self._lock = lock

    @property
    def gateway(self) -> ipaddress.IPv4Address:
        """The gateway's address, the first."""
        return self.network.network_address + 1

    def machine(self, number: int) -> ipaddress.IPv4Address:
        """Return the address of a machine: after the gateway's, in order."""
        return self.network.network_address + 2 + number

    def close(self) -> None:
        """Give it up; may be called again."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def bits_for(machines: int) -> int:
    """Return the length of the prefix of the smallest subnet for a gateway and this many machines."""
    return min(PREFIX, 32 - (machines + 2).bit_length())


def take(
    pool: ipaddress.IPv4Network, owner: str, routed: Sequence[ipaddress.IPv4Network], *, machines: int = 1,
    wait_s: float = WAIT_S,
) -> Subnet:  # fmt: skip
    """Take a free subnet; the same owner is given the same one where it is free.

    Args:
        pool: Where from.
        owner: A name, which decides where the search begins.
        routed: What the host routes, which is left alone.
        machines: How many addresses are needed beside the gateway's.
        wait_s: How long to wait while all are taken, seconds.

    Raises:
        SubnetsExhaustedError: None became free.
    """
    bits = bits_for(machines)
    if bits < pool.prefixlen:
        raise SubnetsExhaustedError(
            f"an island of {machines} machines needs a /{bits}, and the pool is {pool}",
            hint="give a larger pool: --microsim-subnets, or MICROSIM_SUBNETS",
        )
    taken = [route for route in routed if route.prefixlen >= ALL_ROUTED and route.overlaps(pool)]
    lock = os.open(runtime.folder() / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + wait_s
        while True:
            tried = 0
            for network in _candidates(pool, bits, owner, taken):
                if _locked(lock, network):
                    return Subnet(network, lock)
                tried += 1
            if not tried:
                raise SubnetsExhaustedError(
                    f"no subnet of {pool} is left for islands: the host routes all of it",
                    details="\n".join(map(str, taken[:20])),
                    hint="choose another range: --microsim-subnets 10.213.0.0/16, or MICROSIM_SUBNETS",
                )
            if time.monotonic() > deadline:
                raise SubnetsExhaustedError(
                    f"all {tried} subnets of {pool} are taken by islands that live, and none became free within "
                    f"{wait_s:g} s",
                    hint="microsim net shows them; run fewer at a time, or give a larger pool: --microsim-subnets",
                )
            if wait_s > 0:
                admission.give_up_idle()  # what is held ahead holds a subnet too
            time.sleep(0.05)
    except BaseException:
        os.close(lock)
        raise


def _candidates(
    pool: ipaddress.IPv4Network, bits: int, owner: str, taken: Sequence[ipaddress.IPv4Network]
) -> Iterator[ipaddress.IPv4Network]:
    """Yield all subnets of a pool that the host does not route, beginning at one that the owner's name decides."""
    count = 1 << (bits - pool.prefixlen)
    first = int.from_bytes(hashlib.sha256(owner.encode()).digest()[:8]) % count
    for number in range(count):
        start = int(pool.network_address) + (first + number) % count * (1 << (32 - bits))
        network = ipaddress.IPv4Network((start, bits))
        if not any(network.overlaps(route) for route in taken):
            yield network


def _locked(file: int, network: ipaddress.IPv4Network) -> bool:
    """Lock the bytes of a subnet, where nobody else holds one of them."""
    # struct flock: the lock belongs to the open file, not to the process, so that no other descriptor drops it.
    start, length = int(network.network_address) >> 2, network.num_addresses >> 2
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, wanted)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


class Usage(NamedTuple):
    """What a pool's addresses are used for; all in subnets of one machine.

    Attributes:
        total: All.
        routed: Those that the host routes.
        taken: Those that islands have.
    """

    total: int
    routed: int
    taken: int


def usage(pool: ipaddress.IPv4Network, routed: Sequence[ipaddress.IPv4Network]) -> Usage:
    """Count a pool's subnets."""
    inside = [route for route in routed if route.prefixlen >= ALL_ROUTED and route.overlaps(pool)]
    blocks = [route.supernet(new_prefix=min(route.prefixlen, PREFIX)) for route in inside]
    counted = sum(min(block.num_addresses, pool.num_addresses) for block in ipaddress.collapse_addresses(blocks))
    lock = os.open(runtime.folder() / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        taken = _taken(lock, int(pool.network_address) >> 2, pool.num_addresses >> 2)
    finally:
        os.close(lock)
    return Usage(pool.num_addresses >> 2, counted >> 2, taken)


def _taken(file: int, start: int, length: int) -> int:
    """Count the bytes of a range that somebody has locked."""
    count = 0
    ranges = [(start, start + length)]
    while ranges:
        start, end = ranges.pop()
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
        kind, _, first, held, _ = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))
        if kind == fcntl.F_UNLCK:
            continue
        begin, finish = max(first, start), min(first + held, end)  # one of those that are there, not the first
        count += finish - begin
        ranges += [each for each in ((start, begin), (finish, end)) if each[0] < each[1]]
    return count
