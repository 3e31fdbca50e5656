"""Islands end with who holds them, however that ends, and whoever makes them; nobody else's are touched."""

from __future__ import annotations

import contextlib
import errno
import gc
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from hosting import AS_NOBODY, NOBODY, Session, give_to_nobody, session, wait_for
from islands import isle, probe, warm_world
from microsim_vm import owner, runtime
from microsim_vm.cache import Cache
from microsim_vm.errors import NetworkError
from microsim_vm.islands import namespaces, subnets
from microsim_vm.islands.island import Island
from microsim_vm.islands.plug import Wire
from microsim_vm.islands.policy import Network, pool_of
from microsim_vm.owner import Process
from microsim_vm.runtime import GuestRecord, IslandRecord
from microsim_vm.templates.spec import Template
from microsim_vm.world import WarmWorld
from pyroute2 import IPRoute

pytestmark = pytest.mark.timeout(150)

HERE = Path(__file__).parent
HOLD = """
sys.path.insert(0, sys.argv[3])
from islands import probe
world = warm(template, options, say)
machines = [world.fork(seed) for seed in range(int(sys.argv[5]))]
say("forked", *[str(machine.island.subnet.network) for machine in machines])
sys.stdin = open(sys.argv[4])
for line in sys.stdin:
    say("gateway", *{probe(machine, "ping", to="gateway")["tcp"] for machine in machines})
"""
SOME = {"sim": "tap", "controller": "tap", "third": "veth"}
WIRES: list[Mapping[str, Wire]] = [{"sim": "tap"}, {"sim": "veth"}, SOME]  # type: ignore[list-item]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return isle(tmp_path_factory.mktemp("life"))


@pytest.fixture(scope="module")
def world(template: Template, engine: str) -> Iterator[WarmWorld]:
    world = warm_world(template, engine)
    yield world
    world.close()


class Holder:
    """Another session that holds two rollouts, and asks their gateways when it is told to."""

    def __init__(self, other: Session, questions: Path) -> None:
        self.other = other
        self.networks = [ipaddress.IPv4Network(word) for word in other.expect("forked").split()[1:]]
        self._questions = questions
        self._pipe = questions.open("w")
        every = psutil.Process(other.process.pid).children(recursive=True)
        self.processes = [Process.of(each.pid) for each in every]

    def ask(self) -> None:
        """Let it ask, and check that its gateways answer."""
        self._pipe.write("ask\n")
        self._pipe.flush()
        assert self.other.expect("gateway", 90) == "gateway ECONNREFUSED"

    def close(self) -> None:
        self._pipe.close()


@contextlib.contextmanager
def holder(template: Template, engine: str, folder: Path, forks: int) -> Iterator[Holder]:
    questions = folder / f"questions-{len(list(folder.iterdir()))}"
    os.mkfifo(questions)
    with session(HOLD, template.path, Cache().root, engine, HERE, questions, forks) as other:
        found = Holder(other, questions)
        with contextlib.closing(found):
            yield found


def namespaces_of(pids: Sequence[int]) -> set[str]:
    """Return the network namespaces that processes are in, or hold, but for the one that we are in."""
    found = set()
    for pid in pids:
        for path in (*Path(f"/proc/{pid}/ns").glob("net"), *Path(f"/proc/{pid}/fd").glob("*")):
            with contextlib.suppress(OSError):
                target = os.readlink(path)
                if target.startswith("net:"):
                    found.add(target)
    return found - {os.readlink("/proc/self/ns/net")}


def host_network() -> list[str]:
    """Return the interfaces, addresses, routes and rules of the host's own network."""
    with IPRoute() as network:
        links = [link.get_attr("IFLA_IFNAME") for link in network.get_links()]
        addresses = [(each["index"], each.get_attr("IFA_ADDRESS")) for each in network.get_addr()]
        routes = [(each["table"], each["dst_len"], each.get_attr("RTA_DST"), each.get_attr("RTA_OIF"))
                  for each in network.get_routes() if each["type"] == 1]  # fmt: skip
        rules = [(each["family"], each.get_attr("FRA_PRIORITY"), each.get_attr("FRA_TABLE"))
                 for each in network.get_rules()]  # fmt: skip
    return sorted(map(str, [*links, *addresses, *routes, *rules]))


def is_free(network: ipaddress.IPv4Network) -> bool:
    try:
        subnets.take(network, "a look", [], wait_s=0).close()
    except subnets.SubnetsExhaustedError:
        return False
    return True


def test_a_killed_sessions_islands_are_gone_and_nobody_elses(
    template: Template, world: WarmWorld, engine: str, tmp_path: Path
) -> None:
    before = host_network()
    with holder(template, engine, tmp_path, 2) as other, holder(template, engine, tmp_path, 1) as bystander:
        assert len({*other.networks, *bystander.networks}) == 3
        assert not any(is_free(network) for network in (*other.networks, *bystander.networks))
        held = namespaces_of([other.other.process.pid, *(each.pid for each in other.processes)])
        theirs = namespaces_of([bystander.other.process.pid, *(each.pid for each in bystander.processes)])
        assert len(held) >= 2
        assert not held & theirs
        assert host_network() == before  # no link, route or rule of it is the host's
        bystander.ask()
        other.other.kill()
        wait_for(lambda: not any(each.alive() for each in other.processes), "the end of its processes")
        wait_for(lambda: not held & namespaces_of(psutil.pids()), "the end of its namespaces")
        wait_for(lambda: all(map(is_free, other.networks)), "its subnets are free again")
        assert host_network() == before
        with world.fork(3) as machine:  # which starts where somebody has died
            assert probe(machine, "ping", to="gateway")["tcp"] == "ECONNREFUSED"
            runtime.reap(Cache())
            bystander.ask()
            assert theirs <= namespaces_of(psutil.pids())
            assert not any(is_free(network) for network in bystander.networks)
            assert probe(machine, "ping", to="gateway")["tcp"] == "ECONNREFUSED"
    assert host_network() == before


def test_records_of_others_and_processes_that_only_have_their_number_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    place = IslandRecord("198.18.0.4/30", "island", "ms0123456789ab", "sim", "198.18.0.6", {80: 8080})
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            live = Process.of(stranger.pid)
            reused = msgspec.structs.replace(live, started=live.started - 100)
            ended = Process(pid=2**22 + 1, started=5, boot=owner.boot_id())
            records = [
                GuestRecord(live, 1, "another session's guest", vmm=live, island=place),
                GuestRecord(
                    ended, 1, "a dead session's, whose engine's number is another process's", reused, island=place
                ),
                GuestRecord(reused, 1, "a dead session's, whose number is another process's", reused, island=place),
            ]
            with runtime.locked() as path:
                files = [runtime.new_record(path, record) for record in records]
            assert runtime.reap(Cache(tmp_path / "cache")) == []
            assert [file.exists() for file in files] == [True, False, False]
            with runtime.locked() as path:
                assert runtime.records(path) == [(files[0], records[0])]
            assert stranger.poll() is None
        finally:
            stranger.kill()


def used(maker: int) -> dict[str, Any]:
    """Return what this process and its maker use, and what the host's network and the maker's have."""
    gc.collect()
    found: dict[str, Any] = {"host": sorted(os.listdir("/sys/class/net")), "threads": threading.active_count()}
    for name, pid in (("ours", os.getpid()), ("maker's", maker)):
        process = psutil.Process(pid)
        found[f"{name} descriptors"] = process.num_fds()
        found[f"{name} threads"] = process.num_threads()
        found[f"{name} interfaces"] = len(Path(f"/proc/{pid}/net/dev").read_text().splitlines())
        found[f"{name} namespaces"] = len(namespaces_of([pid]))
    return found


def resident_mib(pid: int) -> float:
    size: int = psutil.Process(pid).memory_info().rss
    return size / (1 << 20)


def test_a_hundred_islands_leave_nothing(tmp_path: Path) -> None:
    maker = namespaces.maker()._process.pid

    def one(number: int) -> None:
        open_ended = Network("egress", ("192.0.2.1:80", "198.51.100.0/24:443"), (80,))
        network = open_ended if number % 4 == 3 else Network("island")
        with Island(network, f"island {number}", WIRES[number % 3], pool=pool_of()) as island:
            if number % 5 == 0:
                island.capture(tmp_path / "capture.pcap")
            assert is_free(island.subnet.network) is False
        island.close()  # once more does no harm
        assert is_free(island.subnet.network)

    for number in range(20):
        one(number)
    before, sizes = used(maker), [resident_mib(pid) for pid in (os.getpid(), maker)]
    for number in range(100):
        one(number)
    assert used(maker) == before
    grown = [resident_mib(pid) - size for pid, size in zip((os.getpid(), maker), sizes, strict=True)]
    assert max(grown) < 5, grown


def test_a_maker_that_is_killed_is_replaced_and_its_islands_live_on() -> None:
    maker = namespaces.maker()
    with Island(Network("island"), "before", {"sim": "veth"}, pool=pool_of()) as before:
        os.kill(maker._process.pid, signal.SIGKILL)
        maker._process.wait(10)
        with Island(Network("island"), "after", {"sim": "veth"}, pool=pool_of()) as after:
            assert namespaces.maker() is not maker
            for island in (before, after):
                plug = island.plugs["sim"]
                with namespaces.socket_in(plug.namespace, socket.AF_INET, socket.SOCK_STREAM) as sock:
                    sock.settimeout(10)
                    assert sock.connect_ex((str(island.subnet.gateway), 9)) == errno.ECONNREFUSED


# Raises islands in a pool that is too small for all of them, and says where two have the same subnet at a time.
CROWD = """
import ipaddress, os, sys, time
from concurrent.futures import ThreadPoolExecutor
from microsim_vm.islands.island import Island
from microsim_vm.islands.policy import Network
pool, folder, name = ipaddress.IPv4Network(sys.argv[1]), sys.argv[2], sys.argv[3]

def raise_some(thread):
    for number in range(4):
        wires = {"sim": "veth"} if (thread + number) % 3 else {"sim": "veth", "other": "veth"}
        with Island(Network("island"), f"{name} {thread} {number}", wires, pool=pool, wait_s=60) as island:
            blocks = [f"{folder}/{block.network_address}" for block in island.subnet.network.subnets(new_prefix=30)]
            for block in blocks:
                os.close(os.open(block, os.O_CREAT | os.O_EXCL))
            time.sleep(0.005)
            for block in blocks:
                os.unlink(block)
    return number + 1

with ThreadPoolExecutor(8) as executor:
    print("raised", sum(executor.map(raise_some, range(8))))
"""


def test_processes_with_threads_never_share_a_subnet(tmp_path: Path) -> None:
    words = [sys.executable, "-c", CROWD, "198.18.255.224/27", str(tmp_path)]
    crowds = [subprocess.Popen([*words, name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
              for name in ("one", "two")]  # fmt: skip
    try:
        for crowd in crowds:
            out, _ = crowd.communicate(timeout=100)
            assert out == "raised 32\n"
    finally:
        for crowd in crowds:
            crowd.kill()
            crowd.wait()
    assert list(tmp_path.iterdir()) == []


# Raises an island as whoever runs it, and has a server in it answer through the host's loopback.
RAISE = """
import json, os, socket, subprocess, sys, threading
from microsim_vm.errors import MicrosimError
from microsim_vm.islands import namespaces
from microsim_vm.islands.island import Island
from microsim_vm.islands.policy import Network, pool_of
wires = json.loads(sys.argv[1])
try:
    with Island(Network("egress", ("192.0.2.1:80",), (80,)), "anybody's", wires, pool=pool_of(), wait_s=5) as island:
        plug = next(iter(island.plugs.values()))
        links = subprocess.run([*plug.entering(), "cat", "/proc/net/dev"], capture_output=True, text=True)
        server = namespaces.socket_in(plug.namespace, socket.AF_INET, socket.SOCK_STREAM)
        print(json.dumps({"uid": os.geteuid(), "user": namespaces.maker().user is not None, "links": links.stdout,
                          "error": links.stderr, "interface": island.interface}))
except MicrosimError as error:
    print(json.dumps({"kind": type(error).__name__, "what": error.what, "cause": error.cause, "hint": error.hint}))
"""
# With a tun device that anybody may use, as most machines have it.
NOBODY_WITH_TUN = (
    "unshare", "--mount", "--", "sh", "-c",
    'mount -t tmpfs none /dev/net && mknod -m 0666 /dev/net/tun c 10 200 && exec "$@"', "sh", *AS_NOBODY,
)  # fmt: skip
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user runs all of these tests as one already")


def python(before: Sequence[str], body: str, *words: str, env: Mapping[str, str] | None = None) -> Any:
    """Run a script under a command that changes what it may do, and return the JSON that it prints."""
    done = subprocess.run(
        [*before, sys.executable, "-c", body, *words], capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def nobodys() -> Iterator[Path]:
    """A folder that anybody can enter, in which ``own`` is nobody's."""
    folder = Path(tempfile.mkdtemp(prefix="microsim-nobody-"))
    folder.chmod(0o755)
    (folder / "own").mkdir()
    os.chown(folder / "own", NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


@needs_root
@pytest.mark.parametrize("wire", ["tap", "veth"])
def test_an_ordinary_user_raises_islands_in_a_user_namespace(nobodys: Path, wire: str) -> None:
    found = python(NOBODY_WITH_TUN, RAISE, json.dumps({"sim": wire}), env={"XDG_RUNTIME_DIR": str(nobodys / "own")})
    assert (found.get("uid"), found.get("user")) == (NOBODY, True), found
    assert found["error"] == ""
    assert ("eth0:" if wire == "veth" else f"{found['interface']}:") in found["links"]


HIDDEN = ("unshare", "--mount", "--", "sh", "-c", 'mount -t tmpfs none /dev/net && exec "$@"', "sh")
FULL = (
    "unshare", "--user", "--map-root-user", "--", "sh", "-c",
    'echo 0 >/proc/sys/user/max_net_namespaces && exec "$@"', "sh",
)  # fmt: skip
POWERLESS = ("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin")


@pytest.mark.parametrize(
    ("before", "wire", "cause"),
    [
        pytest.param(HIDDEN, "tap", "/dev/net/tun does not exist", marks=needs_root, id="no tun"),
        pytest.param(FULL, "veth", "the limit of network namespaces is reached", id="no namespace left"),
        pytest.param(POWERLESS, "veth", "no network namespaces, or nothing in them", marks=needs_root, id="no power"),
        pytest.param(POWERLESS, "tap", "no network namespaces, or nothing in them", marks=needs_root, id="no tap"),
    ],
)  # fmt: skip
def test_what_the_machine_withholds_is_an_error_with_its_cause(
    tmp_path: Path, before: Sequence[str], wire: str, cause: str
) -> None:
    found = python(before, RAISE, json.dumps({"sim": wire}), env={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert found.get("kind") == NetworkError.__name__, found
    assert cause in found["cause"]
    assert "an island could not be made" in found["what"]
    assert "network: none" in found["hint"]


@needs_root
def test_where_there_is_no_tun_a_veth_works(tmp_path: Path) -> None:
    found = python(HIDDEN, RAISE, json.dumps({"sim": "veth"}), env={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert "eth0:" in found.get("links", ""), found


# Forks a guest from files that anybody can read, with nothing of the rest of the cache.
FORK = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from islands import probe
from microsim_vm.cache import Cache
from microsim_vm.engines.base import Boot
from microsim_vm.engines.qemu import Qemu
from microsim_vm.forks import Forker
from microsim_vm.islands import namespaces
from microsim_vm.islands.policy import Network
from microsim_vm.templates.spec import ControllerLimits
folder, layers, memory_mib, accelerator = Path(sys.argv[2]), sys.argv[3].split(","), int(sys.argv[4]), sys.argv[5]
boot = Boot(folder / "kernel", folder / "initramfs", {name: folder / name for name in layers}, 1, memory_mib,
            network=Network("island"))
forker = Forker("isle", ControllerLimits(), Qemu(accelerator), boot, Cache(folder / "own/cache"))
with forker.fork(folder / "snapshot", 1) as machine:
    told = machine.network
    print(json.dumps({"uid": os.geteuid(), "user": namespaces.maker().user is not None, "told": told,
                      "vmm": os.stat(f"/proc/{machine.pid}").st_uid,
                      "facts": probe(machine, "facts"), "ping": probe(machine, "ping", to="gateway")}))
"""


@needs_root
def test_an_ordinary_users_fork_has_a_network(world: WarmWorld, engine: str, nobodys: Path) -> None:
    if engine == "gvisor":
        pytest.skip("gVisor's guests need root")
    accelerator = world.forker.engine.describe().rpartition(", ")[2]
    if accelerator == "kvm" and os.stat("/dev/kvm").st_mode & 6 != 6:
        pytest.skip("/dev/kvm is root's alone here")
    boot = world.forker.boot
    give_to_nobody(world, nobodys)
    found = python(
        NOBODY_WITH_TUN, FORK, str(HERE), str(nobodys), ",".join(boot.layers), str(boot.memory_mib), accelerator,
        env={"XDG_RUNTIME_DIR": str(nobodys / "own")},
    )  # fmt: skip
    assert (found["uid"], found["user"], found["vmm"]) == (NOBODY, True, NOBODY)
    assert found["facts"]["interfaces"]["eth0"]["mac"] == found["told"]["mac"]
    assert found["ping"] == {"ping": True, "tcp": "ECONNREFUSED"}
