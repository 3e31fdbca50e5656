"""What an island's machines tried to reach and may not."""

from __future__ import annotations

import ipaddress
import struct
import threading
from collections.abc import Collection

from microsim_vm.islands.frames import Frames

ETHERNET, ETHERTYPE_IPV4 = 14, 0x0800
TCP, UDP = 6, 17
SYN, ACK = 0x02, 0x10
MAX_KEPT = 100

Allowed = Collection[tuple[ipaddress.IPv4Network, int]]


class Refusals:
    """Attempts to leave an island, in the order of the first of each kind.

    Args:
        subnet: The island's own addresses, at which there is nothing to leave.
        allowed: The networks and TCP ports that may be reached.
    """

    def __init__(self, subnet: ipaddress.IPv4Network, allowed: Allowed) -> None:
        self._subnet = subnet
        self._allowed = allowed
        self._lock = threading.Lock()
        self._found: dict[str, int] = {}

    def lines(self) -> list[str]:
        """Return what was refused and how often, "tcp 192.0.2.1:80 (3 times)", the first hundred."""
        with self._lock:
            return [text if count == 1 else f"{text} ({count} times)" for text, count in self._found.items()]

    def add(self, kind: str, address: ipaddress.IPv4Address | str, port: int) -> None:
        """Note one."""
        text = f"{kind} {address}:{port}"
        with self._lock:
            if text in self._found or len(self._found) < MAX_KEPT:
                self._found[text] = self._found.get(text, 0) + 1

    def watched(self, namespace: int, interface: str) -> Frames:
        """Return a reader of frames that notes each attempt until it is closed."""
        return Frames(namespace, interface, self._take)

    def _take(self, frame: bytes, outgoing: bool) -> bool:
        attempt = None if outgoing else attempted(frame)
        if attempt is not None:
            kind, address, port = attempt
            inside = address in self._subnet or address.is_multicast or address == BROADCAST
            free = kind == "tcp" and any(address in network and port == each for network, each in self._allowed)
            if not inside and not free:
                self.add(kind, address, port)
        return True


BROADCAST = ipaddress.IPv4Address("255.255.255.255")


def attempted(frame: bytes) -> tuple[str, ipaddress.IPv4Address, int] | None:
    """Return protocol, address and port of a frame that opens a connection or is a datagram; None of another one."""
    if len(frame) < ETHERNET + 20 or struct.unpack_from("!H", frame, 12)[0] != ETHERTYPE_IPV4:
        return None
    protocol, start = frame[ETHERNET + 9], ETHERNET + (frame[ETHERNET] & 0xF) * 4
    address = ipaddress.IPv4Address(frame[ETHERNET + 16 : ETHERNET + 20])
    if protocol == UDP and len(frame) >= start + 8:
        return "udp", address, struct.unpack_from("!H", frame, start + 2)[0]
    if protocol == TCP and len(frame) >= start + 14 and frame[start + 13] & (SYN | ACK) == SYN:
        return "tcp", address, struct.unpack_from("!H", frame, start + 2)[0]
    if protocol not in (TCP, UDP):
        return f"protocol {protocol}", address, 0
    return None
