"""Islands hold: what a guest hears and reaches is its own rollout, its gateway, and what its template names."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from hosting import ON_ANY_ENGINE, wait_for
from islands import (
    FOLDER,
    Frame,
    frames_of,
    host_listening,
    host_watched,
    in_background,
    isle,
    probe,
    warm_world,
    with_others,
)
from microsim_vm import Options, Sandbox, Volume
from microsim_vm.errors import VolumeError
from microsim_vm.islands import capture
from microsim_vm.machine import Machine
from microsim_vm.templates import load_template
from microsim_vm.templates.spec import Template
from microsim_vm.world import WarmWorld

pytestmark = pytest.mark.timeout(180)

UP, LOOPBACK, RUNNING, MULTICAST = 0x1, 0x8, 0x40, 0x1000
PORT, GROUP = 7410, "239.255.0.1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("islands")


@pytest.fixture(scope="module")
def template(folder: Path) -> Template:
    return isle(folder)


@pytest.fixture(scope="module")
def world(template: Template, engine: str) -> Iterator[WarmWorld]:
    """A small world on an island; all others of this file have its snapshot."""
    world = warm_world(template, engine)
    yield world
    world.close()


@pytest.fixture(scope="module")
def pair(world: WarmWorld) -> Iterator[tuple[Machine, Machine]]:
    """Two rollouts that live at the same time, each on an island of its own."""
    with world.fork(1) as one, world.fork(2) as two:
        yield one, two


def settings_of(machine: Machine) -> dict[str, Any]:
    assert machine.network is not None
    return machine.network


def names_of(machine: Machine) -> list[str]:
    return [*settings_of(machine)["names"]]


def test_each_fork_is_who_the_host_says_and_no_two_are_the_same(pair: tuple[Machine, Machine], engine: str) -> None:
    for machine in pair:
        told, facts = settings_of(machine), probe(machine, "facts", names=["gateway", machine.id])
        subnet = ipaddress.IPv4Network(f"{told['address']}/{told['bits']}", strict=False)
        assert facts["hostname"] == machine.id
        assert facts["names"] == {"gateway": [str(subnet.network_address + 1)], machine.id: ["127.0.1.1"]}
        eth0 = facts["interfaces"]["eth0"]
        assert (eth0["address"], eth0["mask"], eth0["mac"]) == (told["address"], str(subnet.netmask), told["mac"])
        assert eth0["flags"] & UP
        assert sorted(facts["interfaces"]) == ["eth0", "lo"]
        if engine == "qemu":  # gVisor shows no table
            assert ["eth0", str(subnet.network_address), str(subnet.netmask), "0.0.0.0"] in facts["routes"]
            assert [route for route in facts["routes"] if route[2] == "0.0.0.0"] == []  # to anywhere else
        assert machine.island is not None
        assert machine.island.subnet.network == subnet
    for key in ("address", "mac"):
        assert len({settings_of(machine)[key] for machine in pair}) == 2
    assert len({machine.island.subnet.network for machine in pair if machine.island}) == 2


def test_the_gateway_answers_and_serves_nothing(pair: tuple[Machine, Machine]) -> None:
    for machine in pair:
        found = probe(machine, "ping", to="gateway")
        assert found["ping"] is not False  # None where this kernel lets nobody send any
        assert found["tcp"] == "ECONNREFUSED"


@pytest.mark.parametrize("policy", ["island", "none"])
def test_the_loopback_is_ready_for_dds_before_user_code(
    pair: tuple[Machine, Machine], cartpole: WarmWorld, folder: Path, engine: str, policy: str
) -> None:
    with contextlib.ExitStack() as stack:
        machine = pair[0]
        if policy == "none":
            world = cartpole
            if world.template.network != "none":
                world = warm_world(isle(folder, network="none"), engine)
                stack.callback(world.close)
            machine = stack.enter_context(world.fork(1))
            assert (machine.network, machine.island) == (None, None)
        facts = probe(machine, "facts", names=[machine.id])
        assert facts["names"][machine.id] == ["127.0.1.1"]
        assert sorted(facts["interfaces"]) == (["eth0", "lo"] if policy == "island" else ["lo"])
        loopback = facts["interfaces"]["lo"]
        assert loopback["address"] == "127.0.0.1"
        wanted = UP | LOOPBACK | (RUNNING | MULTICAST if engine == "qemu" else 0)
        assert loopback["flags"] & wanted == wanted
        if engine == "qemu":
            assert ["lo", "224.0.0.0", "240.0.0.0", "0.0.0.0"] in facts["routes"]
        in_background(machine, "hear", port=PORT, group=GROUP, address="127.0.0.1")
        heard = probe(
            machine, "speak", to="localhost", port=PORT, text="dds", address="127.0.0.1", broadcast="127.0.0.1",
            group=GROUP,
        )  # fmt: skip
        assert heard["multicast"] == ["heard dds", "127.0.0.1"]
        assert heard["tcp"] == "heard dds"


def test_machines_of_one_rollout_talk_by_name_and_nobody_else_hears_it(
    template: Template, pair: tuple[Machine, Machine], engine: str, tmp_path: Path
) -> None:
    world = warm_world(with_others(template, "controller"), engine)
    other = pair[0]
    assert other.island is not None
    with contextlib.closing(world), world.fork(5) as machine:
        assert [*machine.machines] == ["sim", "controller"]
        controller = machine.machines["controller"]
        assert machine.island is not None
        assert machine.island is controller.island
        machine.island.capture(tmp_path / "own.pcap")
        other.island.capture(tmp_path / "other.pcap")
        addresses = {name: settings_of(each)["address"] for name, each in machine.machines.items()}
        subnet = machine.island.subnet.network
        facts = probe(machine, "facts", names=["sim", "controller", "gateway"])
        assert facts["names"] == {
            **{name: [address] for name, address in addresses.items()}, "gateway": [str(subnet.network_address + 1)],
        }  # fmt: skip
        assert len({each.id for each in machine.machines.values()}) == 2
        in_background(controller, "hear", port=PORT, group=GROUP, address=addresses["controller"])
        with ThreadPoolExecutor(2) as pool:
            listening = pool.submit(probe, other, "listen", interface="eth0", seconds=2)
            time.sleep(0.5)
            answers = probe(
                machine, "speak", to="controller", port=PORT, text="hello", address=addresses["sim"],
                broadcast=str(subnet.broadcast_address), group=GROUP,
            )  # fmt: skip
            senders = listening.result().get("senders", {})
        assert answers == {
            "tcp": "heard hello", "udp": ["heard hello", addresses["controller"]],
            "broadcast": ["heard hello", addresses["controller"]],
            "multicast": ["heard hello", addresses["controller"]],
        }  # fmt: skip
        heard = probe(controller, "speak", to="controller", port=PORT, text="report", address=addresses["controller"],
                      broadcast=addresses["controller"], group=GROUP)["tcp"]  # fmt: skip
        ways = {(way, peer) for way, peer, text in json.loads(heard) if text == "hello"}
        assert ways == {(way, addresses["sim"]) for way in ("tcp", "udp", "multicast")}
    assert b"hello" in (tmp_path / "own.pcap").read_bytes()
    assert b"hello" not in (tmp_path / "other.pcap").read_bytes()
    _only_its_own(tmp_path / "other.pcap", other)
    assert set(senders) <= _senders_of(tmp_path / "other.pcap", other)


@ON_ANY_ENGINE
def test_all_processes_of_several_machines_are_told_to_look_at_their_island(folder: Path, engine: str) -> None:
    """The world's own too, which was started when its machine was alone; and what the template sets stays."""
    place = folder / "told"
    place.mkdir(exist_ok=True)  # for the other engine it is the same
    (place / "template.yaml").write_text(
        "name: told\nextends: cartpole\nnetwork: island\nmachine: {memory_mib: 192}\n"
        'world: {factory: "variables:make"}\nenv: {ROS_DISTRO: humble, ROS_DOMAIN_ID: "7"}\n'
    )
    (place / "variables.py").write_text(
        "import os\nimport world\n\n\nclass Variables(world.CartPole):\n    def reset(self, **how):\n"
        "        return super().reset(**how)[0], {key: os.environ.get(key) for key in os.environ}\n\n\n"
        "def make():\n    return Variables(10)\n"
    )
    template = load_template(place / "template.yaml")
    world = warm_world(with_others(template, "controller"), engine)
    names = ("ROS_LOCALHOST_ONLY", "ROS_AUTOMATIC_DISCOVERY_RANGE", "ROS_DOMAIN_ID", "CYCLONEDDS_URI")
    with contextlib.closing(world), world.fork(5) as machine:
        for each in machine.machines.values():
            _, info = each.reset()
            assert [info[name] for name in names[:3]] == ["0", "SUBNET", "7"]
            assert "name='eth0'" in info[names[3]]
            started = each.exec(["sh", "-c", "; ".join(f'echo "${name}"' for name in names)], check=True)
            assert started.stdout.splitlines() == [info[name] for name in names]


def _senders_of(pcap: Path, machine: Machine) -> set[str]:
    """Return the hardware addresses of a machine and of its gateway, which is the one that speaks as the gateway."""
    gateway = settings_of(machine)["names"]["gateway"]
    speaking = {frame.source for frame in frames_of(pcap) if frame.sender == gateway}
    assert len(speaking) == 1
    return {settings_of(machine)["mac"], *speaking}


def _only_its_own(pcap: Path, machine: Machine) -> None:
    """Check that nothing in the capture of an island has come from another one, and that it is heard itself."""
    assert machine.island is not None
    own = machine.island.subnet.network
    assert probe(machine, "ping", to="gateway")["tcp"] == "ECONNREFUSED"
    senders = _senders_of(pcap, machine)
    for frame in frames_of(pcap):
        assert frame.source in senders, frame
        assert all(each in own or each.is_multicast for each in frame.addresses), frame


def test_forks_of_a_fork_have_addresses_of_their_own(world: WarmWorld) -> None:
    with world.fork(7) as parent, contextlib.ExitStack() as stack:
        before = probe(parent, "facts")["interfaces"]["eth0"]
        children = [stack.enter_context(child) for child in parent.fork(2)]
        ids = [parent.id, *(child.id for child in children)]
        found = [probe(each, "facts", names=["gateway", *ids]) for each in (parent, *children)]
        for machine, facts in zip((parent, *children), found, strict=True):
            told = settings_of(machine)
            eth0 = facts["interfaces"]["eth0"]
            assert (eth0["address"], eth0["mac"]) == (told["address"], told["mac"])
            assert facts["names"]["gateway"] == [told["names"]["gateway"]]
            assert [each for each in ids if facts["names"][each]] == [machine.id]
            assert probe(machine, "ping", to="gateway")["tcp"] == "ECONNREFUSED"
        assert found[0]["interfaces"]["eth0"] == before
        assert len({facts["interfaces"]["eth0"]["mac"] for facts in found}) == 3
        assert len({facts["interfaces"]["eth0"]["address"] for facts in found}) == 3


def test_a_sandbox_that_was_asleep_has_a_network_that_works(template: Template, engine: str) -> None:
    with Sandbox.create(template.path.parent, options=Options(engine=engine)) as sandbox:
        before = probe(sandbox, "facts", names=["gateway"])
        assert probe(sandbox, "ping", to="gateway")["tcp"] == "ECONNREFUSED"
        sandbox.hibernate()
        after = probe(sandbox, "facts", names=["gateway"])
        assert sandbox.status == "running"
        assert probe(sandbox, "ping", to="gateway")["tcp"] == "ECONNREFUSED"
        assert after["hostname"] == before["hostname"] == sandbox.id
        with sandbox.fork() as child:
            facts = probe(child, "facts", names=["gateway"])
            assert facts["interfaces"]["eth0"]["mac"] != after["interfaces"]["eth0"]["mac"]
            assert facts["names"] != after["names"]
            assert probe(child, "ping", to="gateway")["tcp"] == "ECONNREFUSED"


def test_a_sandbox_has_room_for_three_volumes_beside_its_network(
    template: Template, engine: str, request: pytest.FixtureRequest
) -> None:
    if engine == "gvisor":
        pytest.skip("gVisor's guests have no volumes")
    options = Options(engine=engine)
    volumes = [f"island-{os.getpid()}-{number}" for number in range(4)]
    for name in volumes:
        request.addfinalizer(Volume.create(name, 8, options).delete)
    places = {f"/v{number}": name for number, name in enumerate(volumes)}
    with pytest.raises(VolumeError, match="a sandbox with a network has 3 volumes at most, not 4") as caught:
        Sandbox.create(template.path.parent, volumes=places, options=options)
    assert "network: none" in caught.value.hint
    assert [each.id for each in Sandbox.list(options) if each.volumes] == []
    del places["/v3"]
    with Sandbox.create(template.path.parent, volumes=places, options=options) as sandbox:
        sandbox.exec("for v in /v0 /v1 /v2; do echo here >$v/note || exit 1; done", check=True)
        assert probe(sandbox, "ping", to="gateway")["tcp"] == "ECONNREFUSED"


def test_a_hostile_guest_reaches_nobody_but_its_gateway(
    world: WarmWorld, pair: tuple[Machine, Machine], engine: str, tmp_path: Path
) -> None:
    """Root of a guest, with raw sockets where its kernel has them, against the host and another rollout."""
    victim = pair[1]
    assert victim.island is not None
    victim.island.capture(tmp_path / "victim.pcap")
    with world.fork(66) as attacker, host_listening() as (port, came), contextlib.ExitStack() as stack:
        told = settings_of(attacker)
        own = ipaddress.IPv4Network(f"{told['address']}/{told['bits']}", strict=False)
        theirs = settings_of(victim)
        in_background(victim, "hear", port=port, group=GROUP, address=theirs["address"])
        hosts = sorted(_addresses_of_this_host(socket.AF_INET) | {"127.0.0.1"} | _default_gateways())
        others = [theirs["address"], theirs["names"]["gateway"]]
        beyond = [str(own.network_address + 4 + number) for number in (1, 2)]
        gateway = told["names"]["gateway"]
        targets = [(address, port) for address in [gateway, *hosts, *others, *beyond, "192.0.2.99", "8.8.8.8"]]
        macs = {told["mac"], "02:de:ad:be:ef:01", "06:ca:fe:00:00:01"}
        heard = stack.enter_context(host_watched(macs)) if os.geteuid() == 0 else []
        found = probe(
            attacker, "hostile", 90.0, **{key: told[key] for key in ("interface", "address", "bits", "mac")},
            gateway=gateway, targets=targets, sources=[theirs["address"], hosts[0]],
            samples=["10.0.0.1", "10.0.2.2", "10.255.255.254", "172.17.0.1", "192.168.1.1", "169.254.169.254"],
            targets6=sorted(_addresses_of_this_host(socket.AF_INET6)),
        )  # fmt: skip
        if os.geteuid() == 0:
            _seen_by_watchers(told["mac"], port, heard, came)
        # It has really tried, and its own gateway is still there for it.
        if engine == "qemu":
            assert found["can"] == {"raw": True, "route": True, "mac": True}
            assert all(found["sent"].get(what, 0) > 0 for what in ("arp", "ipv6", "tcp", "udp", "icmp", "source route"))
            assert found["sent"]["flood"] > 100
        assert probe(attacker, "ping", to="gateway")["tcp"] == "ECONNREFUSED"
    answering = {(mac, address) for mac, address, _, _ in found["answers"]}
    assert {address for _, address in answering} <= {told["names"]["gateway"]}
    assert len({mac for mac, _ in answering}) <= 1
    if found["can"]["raw"]:
        assert answering != set()
    for attempts in ("without route", "with route", "with another mac"):
        outcomes = {target.rpartition(":")[0]: outcome for target, outcome in found[attempts].items()}
        if attempts != "with another mac":
            assert outcomes[gateway] == "ECONNREFUSED"  # an answer is seen
        outcomes.pop(gateway, None)
        outcomes.pop("127.0.0.1", None)  # that is the guest itself
        assert set(outcomes.values()) <= {"ENETUNREACH", "EHOSTUNREACH", "no answer"}, outcomes
    assert came == []
    assert heard == []
    _only_its_own(tmp_path / "victim.pcap", victim)
    mine = {mac.replace(":", "") for mac in macs}
    assert not [frame for frame in frames_of(tmp_path / "victim.pcap") if frame.source.replace(":", "") in mine]


def _seen_by_watchers(mac: str, port: int, heard: list[Frame], came: list[tuple[str, object]]) -> None:
    """Check that the watchers would have seen something, by something that they see, and that they have seen no more.

    Raises:
        AssertionError: They did not, or have.
    """
    sign = b"sign of the test itself"
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as packets:
        packets.bind(("lo", 0))
        packets.send(bytes(6) + bytes.fromhex(mac.replace(":", "")) + b"\x88\xb5" + sign)
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(sign, ("127.0.0.1", port))
    wait_for(lambda: len(heard) >= 1 and len(came) >= 2, "what the watchers are to see")
    assert {frame.data[14 : 14 + len(sign)] for frame in heard} == {sign}
    assert sorted(kind for kind, _ in came) == ["tcp", "udp"]
    heard.clear()
    came.clear()


def _addresses_of_this_host(family: int) -> set[str]:
    found = {each.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for each in addresses
             if each.family == family}  # fmt: skip
    return found - {"127.0.0.1", "::1"}


def _default_gateways() -> set[str]:
    found = set()
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        _, target, gateway, *_ = line.split()
        if target == "00000000":
            found.add(socket.inet_ntoa(bytes.fromhex(gateway)[::-1]))
    return found - {"0.0.0.0"}


@pytest.fixture(scope="module")
def egress(template: Template, world: WarmWorld, engine: str) -> dict[str, Any]:
    """What a guest with an allow-list has reached, from a host whose network is made for it; see ``egress_host.py``."""
    private = ["--net"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--net"]
    words = ["unshare", *private, sys.executable, str(FOLDER / "egress_host.py"), str(template.path.parents[1]), engine]
    done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert results, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(results[0].removeprefix("RESULT"))
    return found


def test_egress_reaches_what_is_named_by_address_network_and_name(egress: dict[str, Any]) -> None:
    outcomes = {attempt: outcome for attempt, (outcome, _) in egress["reached"].items()}
    for target in ("198.51.100.2:7001", "203.0.113.9:7001", "maps.example:7001", "198.51.100.2:7003"):
        assert outcomes[f"tcp {target}"] == "hello", target
    assert egress["large"] == f"{4 << 20} True"
    assert ipaddress.IPv4Address(egress["facts"]["names"]["maps.example"][0]) in ipaddress.IPv4Network("198.19.0.0/16")
    # Whoever is reached sees the host, which has made the connection.
    assert {(kind, peer) for kind, peer, _ in egress["beyond"]} == {("tcp", "198.51.100.1")}
    assert sorted({port for _, _, port in egress["beyond"]}) == [7001, 7003]


def test_egress_refuses_all_else_at_once(egress: dict[str, Any]) -> None:
    opened = {"tcp 198.51.100.2:7001", "tcp 203.0.113.9:7001", "tcp maps.example:7001", "tcp 198.51.100.2:7003"}
    unreachable = {"tcp 203.0.113.77:7001"}  # allowed, and nobody is there
    for attempt, (outcome, seconds) in egress["reached"].items():
        if attempt in opened | unreachable or attempt.startswith("name"):
            continue
        assert outcome in ("ECONNREFUSED", "ECONNRESET"), attempt
        assert seconds < 4, (attempt, seconds)
    assert egress["reached"]["name elsewhere.example:80"][0] == "unknown"
    assert egress["reached"]["name elsewhere.example:80"][1] < 1


def test_egress_never_reaches_the_host_itself(egress: dict[str, Any]) -> None:
    assert egress["host"] == []
    lines = egress["lines"]
    assert "tcp this.example:7001: it is this host" in lines
    assert "tcp own.example:7001: it is this host" in lines
    assert "tcp 198.51.100.1:7003: it is this host" in lines


def test_what_egress_refuses_is_told(egress: dict[str, Any]) -> None:
    lines = egress["lines"]
    told = {line.partition(" (")[0] for line in lines}
    assert {
        "tcp 198.51.100.2:7002", "tcp 198.51.100.1:7001", "tcp 203.0.114.1:7001", "tcp 192.0.2.55:443",
        "udp 198.51.100.2:7001", "udp 192.0.2.53:53", "tcp gateway:7001", "tcp gateway:22",
    } <= told  # fmt: skip
    assert "tcp 198.51.100.2:7002 (4 times)" in lines
    asked = [
        line for line in lines if line.startswith("udp gateway:53 (")
    ]  # and not only once, which is an attempt too
    assert len(asked) == 1
    assert not told & {"tcp 198.51.100.2:7001", "tcp 203.0.113.9:7001"}
    assert not [line for line in lines if egress["network"]["names"]["gateway"] in line]  # it has its name


def test_only_egress_has_a_default_route(egress: dict[str, Any], engine: str) -> None:
    assert egress["network"]["gateway"] == egress["network"]["names"]["gateway"]
    if engine == "qemu":
        defaults = [route for route in egress["facts"]["routes"] if route[2] == "0.0.0.0"]
        assert defaults == [["eth0", "0.0.0.0", "0.0.0.0", egress["network"]["gateway"]]]


@ON_ANY_ENGINE
def test_a_published_port_answers_on_the_hosts_loopback(template: Template, world: WarmWorld, engine: str) -> None:
    published = warm_world(msgspec.structs.replace(template, publish=(8000, 8001)), engine)
    with contextlib.closing(published), published.fork(3) as machine:
        assert machine.island is not None
        ports = machine.island.published
        assert sorted(ports) == [8000, 8001]
        in_background(machine, "serve", port=8000)
        address = ("127.0.0.1", ports[8000])

        def talk(size: int) -> None:
            data = os.urandom(size)
            with socket.create_connection(address, timeout=30) as sock:
                sender = threading.Thread(target=lambda: (sock.sendall(data), sock.shutdown(socket.SHUT_WR)))
                sender.start()
                answer = b"".join(iter(lambda: sock.recv(65536), b""))
                sender.join()
            assert answer[:-65] == data
            assert answer[-65:].decode() == hashlib.sha256(data).hexdigest() + "\n"

        with ThreadPoolExecutor(20) as pool:
            list(pool.map(talk, itertools.repeat(5000, 20)))
        talk(4 << 20)
        with socket.create_connection(address, timeout=30) as sock:  # half of it closed, the other half still answers
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1000).decode() == hashlib.sha256().hexdigest() + "\n"
        with socket.create_connection(("127.0.0.1", ports[8001]), timeout=30) as sock, pytest.raises(ConnectionError):
            sock.recv(10)  # nobody serves that port
        # It is the loopback's, and no other address of the host's has it.
        for other in _addresses_of_this_host(socket.AF_INET):
            with socket.socket() as sock:
                sock.settimeout(5)
                assert sock.connect_ex((other, ports[8000])) != 0
        talk(10)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)


def test_a_capture_has_what_was_said_and_is_bounded(
    world: WarmWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.fork(4) as machine:
        assert machine.island is not None
        told = settings_of(machine)
        machine.island.capture(tmp_path / "all.pcap")
        assert machine.island.pcap == tmp_path / "all.pcap"
        pinged = probe(machine, "ping", to="gateway", payload="a word of its own")["ping"]
        say = f"import socket; socket.socket(type=2).sendto(b'words in a datagram', ({told['names']['gateway']!r}, 9))"
        machine.exec(["python3", "-c", say], check=True)
        monkeypatch.setattr(capture, "MAX_BYTES", 256 << 10)
        machine.island.capture(tmp_path / "flood.pcap")
        flood = (
            "import contextlib, socket, time\ns = socket.socket(type=2)\nfor i in range(500):\n"
            f" with contextlib.suppress(OSError): s.sendto(bytes(1400), ({told['names']['gateway']!r}, 9))\n"
            " if i % 50 == 0: time.sleep(0.02)\n"  # gVisor of 2022 hangs in a send that has to wait for room
        )
        machine.exec(["python3", "-c", flood], check=True)
        machine.exec("sleep 0.3")
    whole = (tmp_path / "all.pcap").read_bytes()
    frames = frames_of(tmp_path / "all.pcap")
    assert b"words in a datagram" in whole
    assert (b"a word of its own" in whole) == bool(pinged)
    assert told["mac"] in {frame.source for frame in frames}
    assert told["mac"] in {frame.target for frame in frames}
    size = (tmp_path / "flood.pcap").stat().st_size
    assert 256 << 10 <= size <= (256 << 10) + 65535 + 16
    assert len(frames_of(tmp_path / "flood.pcap")) > 150
