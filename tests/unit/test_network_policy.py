"""Allow-lists, and what a template may say of its network."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from microsim_vm.islands.policy import NAMES, Network, destinations


def test_a_line_names_an_address_a_network_or_a_host() -> None:
    found = destinations(("192.0.2.7:80", "203.0.113.0/24:443", "Maps.Example:443", "10.0.0.0/8:1"))
    assert [(each.host, each.network, each.port) for each in found] == [
        ("", IPv4Network("192.0.2.7/32"), 80),
        ("", IPv4Network("203.0.113.0/24"), 443),
        ("maps.example", IPv4Network("198.19.0.1/32"), 443),
        ("", IPv4Network("10.0.0.0/8"), 1),
    ]


def test_each_name_has_one_address_of_its_own() -> None:
    found = destinations(("a.example:80", "b.example:80", "A.EXAMPLE:443", "192.0.2.1:80", "c:80"))
    by_name = {each.host: str(each.network) for each in found if each.host}
    assert by_name == {"a.example": "198.19.0.1/32", "b.example": "198.19.0.2/32", "c": "198.19.0.3/32"}
    assert all(each.network.subnet_of(NAMES) for each in found if each.host)


@pytest.mark.parametrize(
    "line",
    [
        "", ":", ":80", "example", "example:", "example:0", "example:65536", "example:-1", "example:+80",
        "example: 80", "example:80 ", " example:80", "example:http", "example:8e1", "example:\u0663", "example:80:",
        "a b:80", "a..b:80", ".a:80", "a.:80", "-a:80", "a-:80", "a/24:80", "ex\u200bample:80",
        "b\u00fccher.example:80", "a\nb:80", "a#b:80", "*:80", "*.example:80", f"{'a' * 64}.example:80",
        f"{'a.' * 130}b:80", "1.2.3:80", "1.2.3.256:80", "01.2.3.4:80", "10.0.0.1/24:80", "10.0.0.0/33:80",
        "::1:80", "[::1]:80",
        "02:00:00:00:00:01:80", "tcp://a:80", "a:80/tcp",
    ],
)  # fmt: skip
def test_what_is_no_destination_is_refused(line: str) -> None:
    with pytest.raises(ValueError):
        destinations(("good.example:80", line))


@pytest.mark.parametrize(
    "line", ["a:1", "a_b.example:65535", "x-1.a--b.example:80", f"{'a' * 63}.example:80", "4you:1"]
)
def test_names_that_are_ones(line: str) -> None:
    assert destinations((line,))[0].host == line.rpartition(":")[0]


def test_nothing_is_let_through_that_is_not_asked_for() -> None:
    assert Network() == Network("none", (), ())
    assert destinations(()) == []
