"""Runs on the host, in a network namespace of its own that stands for a host with a network, and never in a guest.

Forks a guest with an allow-list, lets it try to reach what is and what is not on it, and prints the outcome as JSON.
Its arguments: a folder with the template, the engine, and the text of ``reach.py``.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

HOST, BEYOND, FAR = "198.51.100.1", "198.51.100.2", "203.0.113.9"
OPEN, SHUT, UNUSED = 7001, 7002, 7003
ALLOW = (
    f"{BEYOND}:{OPEN}", f"203.0.113.0/24:{OPEN}", f"maps.example:{OPEN}", f"this.example:{OPEN}", f"own.example:{OPEN}",
    f"198.51.100.0/24:{UNUSED}",
)  # fmt: skip
NAMES = {"maps.example": BEYOND, "this.example": "127.0.0.1", "own.example": HOST}
CLONE_NEWNET = 0x40000000


def serve(came: list[list[Any]]) -> None:
    """Answer on all ports of this namespace, TCP and UDP, and note who came."""

    def accept(server: socket.socket, port: int) -> None:
        while True:
            connection, peer = server.accept()
            came.append(["tcp", peer[0], port])
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    def echo(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def receive(sock: socket.socket, port: int) -> None:
        while True:
            data, peer = sock.recvfrom(2048)
            came.append(["udp", peer[0], port])
            sock.sendto(data, peer)

    for port in (OPEN, SHUT, UNUSED, 53):
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("0.0.0.0", port))
        threading.Thread(target=receive, args=(udp, port), daemon=True).start()
        server = socket.create_server(("0.0.0.0", port))
        threading.Thread(target=accept, args=(server, port), daemon=True).start()


def beyond() -> None:
    """Be what is beyond the host: a namespace with servers; print who came when the input ends."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    print("made", flush=True)
    sys.stdin.readline()
    with IPRoute() as network:
        for name, addresses in (("lo", [FAR]), ("eth0", [BEYOND])):
            index = network.link_lookup(ifname=name)[0]
            for address in addresses:
                network.addr("add", index=index, address=address, prefixlen=32 if name == "lo" else 24)
            network.link("set", index=index, state="up")
    came: list[list[Any]] = []
    serve(came)
    print("ready", flush=True)
    sys.stdin.read()
    print(json.dumps(came), flush=True)


def main() -> None:
    """Be the host."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from islands import isle, probe, warm_world

    folder, engine = Path(sys.argv[1]), sys.argv[2]
    other = subprocess.Popen(
        [sys.executable, __file__, "beyond"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline() == "made\n"
    there = os.open(f"/proc/{other.pid}/ns/net", os.O_RDONLY)
    with IPRoute() as network:
        network.link("add", ifname="out0", kind="veth", peer={"ifname": "eth0", "net_ns_fd": there})
        index = network.link_lookup(ifname="out0")[0]
        network.addr("add", index=index, address=HOST, prefixlen=24)
        for each in (1, index):
            network.link("set", index=each, state="up")
        other.stdin.write("go\n")
        other.stdin.flush()
        assert other.stdout.readline() == "ready\n"
        network.route("add", dst="203.0.113.0/24", gateway=BEYOND)
    os.close(there)
    came: list[list[Any]] = []
    serve(came)
    real = socket.getaddrinfo

    def resolve(host: Any, *words: Any, **more: Any) -> Any:
        """Resolve names as this host's resolver would, were it asked to."""
        return real(NAMES.get(host, host), *words, **more)

    socket.getaddrinfo = resolve
    template = isle(folder, network="egress", egress=ALLOW)
    world = warm_world(template, engine)
    attempts = [
        ("tcp", BEYOND, OPEN), ("tcp", FAR, OPEN), ("tcp", "maps.example", OPEN), ("tcp", "203.0.113.77", OPEN),
        ("tcp", "this.example", OPEN), ("tcp", "own.example", OPEN), ("tcp", HOST, UNUSED), ("tcp", BEYOND, UNUSED),
        ("tcp", BEYOND, SHUT), ("tcp", HOST, OPEN), ("tcp", HOST, SHUT), ("tcp", "maps.example", SHUT),
        ("tcp", "203.0.114.1", OPEN), ("tcp", "192.0.2.55", 443), ("tcp", "gateway", OPEN), ("tcp", "gateway", 22),
        ("tcp", "198.18.0.1", OPEN),
        ("udp", BEYOND, OPEN), ("udp", HOST, OPEN), ("udp", "192.0.2.53", 53), ("udp", "gateway", 53),
        ("name", "elsewhere.example", 80), ("name", "maps.example", 80),
    ]  # fmt: skip
    with world.fork(1) as machine:
        network_of = machine.network
        assert network_of is not None
        reached = probe(machine, "reach", attempts=attempts, patience_s=5)
        facts = probe(machine, "facts", names=[*NAMES, "gateway"])
        again = probe(machine, "reach", attempts=[("tcp", BEYOND, SHUT)] * 3, patience_s=5)
        assert machine.island is not None
        assert machine.island.refusals is not None
        lines = machine.island.refusals.lines()
        # Large transfers in both directions through the relay.
        code = (
            "import hashlib, socket, threading\n"
            f"s = socket.create_connection(({BEYOND!r}, {OPEN}), 20)\n"
            "data, got, digest = bytes(range(256)) * 16384, 0, hashlib.sha256()\n"
            "threading.Thread(target=lambda: (s.sendall(data), s.shutdown(1))).start()\n"
            "while block := s.recv(65536):\n got += len(block)\n digest.update(block)\n"
            "print(got, digest.hexdigest() == hashlib.sha256(data).hexdigest())"
        )
        large = machine.exec(["python3", "-c", code], timeout_seconds=60, check=True).stdout.strip()
    world.close()
    out, _ = other.communicate("", timeout=30)
    print("RESULT" + json.dumps({
        "reached": reached, "again": again, "facts": facts, "lines": lines, "large": large, "beyond": json.loads(out),
        "host": came, "network": network_of,
    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1] == "beyond":
        beyond()
    else:
        main()
