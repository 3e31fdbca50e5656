"""Doors of islands, with real sockets: the ends of links stand for guests, a namespace for what is beyond the host."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from microsim_vm.islands import namespaces, relays
from microsim_vm.islands.island import Island
from microsim_vm.islands.policy import Network, pool_of
from pyroute2 import IPRoute

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a network namespace for the host's part"),
]

CLONE_NEWNET = 0x40000000
HOST, BEYOND, SECOND, NOBODY = "198.51.100.1", "198.51.100.2", "198.51.100.3", "203.0.113.1"
PATIENCE_S = 10
RESET = struct.pack("ii", 1, 0)

Names = dict[str, "list[str] | Callable[[], list[str]]"]


@pytest.fixture(scope="module", autouse=True)
def beyond() -> Iterator[int]:
    """A host with one address and one neighbour, for the thread of the tests; a descriptor of the neighbour."""
    libc = ctypes.CDLL(None, use_errno=True)
    current = "/proc/thread-self/ns/net"
    with ExitStack() as stack:

        def opened() -> int:
            descriptor = os.open(current, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            return descriptor

        def up(name: str, *addresses: str) -> None:
            with IPRoute() as network:
                index = network.link_lookup(ifname=name)[0]
                network.link("set", index=index, state="up")
                for address in addresses:
                    network.addr("add", index=index, address=address, prefixlen=24)

        def renew() -> None:
            """Serve from a thread that is where this one is."""
            relays._current = None

        namespaces.maker()  # others of this process are to have one that knows the host's routes
        home = opened()
        stack.callback(renew)
        stack.callback(libc.setns, home, CLONE_NEWNET)
        assert libc.unshare(CLONE_NEWNET) == 0
        host = opened()
        assert libc.unshare(CLONE_NEWNET) == 0
        there = opened()
        up("lo")
        assert libc.setns(host, CLONE_NEWNET) == 0
        with IPRoute() as network:
            network.link("add", ifname="out0", kind="veth", peer={"ifname": "eth0", "net_ns_fd": there})
        up("lo")
        up("out0", HOST)
        assert libc.setns(there, CLONE_NEWNET) == 0
        up("eth0", BEYOND, SECOND)
        assert libc.setns(host, CLONE_NEWNET) == 0
        renew()
        yield there


@pytest.fixture
def raised(request: pytest.FixtureRequest) -> Iterator[Callable[..., Island]]:
    """Raises islands of one machine that live as long as the test."""
    with ExitStack() as stack:

        def island(*allow: str, publish: tuple[int, ...] = ()) -> Island:
            network = Network("egress" if allow else "island", allow, publish)
            name = f"{request.node.name} {time.monotonic_ns()}"
            return stack.enter_context(Island(network, name, {"sim": "veth"}, pool=pool_of()))

        yield island


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """What this host's resolver knows, beside numbers."""
    known: Names = {}
    real = socket.getaddrinfo

    def look_up(name: Any, port: Any, *words: Any, **more: Any) -> Any:
        if name not in known:
            return real(name, port, *words, flags=socket.AI_NUMERICHOST)
        found = known[name]
        addresses = found() if callable(found) else found
        return [entry for address in addresses for entry in real(address, port, *words, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


@contextmanager
def server(namespace: int | None, port: int, address: str = "", text: str = "") -> Iterator[socket.socket]:
    """Listen in a namespace, or on the host; say a word, if there is one, to everybody who comes."""
    sock = socket.socket() if namespace is None else namespaces.socket_in(namespace, socket.AF_INET, socket.SOCK_STREAM)

    def answer() -> None:
        with suppress(OSError):
            while True:
                accepted, _ = sock.accept()
                with accepted:
                    accepted.sendall(text.encode())

    thread = threading.Thread(target=answer)
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(1000)
        sock.settimeout(PATIENCE_S)
        if text:
            thread.start()
        try:
            yield sock
        finally:
            sock.shutdown(socket.SHUT_RDWR)  # who waits for somebody to come waits no longer
            if text:
                thread.join()


def guest(island: Island, kind: int = socket.SOCK_STREAM) -> socket.socket:
    sock = namespaces.socket_in(island.plugs["sim"].namespace, socket.AF_INET, kind)
    sock.settimeout(PATIENCE_S)
    return sock


def outcome(island: Island, address: str, port: int) -> str:
    """Connect from the guest's side; return what was said, or the error."""
    with guest(island) as sock:
        try:
            sock.connect((address, port))
            return sock.recv(100).decode()
        except OSError as error:
            return type(error).__name__


def address_of(island: Island, name: str) -> str:
    return str(island.berth("sim").settings()["names"][name])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def lines(island: Island) -> list[str]:
    assert island.refusals is not None
    return island.refusals.lines()


def test_why_an_allowed_connection_failed_is_told(
    raised: Callable[..., Island], names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    names.update({"none.example": unknown, "own.example": [HOST, "127.0.0.1"], "shut.example": [BEYOND]})
    monkeypatch.setattr(relays, "CONNECT_S", 0.5)

    def late() -> list[str]:
        time.sleep(1)
        return [BEYOND]

    names["late.example"] = late
    island = raised(
        f"{BEYOND}:7002", f"{NOBODY}:7002", "none.example:7002", "own.example:7002", "shut.example:7002",
        "late.example:7002",
    )  # fmt: skip
    for _ in range(2):
        assert outcome(island, BEYOND, 7002) == "ConnectionResetError"
    assert outcome(island, NOBODY, 7002) == "ConnectionResetError"
    for name in ("none.example", "own.example", "shut.example", "late.example"):
        assert outcome(island, address_of(island, name), 7002) == "ConnectionResetError"
    assert lines(island) == [
        f"tcp {BEYOND}:7002: connection refused (2 times)", f"tcp {NOBODY}:7002: network is unreachable",
        "tcp none.example:7002: name not known", "tcp own.example:7002: it is this host",
        "tcp shut.example:7002: connection refused", "tcp late.example:7002: timed out",
    ]  # fmt: skip


def test_what_is_asked_of_the_gateway_is_listed(raised: Callable[..., Island]) -> None:
    island = raised("0.0.0.0/0:7001")
    gateway = str(island.subnet.gateway)
    assert outcome(island, gateway, 22) == "ConnectionRefusedError"
    assert outcome(island, gateway, 7001) == "ConnectionResetError"  # it is no part of what is beyond
    with guest(island, socket.SOCK_DGRAM) as sock:
        for address, port in ((gateway, 53), (BEYOND, 53)):
            sock.sendto(b"?", (address, port))
    with namespaces.socket_in(
        island.plugs["sim"].namespace, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP
    ) as raw:
        for address in (gateway, BEYOND):
            raw.sendto(b"\x08\0\xf7\xff\0\0\0\0", (address, 0))
    wait_until(lambda: f"icmp {BEYOND}" in lines(island))
    assert lines(island) == [
        "tcp gateway:22",
        "tcp gateway:7001",
        "udp gateway:53",
        f"udp {BEYOND}:53",
        f"icmp {BEYOND}",
    ]


def test_all_addresses_of_a_name_are_tried_in_order(raised: Callable[..., Island], names: Names, beyond: int) -> None:
    names["maps.example"] = [HOST, NOBODY, BEYOND, SECOND]
    # The name's address is the name's, even where a network holds it too; and a host is reached by its very address,
    # wherever that stands.
    island = raised("0.0.0.0/0:7001", "198.51.100.0/24:7003", "maps.example:7001", f"{HOST}:7003")
    with server(beyond, 7001, SECOND, "second"), server(None, 7003, text="host"):
        assert outcome(island, address_of(island, "maps.example"), 7001) == "second"
        assert outcome(island, SECOND, 7001) == "second"
        with server(beyond, 7001, BEYOND, "first"):
            assert outcome(island, address_of(island, "maps.example"), 7001) == "first"
        assert outcome(island, HOST, 7003) == "host"
        assert lines(island) == []
        assert outcome(island, HOST, 7001) == "ConnectionResetError"
    assert lines(island) == [f"tcp {HOST}:7001: it is this host"]


def test_an_address_that_is_mute_leaves_time_for_the_next(
    raised: Callable[..., Island], names: Names, beyond: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "CONNECT_S", 2.0)
    names["maps.example"] = ["198.51.100.77", BEYOND]  # nobody answers who that is
    island = raised("maps.example:7001")
    with server(beyond, 7001, text="next"):
        assert outcome(island, address_of(island, "maps.example"), 7001) == "next"


def test_mute_names_hold_up_no_other_island(raised: Callable[..., Island], names: Names) -> None:
    answer = threading.Event()
    asked: list[float] = []

    def mute() -> list[str]:
        asked.append(time.monotonic())
        answer.wait(PATIENCE_S)
        return []

    names["mute.example"] = mute
    asking, other = raised("mute.example:80"), raised(publish=(9000,))
    with ExitStack() as stack:
        stack.callback(answer.set)
        for _ in range(40):
            sock = stack.enter_context(guest(asking))
            sock.connect((address_of(asking, "mute.example"), 80))
        stack.enter_context(server(other.plugs["sim"].namespace, 9000, text="there"))
        begun = time.monotonic()
        with socket.create_connection(("127.0.0.1", other.published[9000]), PATIENCE_S) as client:
            assert client.recv(10) == b"there"
        wait_until(lambda: len(asked) == relays.NAMES_AT_ONCE)
        asking.close()
        assert time.monotonic() - begun < 2


def test_connections_of_an_island_are_limited_and_others_wait(raised: Callable[..., Island], beyond: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))  # a sixteenth of these connections, therefore
        island, other = raised(f"{BEYOND}:7001", f"{BEYOND}:7002"), raised(publish=(9000,))
        listeners = [stack.enter_context(server(beyond, port)) for port in (7001, 7002)]
        clients = [stack.enter_context(guest(island)) for _ in range(80)]
        for number, client in enumerate(clients):
            client.connect((BEYOND, 7001 + number % 2))
        came: list[socket.socket] = []

        def accept() -> int:
            while ready := select.select(listeners, [], [], 0.3)[0]:
                came.extend(stack.enter_context(each.accept()[0]) for each in ready)
            return len(came)

        assert accept() == 32
        stack.enter_context(server(other.plugs["sim"].namespace, 9000, text="there"))
        with socket.create_connection(("127.0.0.1", other.published[9000]), PATIENCE_S) as client:
            assert client.recv(10) == b"there"

        def all_came() -> bool:
            for each in (*came, *clients):
                each.close()
            return accept() == 80

        wait_until(all_came)  # who has waited is served


def test_a_lost_side_is_lost_for_the_other_and_the_door_stays_open(raised: Callable[..., Island]) -> None:
    island = raised(publish=(9000,))
    with server(island.plugs["sim"].namespace, 9000) as listener:

        def pair() -> tuple[socket.socket, socket.socket]:
            client = socket.create_connection(("127.0.0.1", island.published[9000]), PATIENCE_S)
            accepted, _ = listener.accept()
            accepted.settimeout(PATIENCE_S)
            return client, accepted

        before = descriptors()
        for number in range(100):  # more than there may be at a time
            gone, left = pair() if number % 2 else pair()[::-1]
            left.sendall(b"unread")
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            gone.close()
            with left, pytest.raises(ConnectionResetError):
                left.recv(10)
        wait_until(lambda: descriptors() == before)
        client, accepted = pair()
        with client, accepted:
            client.sendall(b"question")
            client.shutdown(socket.SHUT_WR)
            assert b"".join(iter(lambda: accepted.recv(100), b"")) == b"question"
            accepted.sendall(b"answer")
            accepted.shutdown(socket.SHUT_WR)
            assert b"".join(iter(lambda: client.recv(100), b"")) == b"answer"
        wait_until(lambda: descriptors() == before)


def test_who_is_lost_after_saying_the_last_word_is_noticed(
    raised: Callable[..., Island], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "IDLE_S", 1)
    island = raised(publish=(9000,))
    with server(island.plugs["sim"].namespace, 9000) as listener:
        client = socket.create_connection(("127.0.0.1", island.published[9000]), PATIENCE_S)
        accepted, _ = listener.accept()
        with accepted:
            accepted.settimeout(PATIENCE_S)
            client.shutdown(socket.SHUT_WR)
            assert accepted.recv(10) == b""
            time.sleep(1.5)  # one that only listens is left alone, however long
            accepted.sendall(b"still there")
            assert client.recv(100) == b"still there"
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
            poll = select.poll()
            poll.register(accepted, 0)
            assert poll.poll(5000) == [(accepted.fileno(), select.POLLERR | select.POLLHUP)]


def test_a_slow_reader_gets_everything_after_the_other_side_has_gone(
    raised: Callable[..., Island], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "IDLE_S", 1)
    island = raised(publish=(9000,))
    data = os.urandom(8 << 20)
    with server(island.plugs["sim"].namespace, 9000) as listener:

        def send() -> None:
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.recv(10) == b""
                accepted.sendall(data)

        thread = threading.Thread(target=send)
        thread.start()
        with socket.create_connection(("127.0.0.1", island.published[9000]), PATIENCE_S) as client:
            client.shutdown(socket.SHUT_WR)
            time.sleep(2.5)
            assert b"".join(iter(lambda: client.recv(1 << 20), b"")) == data
        thread.join()


def test_closing_under_load_is_quick_and_silent(raised: Callable[..., Island], beyond: int) -> None:
    loop, said = relays._service().loop, []
    loop.set_exception_handler(lambda _, context: said.append(context))
    before = descriptors()
    with server(beyond, 7001, text="hello"):
        for _ in range(10):
            island = raised(f"{BEYOND}:7001", publish=(9000,))
            doors = ExitStack()
            inner = doors.enter_context(server(island.plugs["sim"].namespace, 9000))
            lasting = doors.enter_context(socket.create_connection(("127.0.0.1", island.published[9000]), PATIENCE_S))
            doors.enter_context(inner.accept()[0])
            ending = threading.Event()

            def hammer(island: Island = island, ending: threading.Event = ending) -> None:
                while not ending.is_set():
                    with suppress(OSError), socket.socket() as sock:
                        sock.setblocking(False)
                        sock.connect_ex(("127.0.0.1", island.published[9000]))

            threads = [threading.Thread(target=hammer) for _ in range(3)]
            for thread in threads:
                thread.start()
            time.sleep(0.1)
            begun = time.monotonic()
            island.close()
            assert time.monotonic() - begun < 2
            ending.set()
            for thread in threads:
                thread.join()
            with suppress(ConnectionResetError):
                assert lasting.recv(10) == b""
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", island.published[9000]), PATIENCE_S)
            doors.close()
    assert said == []
    wait_until(lambda: descriptors() <= before)


def test_a_forked_process_closes_its_copy_only(raised: Callable[..., Island]) -> None:
    island = raised(publish=(9000,))
    with server(island.plugs["sim"].namespace, 9000) as listener, ExitStack() as stack:
        client = stack.enter_context(socket.create_connection(("127.0.0.1", island.published[9000]), PATIENCE_S))
        accepted, _ = listener.accept()
        stack.enter_context(accepted)
        read, write = os.pipe()
        closer = os.fork()
        if closer == 0:
            begun = time.monotonic()
            island.close()
            os._exit(0 if time.monotonic() - begun < 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(closer, 0)[1]) == 0
        client.sendall(b"on")
        assert accepted.recv(10) == b"on"
        holder = os.fork()
        if holder == 0:  # has copies until we say so
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        another = socket.create_connection(("127.0.0.1", island.published[9000]), PATIENCE_S)
        with another, listener.accept()[0] as second:
            second.sendall(b"there")
            assert another.recv(10) == b"there"
        island.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", island.published[9000]), PATIENCE_S)
        os.close(write)
        os.close(read)
        assert os.waitstatus_to_exitcode(os.waitpid(holder, 0)[1]) == 0
