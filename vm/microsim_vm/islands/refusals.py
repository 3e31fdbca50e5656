"""What an island's machines tried to reach and could not."""

from __future__ import annotations

import ipaddress
import struct
import threading
from collections.abc import Collection

from microsim_vm.islands.frames import PACKET_OUTGOING, Filter, Frames

ETHERNET, ETHERTYPE_IPV4 = 14, 0x0800
ICMP, TCP, UDP = 1, 6, 17
SYN, ACK = 0x02, 0x10
LATER_FRAGMENT = 0x1FFF  # any of these bits beside the flags: the packet's beginning was in another frame
MAX_KEPT = 100
GATEWAY = "gateway"  # as the guest calls it
BROADCAST = ipaddress.IPv4Address("255.255.255.255")

# The kernel's part of `attempted`: IPv4 that is not the gateway's own, and of TCP only what opens a connection. The
# rest of a connection never wakes us.
LOAD_BYTE, LOAD_HALF, LOAD_WORD, LOAD_INDEXED_BYTE, HEADER_LENGTH = 0x30, 0x28, 0x20, 0x50, 0xB1
AND, IF_EQUAL, IF_ANY_BIT, RETURN = 0x54, 0x15, 0x45, 0x06
PACKET_TYPE = 0xFFFFF004  # where the kernel pretends to have that
ENOUGH = 128  # bytes of a frame: more than all headers
WANTED: Filter = (
    (LOAD_WORD, 0, 0, PACKET_TYPE),
    (IF_EQUAL, 11, 0, PACKET_OUTGOING),  # drop it
    (LOAD_HALF, 0, 0, ETHERNET - 2),
    (IF_EQUAL, 0, 9, ETHERTYPE_IPV4),  # or drop it
    (LOAD_HALF, 0, 0, ETHERNET + 6),
    (IF_ANY_BIT, 7, 0, LATER_FRAGMENT),  # drop it
    (LOAD_BYTE, 0, 0, ETHERNET + 9),
    (IF_EQUAL, 0, 4, TCP),  # or take it
    (HEADER_LENGTH, 0, 0, ETHERNET),
    (LOAD_INDEXED_BYTE, 0, 0, ETHERNET + 13),
    (AND, 0, 0, SYN | ACK),
    (IF_EQUAL, 0, 1, SYN),  # or drop it
    (RETURN, 0, 0, ENOUGH),
    (RETURN, 0, 0, 0),
)

Allowed = Collection[tuple[ipaddress.IPv4Network, int]]


class Refusals:
    """Attempts to leave an island that came to nothing, in the order of the first of each kind.

    Args:
        subnet: The island's own addresses, at which there is nothing to leave; of the gateway's, which is the first,
            nobody may want anything either.
        allowed: The networks and TCP ports that may be reached.
    """

    def __init__(self, subnet: ipaddress.IPv4Network, allowed: Allowed) -> None:
        self.subnet = subnet
        self._gateway = subnet[1]
        self._allowed = allowed
        self._lock = threading.Lock()
        self._found: dict[str, int] = {}

    def lines(self) -> list[str]:
        """Return what was tried, why it failed where it was allowed, and how often; the first hundred.

        "tcp 192.0.2.1:80 (3 times)", "udp gateway:53", "icmp 192.0.2.1", "tcp a.example:443: connection refused".
        """
        with self._lock:
            return [text if count == 1 else f"{text} ({count} times)" for text, count in self._found.items()]

    def add(self, kind: str, address: ipaddress.IPv4Address | str, port: int | None, why: str = "") -> None:
        """Note one; ``why`` it failed where it was allowed."""
        text = f"{kind} {address}" + ("" if port is None else f":{port}") + (f": {why}" if why else "")
        with self._lock:
            if text in self._found or len(self._found) < MAX_KEPT:
                self._found[text] = self._found.get(text, 0) + 1

    def watched(self, namespace: int, interface: str) -> Frames:
        """Return a reader of frames that notes each attempt until it is closed."""
        return Frames(namespace, interface, self._take, WANTED)

    def _take(self, frame: bytes, outgoing: bool) -> bool:
        attempt = None if outgoing else attempted(frame)
        if attempt is not None:
            kind, address, port = attempt
            if address == self._gateway:
                if port is not None:  # it may be pinged
                    self.add(kind, GATEWAY, port)
            elif not self._inside(address) and not self._free(kind, address, port):
                self.add(kind, address, port)
        return True

    def _inside(self, address: ipaddress.IPv4Address) -> bool:
        return address in self.subnet or address.is_multicast or address == BROADCAST

    def _free(self, kind: str, address: ipaddress.IPv4Address, port: int | None) -> bool:
        return kind == "tcp" and any(address in network and port == each for network, each in self._allowed)


def attempted(frame: bytes) -> tuple[str, ipaddress.IPv4Address, int | None] | None:
    """Return protocol, address and port of a frame that opens a connection or is a datagram; None of another one.

    There is a port where the protocol has some.
    """
    if len(frame) < ETHERNET + 20 or struct.unpack_from("!H", frame, ETHERNET - 2)[0] != ETHERTYPE_IPV4:
        return None
    if struct.unpack_from("!H", frame, ETHERNET + 6)[0] & LATER_FRAGMENT:
        return None
    protocol, start = frame[ETHERNET + 9], ETHERNET + (frame[ETHERNET] & 0xF) * 4
    address = ipaddress.IPv4Address(frame[ETHERNET + 16 : ETHERNET + 20])
    if protocol == UDP and len(frame) >= start + 8:
        return "udp", address, struct.unpack_from("!H", frame, start + 2)[0]
    if protocol == TCP and len(frame) >= start + 14 and frame[start + 13] & (SYN | ACK) == SYN:
        return "tcp", address, struct.unpack_from("!H", frame, start + 2)[0]
    if protocol not in (TCP, UDP):
        return "icmp" if protocol == ICMP else f"protocol {protocol}", address, None
    return None
