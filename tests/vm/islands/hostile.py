"""Runs in a guest as root: tries whatever may lead out of its island; prints who answered.

Its word: ``interface``, ``address``, ``bits``, ``gateway`` and ``mac`` are its own, ``targets`` are addresses and
ports of others, ``samples`` more addresses to ask for, ``sources`` addresses to speak as.
"""

import errno
import fcntl
import ipaddress
import json
import os
import select
import socket
import struct
import sys
import threading
import time

words = json.loads(sys.argv[1])
NAME, ADDRESS, GATEWAY = words["interface"], words["address"], words["gateway"]
MAC = bytes.fromhex(words["mac"].replace(":", ""))
OTHER_MACS = [bytes.fromhex("02deadbeef01"), bytes.fromhex("06cafe000001")]
BROADCAST = b"\xff" * 6
OUTGOING = 4
SYN = 2
answers = {}
sent = {}


def count(what):
    """Note one more of a kind."""
    sent[what] = sent.get(what, 0) + 1


def checksum(data):
    """Return the Internet checksum."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ip(protocol, source, target, payload, options=b""):
    """Return an IPv4 packet."""
    words = 5 + len(options) // 4
    fields = (0x40 | words, 0, words * 4 + len(payload), os.getpid() & 0xFFFF, 0, 64, protocol)
    addresses = socket.inet_aton(source) + socket.inet_aton(target)
    head = struct.pack("!BBHHHBBH", *fields, 0) + addresses + options
    return struct.pack("!BBHHHBBH", *fields, checksum(head)) + addresses + options + payload


def tcp_syn(source, target, port, number):
    """Return a segment that opens a connection."""
    addresses = socket.inet_aton(source) + socket.inet_aton(target)
    fields = struct.pack("!HHIIBB", number, port, 1, 0, 5 << 4, SYN)
    pseudo = addresses + struct.pack("!BBH", 0, 6, 20)
    check = checksum(pseudo + fields + struct.pack("!HHH", 1024, 0, 0))
    return fields + struct.pack("!HHH", 1024, check, 0)


def udp(port, text, number=40000):
    """Return a datagram without a checksum."""
    return struct.pack("!HHHH", number, port, 8 + len(text), 0) + text


def ping(text):
    """Return an echo request."""
    head = struct.pack("!BBHHH", 8, 0, 0, 7, 7)
    return struct.pack("!BBHHH", 8, 0, checksum(head + text), 7, 7) + text


def arp(source, target, mac=MAC):
    """Return the frame that asks who has an address."""
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + mac + socket.inet_aton(source)
    return BROADCAST + mac + b"\x08\x06" + body + b"\0" * 6 + socket.inet_aton(target)


def solicited(target, mac=MAC):
    """Return a neighbour solicitation, and a ping of all nodes, as frames of IPv6."""
    own = b"\xfe\x80" + b"\0" * 6 + mac[:3] + b"\xff\xfe" + mac[3:]
    wanted = ipaddress.IPv6Address(target).packed
    group = b"\xff\x02" + b"\0" * 9 + b"\x01\xff" + wanted[13:]
    for kind, body, receiver in (
        (135, b"\0" * 4 + wanted + b"\x01\x01" + mac, group),
        (128, struct.pack("!HH", 7, 7) + b"anybody", ipaddress.IPv6Address("ff02::1").packed),
        (128, struct.pack("!HH", 7, 8) + b"anybody", wanted),
    ):
        message = struct.pack("!BBH", kind, 0, 0) + body
        pseudo = own + receiver + struct.pack("!IHBB", len(message), 0, 0, 58)
        message = message[:2] + struct.pack("!H", checksum(pseudo + message)) + message[4:]
        head = struct.pack("!IHBB", 6 << 28, len(message), 58, 255)
        yield b"\x33\x33" + receiver[12:] + mac + b"\x86\xdd" + head + own + receiver + message


def note(frame):
    """Keep who sent a frame, and as whom."""
    sender, kind = frame[6:12], struct.unpack_from("!H", frame, 12)[0]
    if sender in (MAC, *OTHER_MACS):
        return
    address, detail = "", f"{kind:04x}"
    if kind == 0x0806:
        address, detail = socket.inet_ntoa(frame[28:32]), "arp {}".format(struct.unpack_from("!H", frame, 20)[0])
    elif kind == 0x0800:
        address, detail = socket.inet_ntoa(frame[26:30]), f"ip {frame[23]}"
    key = (sender.hex(":"), address, detail)
    answers[key] = answers.get(key, 0) + 1


def listen(sock, ended):
    """Read all that arrives."""
    sock.settimeout(0.1)
    while True:
        try:
            frame, address = sock.recvfrom(65535)
        except TimeoutError:
            if ended.is_set():
                return
            continue
        if address[2] != OUTGOING:
            note(frame)


def raw(sock):
    """Send frames that no kernel would."""

    def out(what, frame):
        try:
            sock.send(frame)
            count(what)
        except OSError as error:
            count(f"{what} refused: {errno.errorcode.get(error.errno, error.errno)}")

    own = ipaddress.IPv4Interface("{}/{}".format(ADDRESS, words["bits"])).network
    targets = [address for address, _ in words["targets"]]
    for address in [*map(str, own), *targets, *words["samples"]]:
        out("arp", arp(ADDRESS, address))
        out("arp of another", arp("0.0.0.0", address, OTHER_MACS[0]))
    for address in ["fe80::1", "fe80::2", *words["targets6"]]:
        for frame in solicited(address):
            out("ipv6", frame)
    time.sleep(0.3)
    found = [key for key in answers if key[2] == "arp 2" and key[1] == GATEWAY]
    gateway = bytes.fromhex(found[0][0].replace(":", "")) if found else BROADCAST
    for receiver in {gateway, BROADCAST}:
        for mac in (MAC, *OTHER_MACS):
            head = receiver + mac + b"\x08\x00"
            for number, (address, port) in enumerate(words["targets"]):
                for source in (ADDRESS, *words["sources"]):
                    out("tcp", head + ip(6, source, address, tcp_syn(source, address, port, 41000 + number)))
                    out("udp", head + ip(17, source, address, udp(port, b"raw")))
                    out("icmp", head + ip(1, source, address, ping(b"raw")))
                # Loose and strict source routes through the gateway.
                for option in (0x83, 0x89):
                    route = struct.pack("BBB", option, 7, 4) + socket.inet_aton(address) + b"\0"
                    out("source route", head + ip(17, ADDRESS, GATEWAY, udp(port, b"routed"), route))
                    out("source route", head + ip(1, ADDRESS, GATEWAY, ping(b"routed"), route))
                    segment = tcp_syn(ADDRESS, address, port, 42000 + number)
                    out("source route", head + ip(6, ADDRESS, GATEWAY, segment, route))
    for source, target in ((ADDRESS, "255.255.255.255"), (ADDRESS, "239.255.0.1"), ("0.0.0.0", "255.255.255.255")):
        port = 67 if source == "0.0.0.0" else 7400
        receiver = BROADCAST if target.startswith("255") else b"\x01\x00\x5e\x7f\x00\x01"
        frame = receiver + MAC + b"\x08\x00" + ip(17, source, target, udp(port, b"flood" * 200))
        deadline = time.monotonic() + 0.4
        while time.monotonic() < deadline:
            out("flood", frame)


def flags(sock, up):
    """Bring the interface up or down."""
    (found,) = struct.unpack_from("H", fcntl.ioctl(sock, 0x8913, struct.pack("16sH14x", NAME.encode(), 0)), 16)
    found = found | 1 if up else found & ~1
    fcntl.ioctl(sock, 0x8914, struct.pack("16sH14x", NAME.encode(), found))


def change_mac(mac):
    """Give the interface another hardware address; tell whether that was possible."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            flags(sock, False)
        except OSError:
            return False
        try:
            fcntl.ioctl(sock, 0x8924, struct.pack("16sH14s", NAME.encode(), 1, mac))
        except OSError:
            return False
        finally:
            flags(sock, True)
    return True


def route_all():
    """Route everything to the gateway; tell whether that is so."""
    route = bytearray(120)
    for offset, address in ((8, "0.0.0.0"), (24, GATEWAY), (40, "0.0.0.0")):
        struct.pack_into("=HH4s", route, offset, socket.AF_INET, 0, socket.inet_aton(address))
    struct.pack_into("=H", route, 56, 3)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            fcntl.ioctl(sock, 0x890B, bytes(route))
        except OSError as error:
            return error.errno == errno.EEXIST
    return True


def connect_all():
    """Connect to all targets at once, and send each a datagram; return how each attempt ended."""
    ended = {}
    waiting = {}
    for address, port in words["targets"]:
        key = f"{address}:{port}"
        sock = socket.socket()
        sock.setblocking(False)
        code = sock.connect_ex((address, port))
        if code == errno.EINPROGRESS:
            waiting[sock] = key
        else:
            ended[key] = errno.errorcode[code] if code else "connected"
            sock.close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
            try:
                datagram.sendto(b"direct", (address, port))
                count("datagram")
            except OSError as error:
                count(f"datagram {errno.errorcode[error.errno]}")
    deadline = time.monotonic() + 1.0
    while waiting and time.monotonic() < deadline:
        _, ready, _ = select.select([], list(waiting), [], 0.1)
        for sock in ready:
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            ended[waiting.pop(sock)] = errno.errorcode[code] if code else "connected"
            sock.close()
    for sock, key in waiting.items():
        ended[key] = "no answer"
        sock.close()
    return ended


ended = threading.Event()
reader = None
can = {"raw": True}
try:
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    packets.bind((NAME, 0))
except OSError:
    can["raw"] = False
else:
    packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    packets.setsockopt(263, 1, struct.pack("iHH8x", socket.if_nametoindex(NAME), 1, 0))
    reader = threading.Thread(target=listen, args=(packets, ended))
    reader.start()
without_route = connect_all()
can["route"] = route_all()
with_route = connect_all()
if can["raw"]:
    raw(packets)
can["mac"] = change_mac(OTHER_MACS[1])
if can["mac"]:
    route_all()
    with_another_mac = connect_all()
    change_mac(MAC)
else:
    with_another_mac = {}
time.sleep(0.3)
ended.set()
if reader is not None:
    reader.join()
print(
    json.dumps(
        {
            "can": can,
            "sent": sent,
            "answers": [[*key, number] for key, number in answers.items()],
            "without route": without_route,
            "with route": with_route,
            "with another mac": with_another_mac,
        }
    )
)
