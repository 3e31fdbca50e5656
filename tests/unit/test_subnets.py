"""Subnets: each is one island's at a time, whoever asks and however it ends."""

from __future__ import annotations

import ipaddress
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from microsim_vm.errors import CapacityError, NetworkError, SubnetsExhaustedError
from microsim_vm.islands import policy, subnets
from microsim_vm.islands.policy import pool_of
from microsim_vm.islands.subnets import Subnet

pytestmark = pytest.mark.timeout(60)

Net = ipaddress.IPv4Network
Taken = Callable[..., Subnet]

# Takes subnets of a pool and holds them until its standard input ends.
HOLDER = """
import ipaddress, sys
from concurrent.futures import ThreadPoolExecutor
from microsim_vm.islands import subnets
pool, threads, each = ipaddress.IPv4Network(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
def some(number):
    return [subnets.take(pool, f"{sys.argv[4]} {number} {n}", [], wait_s=0) for n in range(each)]
with ThreadPoolExecutor(threads) as executor:
    held = [subnet for found in executor.map(some, range(threads)) for subnet in found]
print(*(subnet.network for subnet in held), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let these tests, and what they start, take subnets in a file of their own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def take() -> Iterator[Taken]:
    """Return ``subnets.take`` without routes and without patience; all is given up at the end."""
    held: list[Subnet] = []

    def taken(
        pool: str, owner: str = "me", routed: tuple[str, ...] = (), machines: int = 1, wait_s: float = 0
    ) -> Subnet:
        held.append(subnets.take(Net(pool), owner, [Net(r) for r in routed], machines=machines, wait_s=wait_s))
        return held[-1]

    yield taken
    for each in held:
        each.close()


class Holder:
    """Another process that holds subnets."""

    def __init__(self, pool: str, name: str, *, threads: int = 1, each: int = 1) -> None:
        words = [sys.executable, "-c", HOLDER, pool, str(threads), str(each), name]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def networks(self) -> list[ipaddress.IPv4Network]:
        assert self.process.stdout is not None
        return [Net(word) for word in self.process.stdout.readline().split()]

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def overlapping(networks: list[ipaddress.IPv4Network]) -> list[tuple[ipaddress.IPv4Network, ipaddress.IPv4Network]]:
    ordered = sorted(networks)
    return [(a, b) for a, b in itertools.pairwise(ordered) if a.overlaps(b)]


def test_addresses_of_a_subnet(take: Taken) -> None:
    subnet = take("198.18.0.0/16")
    first = subnet.network.network_address
    assert (subnet.network.prefixlen, subnet.gateway, subnet.machine(0)) == (30, first + 1, first + 2)
    assert subnet.network.subnet_of(policy.SUBNETS)


def test_an_owner_is_given_the_same_one_again_and_another_one_while_it_is_taken(take: Taken) -> None:
    first = take("198.18.0.0/16", "a label")
    again = take("198.18.0.0/16", "a label")
    assert not first.network.overlaps(again.network)
    first.close()
    first.close()  # once more does no harm
    assert take("198.18.0.0/16", "a label").network == first.network


def test_threads_never_share_one(take: Taken) -> None:
    with ThreadPoolExecutor(8) as executor:
        found = list(executor.map(lambda n: take("10.9.0.0/24", f"thread {n}"), range(64)))
    assert {each.network for each in found} == set(Net("10.9.0.0/24").subnets(new_prefix=30))
    with pytest.raises(SubnetsExhaustedError):
        take("10.9.0.0/24")


def test_processes_with_threads_never_share_one() -> None:
    with (
        Holder("10.9.0.0/23", "one", threads=8, each=5) as one,
        Holder("10.9.0.0/23", "two", threads=8, each=5) as two,
    ):
        found = [*one.networks(), *two.networks()]
        assert len(found) == 80
        assert overlapping(found) == []


def test_a_killed_holder_gives_up_what_it_held(take: Taken) -> None:
    with Holder("10.9.0.0/28", "other", each=4) as other:
        assert len(other.networks()) == 4
        with pytest.raises(SubnetsExhaustedError):
            take("10.9.0.0/28")
        other.process.kill()
        other.process.wait(10)
        assert {take("10.9.0.0/28", f"{n}").network for n in range(4)} == set(Net("10.9.0.0/28").subnets(new_prefix=30))


def test_a_child_that_inherits_no_descriptor_holds_nothing(take: Taken) -> None:
    subnet = take("10.9.0.0/30")
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            subnet.close()
            assert take("10.9.0.0/30").network == subnet.network
        finally:
            child.kill()


def test_what_the_host_routes_is_left_alone(take: Taken) -> None:
    found = {take("10.9.0.0/28", f"{n}", routed=("10.9.0.4/30", "10.9.0.13/32")).network for n in range(2)}
    assert found == {Net("10.9.0.0/30"), Net("10.9.0.8/30")}
    with pytest.raises(SubnetsExhaustedError, match=r"all 2 subnets of 10\.9\.0\.0/28 are taken"):
        take("10.9.0.0/28", "third", routed=("10.9.0.4/30", "10.9.0.13/32"))


@pytest.mark.parametrize("route", ["0.0.0.0/0", "0.0.0.0/1", "8.0.0.0/7", "192.0.2.0/24"])
def test_a_route_to_everything_else_takes_nothing(take: Taken, route: str) -> None:
    assert take("10.9.0.0/30", routed=(route,)).network == Net("10.9.0.0/30")


@pytest.mark.parametrize("route", ["10.0.0.0/8", "10.9.0.0/28", "10.9.0.0/24"])
def test_a_pool_that_is_routed_as_a_whole_is_refused_at_once(take: Taken, route: str) -> None:
    began = time.monotonic()
    with pytest.raises(SubnetsExhaustedError, match="the host routes all of it") as caught:
        take("10.9.0.0/28", routed=(route,), wait_s=30)
    assert time.monotonic() - began < 5
    assert route in caught.value.details
    assert "--microsim-subnets" in caught.value.hint
    assert isinstance(caught.value, CapacityError)


def test_exhaustion_waits_for_one_that_becomes_free(take: Taken) -> None:
    held = take("10.9.0.0/30")
    timer = threading.Timer(0.4, held.close)
    timer.start()
    began = time.monotonic()
    assert take("10.9.0.0/30", "later", wait_s=20).network == held.network
    assert 0.3 < time.monotonic() - began < 10
    timer.join()


def test_exhaustion_ends_with_an_error_that_says_what_to_do(take: Taken) -> None:
    take("10.9.0.0/30")
    began = time.monotonic()
    with pytest.raises(SubnetsExhaustedError, match=r"all 1 subnets of 10\.9\.0\.0/30 .* within 0\.3 s") as caught:
        take("10.9.0.0/30", wait_s=0.3)
    assert 0.3 <= time.monotonic() - began < 5
    assert "microsim net" in caught.value.hint
    assert "--microsim-subnets" in caught.value.hint


@pytest.mark.parametrize(
    ("machines", "bits"), [(1, 30), (2, 29), (5, 29), (6, 28), (13, 28), (14, 27), (29, 27), (30, 26), (61, 26)]
)
def test_several_machines_have_a_block_with_room_for_all(take: Taken, machines: int, bits: int) -> None:
    subnet = take("10.9.0.0/24", machines=machines)
    assert subnet.network.prefixlen == bits
    hosts = list(subnet.network.hosts())
    addresses = [subnet.gateway, *map(subnet.machine, range(machines))]
    assert addresses == hosts[: machines + 1]  # neither the network's nor the broadcast address


def test_blocks_of_all_sizes_never_overlap(take: Taken) -> None:
    sizes = [1, 6, 2, 1, 14, 3, 1, 1, 5, 30, 1, 2]
    found = [take("10.9.0.0/22", f"{number}", machines=size).network for number, size in enumerate(sizes)]
    assert overlapping(found) == []


def test_more_machines_than_the_pool_has_addresses(take: Taken) -> None:
    with pytest.raises(
        SubnetsExhaustedError, match=r"an island of 2 machines needs a /29, and the pool is 10\.9\.0\.0/30"
    ):
        take("10.9.0.0/30", machines=2)


def test_pools_that_overlap_never_share(take: Taken) -> None:
    pools = ["10.9.0.0/26", "10.9.0.0/25", "10.9.0.32/27", "10.9.0.48/28"]
    found = [take(pools[n % 4], f"{n}").network for n in range(12)]
    found.append(take("10.9.0.0/25", "several", machines=5).network)
    assert overlapping(found) == []


def test_the_ends_of_the_address_space(take: Taken) -> None:
    assert take("255.255.255.252/30").network == Net("255.255.255.252/30")
    assert take("0.0.0.0/30").network == Net("0.0.0.0/30")


def test_the_pool_is_an_options_the_variables_or_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(policy.VARIABLE, raising=False)
    assert pool_of() == policy.SUBNETS == Net("198.18.0.0/16")
    monkeypatch.setenv(policy.VARIABLE, "10.1.0.0/16")
    assert pool_of() == Net("10.1.0.0/16")
    assert pool_of("10.2.0.0/30") == Net("10.2.0.0/30")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "'nonsense' is no range"), ("10.0.0.1/16", "has host bits set"), ("fd00::/64", "is no range"),
        ("10.0.0.0/33", "is no range"), ("10.0.0.0/31", "has no room"), ("10.0.0.0", "has no room"),
    ],
)  # fmt: skip
def test_what_is_no_pool_is_refused(text: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NetworkError, match=words) as caught:
        pool_of(text)
    assert "198.18.0.0/16" in caught.value.hint
    monkeypatch.setenv(policy.VARIABLE, text)
    with pytest.raises(NetworkError, match=words):
        pool_of()
