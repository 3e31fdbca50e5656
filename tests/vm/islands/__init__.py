"""What the tests of islands share: a template with a network, programs that look at it from inside, and watchers."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from microsim_vm.islands.frames import ETH_P_ALL
from microsim_vm.machine import Machine
from microsim_vm.options import Options
from microsim_vm.sandbox.sandbox import Sandbox
from microsim_vm.templates import load_template
from microsim_vm.templates.spec import OtherMachine, Template
from microsim_vm.world import WarmWorld, warm

FOLDER = Path(__file__).parent
# All that follows is forked from one snapshot: a policy, and what it lets through, are in no image.
ISLE = "name: isle\nextends: cartpole\nnetwork: island\nmachine: {memory_mib: 384}\n"
ADDRESSES = ipaddress.IPv4Network("198.18.0.0/15")


def isle(folder: Path, **settings: Any) -> Template:
    """Write the template ``isle`` into a folder, and return it with other settings."""
    path = folder / "isle/template.yaml"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ISLE)
    return msgspec.structs.replace(load_template(path), **settings)


def with_others(template: Template, *names: str) -> Template:
    """Return a template with more machines, each one of itself."""
    others = dict.fromkeys(names, OtherMachine(template="isle"))
    return msgspec.structs.replace(template, machines=others, others=dict.fromkeys(names, template))


def warm_world(template: Template, engine: str) -> WarmWorld:
    return warm(template, Options(engine=engine), print)


def probe(machine: Machine | Sandbox, script: str, timeout_s: float = 60.0, **words: Any) -> Any:
    """Run a program of this folder in a guest, and return the JSON that it prints."""
    text = (FOLDER / f"{script}.py").read_text()
    result = machine.exec(["python3", "-c", text, json.dumps(words)], timeout_seconds=timeout_s, check=True)
    return json.loads(result.stdout)


def in_background(machine: Machine | Sandbox, script: str, **words: Any) -> None:
    """Start a program of this folder in a guest, and wait until it says that it is ready."""
    text = (FOLDER / f"{script}.py").read_text()
    name = f"/tmp/{script}-{time.monotonic_ns()}"
    machine.filesystem.write(f"{name}.py", text)
    machine.filesystem.write(f"{name}.json", json.dumps(words))
    start = f'python3 {name}.py "$(cat {name}.json)" >{name}.out 2>&1 &'
    wait = f"for i in $(seq 200); do grep -q ready {name}.out && exit 0; sleep 0.05; done; cat {name}.out; exit 1"
    machine.exec(start, check=True)
    machine.exec(wait, check=True)


class Frame(NamedTuple):
    """An Ethernet frame of a capture."""

    target: str
    source: str
    kind: int
    data: bytes

    @property
    def sender(self) -> str:
        """The IPv4 address that it says to come from; "" where it says none."""
        start = {0x0800: 26, 0x0806: 28}.get(self.kind)
        return "" if start is None or len(self.data) < 42 else str(ipaddress.IPv4Address(self.data[start : start + 4]))

    @property
    def addresses(self) -> set[ipaddress.IPv4Address]:
        """The IPv4 addresses that it names as sender and receiver, in IPv4 and in ARP."""
        if self.kind == 0x0800 and len(self.data) >= 34:
            return {ipaddress.IPv4Address(self.data[26:30]), ipaddress.IPv4Address(self.data[30:34])}
        if self.kind == 0x0806 and len(self.data) >= 42:
            return {ipaddress.IPv4Address(self.data[28:32]), ipaddress.IPv4Address(self.data[38:42])}
        return set()


def frame_of(data: bytes) -> Frame:
    kind = int.from_bytes(data[12:14], "big")
    return Frame(data[:6].hex(":"), data[6:12].hex(":"), kind, data)


def frames_of(pcap: Path) -> list[Frame]:
    """Read a capture; every byte of it has to belong to a record."""
    data = pcap.read_bytes()
    magic, major, minor, _, _, longest, link = struct.unpack_from("<IHHiIII", data)
    assert (magic, major, minor, link) == (0xA1B2C3D4, 2, 4, 1)
    found, offset = [], 24
    while offset < len(data):
        seconds, micros, kept, whole = struct.unpack_from("<IIII", data, offset)
        assert 14 <= kept == whole <= longest
        assert micros < 1_000_000
        assert offset + 16 + kept <= len(data)
        assert abs(seconds + micros / 1e6 - time.time()) < 3600
        found.append(frame_of(data[offset + 16 : offset + 16 + kept]))
        offset += 16 + kept
    return found


@contextlib.contextmanager
def host_watched(macs: set[str]) -> Iterator[list[Frame]]:
    """Collect all frames on this host's own interfaces that have to do with islands, for the length of a block.

    Raises:
        PermissionError: This user may not look at them.
    """
    found: list[Frame] = []
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as packets:
        packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 20)
        packets.settimeout(0.1)
        ended = threading.Event()

        def read() -> None:
            while True:
                try:
                    frame = frame_of(packets.recv(65535))
                except TimeoutError:
                    if ended.is_set():
                        return
                    continue
                if {frame.source, frame.target} & macs or any(each in ADDRESSES for each in frame.addresses):
                    found.append(frame)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield found
        finally:
            ended.set()
            reader.join(30)


@contextlib.contextmanager
def host_listening() -> Iterator[tuple[int, list[tuple[str, object]]]]:
    """Listen on one port of all of the host's addresses, TCP and UDP: yield it, and who has come."""
    came: list[tuple[str, object]] = []
    with socket.create_server(("0.0.0.0", 0)) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        port = tcp.getsockname()[1]
        udp.bind(("0.0.0.0", port))
        ended = threading.Event()

        def accept() -> None:
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    connection, peer = tcp.accept()
                    came.append(("tcp", peer))
                    connection.close()

        def receive() -> None:
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    came.append(("udp", udp.recvfrom(2048)))

        readers = [threading.Thread(target=each) for each in (accept, receive)]
        for sock in (tcp, udp):
            sock.settimeout(0.1)
        for reader in readers:
            reader.start()
        try:
            yield port, came
        finally:
            ended.set()
            for reader in readers:
                reader.join(10)
