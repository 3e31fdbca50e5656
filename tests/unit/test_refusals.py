"""What tried to leave an island: read from frames that may be anything."""

from __future__ import annotations

import ipaddress
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from microsim_vm.islands import frames, namespaces
from microsim_vm.islands.frames import Frames
from microsim_vm.islands.island import Island
from microsim_vm.islands.policy import Network, pool_of
from microsim_vm.islands.refusals import ENOUGH, MAX_KEPT, WANTED, Refusals, attempted

SYN, ACK, RST = 0x02, 0x10, 0x04
SUBNET = ipaddress.IPv4Network("198.18.0.4/30")
GARBAGE = 20_000


def frame(protocol: int, target: str, payload: bytes, *, options: int = 0, ethertype: int = 0x0800) -> bytes:
    """Return an Ethernet frame with an IPv4 packet; ``options`` are words of the header beyond the five."""
    length = 20 + options * 4
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45 + options, 0, length + len(payload), 0, 0, 64, protocol, 0,
        socket.inet_aton("198.18.0.6"), socket.inet_aton(target),
    )  # fmt: skip
    return b"\2" * 12 + struct.pack("!H", ethertype) + header + b"\1" * (options * 4) + payload


def tcp(target: str, port: int, flags: int = SYN, *, options: int = 0) -> bytes:
    segment = struct.pack("!HHIIBBHHH", 40000, port, 0, 0, 5 << 4, flags, 1024, 0, 0)
    return frame(6, target, segment, options=options)


def udp(target: str, port: int) -> bytes:
    return frame(17, target, struct.pack("!HHHH", 40000, port, 8, 0))


def fragment(whole: bytes, flags_and_offset: int) -> bytes:
    return whole[:20] + struct.pack("!H", flags_and_offset) + whole[22:]


def refusals(*allowed: tuple[str, int]) -> Refusals:
    return Refusals(SUBNET, {(ipaddress.IPv4Network(network), port) for network, port in allowed})


def seen(found: Refusals, *frames: bytes, outgoing: bool = False) -> list[str]:
    """Show frames to the reader, which has to want more, and return its lines."""
    assert all(found._take(each, outgoing) for each in frames)
    return found.lines()


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (tcp("192.0.2.1", 80), ("tcp", "192.0.2.1", 80)),
        (tcp("192.0.2.1", 65535, options=10), ("tcp", "192.0.2.1", 65535)),
        (tcp("192.0.2.1", 80, SYN | ACK), None),  # an answer
        (tcp("192.0.2.1", 80, ACK), None),
        (tcp("192.0.2.1", 80, RST), None),
        (udp("192.0.2.1", 53), ("udp", "192.0.2.1", 53)),
        (udp("255.255.255.255", 67), ("udp", "255.255.255.255", 67)),
        (frame(1, "192.0.2.1", b"\x08\0\0\0"), ("icmp", "192.0.2.1", None)),
        (frame(132, "192.0.2.1", b""), ("protocol 132", "192.0.2.1", None)),
        (frame(6, "192.0.2.1", b"", ethertype=0x0806), None),
        (frame(6, "192.0.2.1", b"", ethertype=0x86DD), None),
        (fragment(udp("192.0.2.1", 53), 0x2000), ("udp", "192.0.2.1", 53)),  # the first one
        (fragment(udp("192.0.2.1", 53), 0x2001), None),
        (fragment(tcp("192.0.2.1", 80), 0x0001), None),
        (b"", None),
    ],
)
def test_frames_that_open_something(data: bytes, found: tuple[str, str, int | None] | None) -> None:
    expected = None if found is None else (found[0], ipaddress.IPv4Address(found[1]), found[2])
    assert attempted(data) == expected


def test_a_frame_that_is_cut_off_anywhere_is_no_attempt_or_the_same_one() -> None:
    for whole in (tcp("192.0.2.1", 80, options=3), udp("192.0.2.1", 53)):
        kinds = {attempted(whole[:length]) for length in range(len(whole))}
        assert kinds <= {None, attempted(whole)}


def test_garbage_is_read_without_an_error() -> None:
    draw = random.Random(7)
    found = refusals(("192.0.2.0/24", 80))
    for _ in range(GARBAGE):
        data = bytearray(draw.randbytes(draw.choice((0, 1, 13, 14, 33, 34, 35, 60, 100))))
        if len(data) > 14 and draw.random() < 0.9:
            data[12:14] = b"\x08\x00"
        if len(data) > 34 and draw.random() < 0.5:
            data[23] = draw.choice((1, 6, 17))
            data[20:22] = b"\0\0"  # no fragment
        assert found._take(bytes(data), draw.random() < 0.1)
    assert len(found.lines()) == MAX_KEPT


def test_what_is_allowed_or_inside_is_none() -> None:
    found = refusals(("192.0.2.0/24", 80), ("203.0.113.1/32", 443))
    fine = [tcp("192.0.2.9", 80), tcp("203.0.113.1", 443), tcp("198.18.0.6", 1), udp("198.18.0.7", 7400)]
    fine += [udp("239.255.0.1", 7400), udp("255.255.255.255", 9)]
    assert seen(found, *fine) == []
    refused = [tcp("192.0.2.9", 81), tcp("203.0.113.2", 443), udp("192.0.2.9", 80), tcp("198.18.0.8", 1)]
    assert seen(found, *refused) == [
        "tcp 192.0.2.9:81", "tcp 203.0.113.2:443", "udp 192.0.2.9:80", "tcp 198.18.0.8:1",
    ]  # fmt: skip


def test_what_is_asked_of_the_gateway_is_told_but_no_ping() -> None:
    asked = [udp("198.18.0.5", 53), tcp("198.18.0.5", 80), frame(1, "198.18.0.5", b"\x08\0\0\0")]
    assert seen(refusals(("0.0.0.0/0", 80)), *asked) == ["udp gateway:53", "tcp gateway:80"]


def test_what_has_no_ports_is_told_without_one_and_what_was_allowed_with_a_reason() -> None:
    found = refusals()
    found.add("tcp", "a.example", 443, "connection refused")
    found.add("tcp", "a.example", 443, "connection refused")
    assert seen(found, frame(1, "8.8.8.8", b""), frame(132, "8.8.8.8", b"")) == [
        "tcp a.example:443: connection refused (2 times)", "icmp 8.8.8.8", "protocol 132 8.8.8.8",
    ]  # fmt: skip


def test_what_the_gateway_sends_is_none() -> None:
    assert seen(refusals(), tcp("192.0.2.1", 80), outgoing=True) == []


def test_repeats_are_counted_and_kinds_limited() -> None:
    found = refusals()
    assert seen(found, *[tcp("192.0.2.1", 80)] * 3, udp("192.0.2.1", 53)) == [
        "tcp 192.0.2.1:80 (3 times)", "udp 192.0.2.1:53",
    ]  # fmt: skip
    for port in range(1000, 1000 + 2 * MAX_KEPT):
        found.add("tcp", "a.example", port)
    lines = found.lines()
    assert len(lines) == MAX_KEPT
    assert lines[2] == "tcp a.example:1000"
    assert seen(found, tcp("192.0.2.1", 80))[0] == "tcp 192.0.2.1:80 (4 times)"  # known ones are counted on


def test_threads_lose_no_count() -> None:
    found = refusals()

    def add() -> None:
        for _ in range(2000):
            found.add("tcp", "a.example", 80)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.lines() == ["tcp a.example:80 (8000 times)"]


@pytest.fixture
def island() -> Iterator[Island]:
    if os.geteuid() != 0:
        pytest.skip("only root sends frames into a namespace")
    with Island(Network("island"), f"frames {time.monotonic_ns()}", {"sim": "veth"}, pool=pool_of()) as island:
        yield island


def sender(island: Island) -> socket.socket:
    """Return a socket that sends frames as a guest does."""
    sock = namespaces.socket_in(island.plugs["sim"].namespace, socket.AF_PACKET, socket.SOCK_RAW)
    sock.bind(("eth0", 0))
    return sock


def test_the_kernel_hands_on_what_opens_something(island: Island) -> None:
    """Its program agrees with our reading, on frames of all kinds."""
    draw = random.Random(3)
    sent = [
        frame(6, "192.0.2.1", b"", ethertype=0x86DD),
        fragment(udp("192.0.2.1", 53), 0x2001),
        frame(1, "192.0.2.1", b""),
    ]
    for number in range(300):
        whole = tcp("192.0.2.1", number, draw.randrange(256), options=draw.randrange(11))
        sent += [whole, udp("192.0.2.1", number), fragment(whole, draw.choice((0, 0x2000, 0x4000, 0x0001, 0x1FFF)))]
    sent.append(udp("192.0.2.1", 9999) + bytes(500))
    came: list[bytes] = []

    def take(data: bytes, outgoing: bool) -> bool:
        assert not outgoing
        came.append(data)
        return True

    with Frames(island.namespace, island.interface, take, WANTED), sender(island) as sock:
        for each in sent:
            sock.send(each)
        with namespaces.socket_in(island.namespace, socket.AF_INET, socket.SOCK_DGRAM) as gateway:
            gateway.sendto(b"from the gateway itself", (str(island.plugs["sim"].address.ip), 9))
    ours = [each for each in came if each[:12] == b"\2" * 12]
    assert ours == [each[:ENOUGH] for each in sent if attempted(each) is not None]


def test_no_frame_of_a_burst_is_lost(island: Island) -> None:
    sent, came = 5000, []

    def take(data: bytes, outgoing: bool) -> bool:
        came.append(data)
        return True

    with Frames(island.namespace, island.interface, take) as reader, sender(island) as sock:
        for number in range(sent):
            sock.send(udp("192.0.2.1", number) + bytes(1000))
    assert reader.dropped == 0
    assert [port for each in came if each[:12] == b"\2" * 12 for _, _, port in [attempted(each) or (0, 0, 0)]] == [
        *range(sent)
    ]  # fmt: skip


def test_frames_without_room_are_counted(island: Island, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "BUFFER_BYTES", 64 << 10)
    sent, came, go_on = 2000, [], threading.Event()

    def take(data: bytes, outgoing: bool) -> bool:
        came.append(data)
        return go_on.wait(10)

    with Frames(island.namespace, island.interface, take) as reader, sender(island) as sock:
        for number in range(sent):
            sock.send(udp("192.0.2.1", number))
        go_on.set()
    assert reader.dropped > 0
    assert len(came) > 1
    assert len(came) + reader.dropped >= sent
