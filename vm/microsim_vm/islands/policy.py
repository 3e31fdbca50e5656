"""What a template says about its network."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import Literal, NamedTuple

import msgspec

from microsim_vm.errors import NetworkError

Policy = Literal["none", "island", "egress"]
# A range that hosts rarely route: it is set aside for testing networks (RFC 2544). Islands take theirs from its first
# half; names that may be reached from them stand for addresses of the second.
SUBNETS = ipaddress.IPv4Network("198.18.0.0/16")
NAMES = ipaddress.IPv4Network("198.19.0.0/16")
ZERO = ipaddress.IPv4Network("0.0.0.0/8")
PREFIX = 30  # of a subnet for a guest and its gateway
VARIABLE = "MICROSIM_SUBNETS"
ADDRESS = re.compile(r"[0-9./]+")
NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")


def pool_of(text: str = "") -> ipaddress.IPv4Network:
    """Return the range that islands take their subnets from.

    Args:
        text: As an option says; where empty, the variable MICROSIM_SUBNETS, or the default.

    Raises:
        NetworkError: It is none, or has no room for an island.
    """
    told = os.environ.get(VARIABLE, "")
    where = "" if text else f"{VARIABLE}: "
    text = text or told or str(SUBNETS)
    try:
        pool = ipaddress.IPv4Network(text)
    except ValueError as error:
        problem = f"{text!r} is no range of addresses: {error}"
    else:
        if pool.prefixlen > PREFIX:
            problem = f"{pool} has no room for an island"
        elif pool.is_multicast or pool.is_reserved or pool.is_loopback or pool.is_link_local or pool.overlaps(ZERO):
            problem = f"{pool} has no addresses that a machine can have"
        elif pool.overlaps(NAMES):
            problem = f"{pool} overlaps {NAMES}, which stands for the names that egress may list"
        else:
            return pool
    raise NetworkError(f"{where}{problem}", hint=f"write a range such as {SUBNETS}")


class Network(msgspec.Struct, frozen=True):
    """A template's network.

    Attributes:
        policy: "none" (no interface), "island" (machines and a gateway, nothing beyond), or "egress" (and what
            ``allow`` names).
        allow: What may be reached: "name:port", "address:port" or "network/bits:port".
        publish: TCP ports of the guest that appear on the host's loopback.
    """

    policy: Policy = "none"
    allow: tuple[str, ...] = ()
    publish: tuple[int, ...] = ()


class Destination(NamedTuple):
    """One line of an allow-list.

    Attributes:
        host: A name, or "" where it is a network.
        network: The addresses that connections from the island are made to.
        port: The TCP port.
    """

    host: str
    network: ipaddress.IPv4Network
    port: int


def destinations(allow: tuple[str, ...]) -> list[Destination]:
    """Read an allow-list; each name gets an address of its own, by which the island knows it.

    Raises:
        ValueError: A line is none.
    """
    found: list[Destination] = []
    names: dict[str, ipaddress.IPv4Network] = {}
    for line in allow:
        host, _, port = line.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{line!r} is not host:port")
        if ADDRESS.fullmatch(host):
            found.append(Destination("", ipaddress.IPv4Network(host), int(port)))
            continue
        host = host.lower()
        if not NAME.fullmatch(host):
            raise ValueError(f"{host!r} is no host's name")
        address = names.setdefault(host, ipaddress.IPv4Network(NAMES.network_address + 1 + len(names)))
        found.append(Destination(host, address, int(port)))
    return found
