"""Output of controllers and guests, made safe to show."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from microsim_vm.islands import namespaces
from microsim_vm.islands.island import Island
from microsim_vm.islands.policy import Network, pool_of
from microsim_vm.machine import Machine
from microsim_vm.templates.spec import ControllerLimits

from pytest_microsim.report.captures import file_name, kept
from pytest_microsim.report.sections import LIMIT, network_lines, shown
from pytest_microsim.rollout import Rollout
from pytest_microsim.state import ItemState


def rollout_on(island: Island | None) -> Rollout:
    """Return a rollout whose guest is never asked for anything."""
    berth = None if island is None else island.berth("sim")
    machine = Machine(cast(Any, None), cast(Any, None), seed=1, limits=ControllerLimits(), berth=berth)
    return Rollout(machine, seed=1, world="w", controller_folders=[])


@pytest.fixture
def island() -> Iterator[Island]:
    with Island(Network("island"), "sections", {"sim": "tap"}, pool=pool_of()) as found:
        yield found


def say(island: Island, data: bytes) -> None:
    """Send a datagram to whom it reaches as a broadcast, without asking where it is."""
    with namespaces.socket_in(island.namespace, socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.sendto(data, (str(island.subnet.network.broadcast_address), 9))


def test_text_is_shown_as_it_is() -> None:
    assert shown("tab\there\nzwölf €\n".encode()) == "tab\there\nzwölf €\n"


def test_bad_bytes_are_replaced_and_controls_escaped() -> None:
    text = shown(b"\xff\xfe\x00\x1b[31m\r\x7f\xc2\x85 \xe2\x82\xac \xef\xbf\xbf")
    assert text == "��\\x00\\x1b[31m\\r\\x7f\\x85 € \\uffff"
    ElementTree.fromstring(f"<a>{text}</a>")


def test_long_output_is_cut_in_the_middle_with_a_note() -> None:
    text = shown(b"begin" + b"x" * (2 << 20) + b"end")
    assert text.startswith("begin")
    assert text.endswith("end")
    assert f"[... {(2 << 20) + 8 - LIMIT} bytes left out, {LIMIT} shown ...]" in text
    assert len(text) < LIMIT + 100


def test_output_at_the_limit_is_whole() -> None:
    assert shown(b"y" * LIMIT) == "y" * LIMIT


def test_a_rollout_without_a_network_says_so_and_what_its_processes_are_told() -> None:
    lines = list(network_lines(rollout_on(None), {"ROS_DOMAIN_ID": "7\x1b[31m", "ROS_DISTRO": "humble"}))
    assert lines[:2] == ["network: none, a loopback and nothing else", "ROS_DOMAIN_ID=7\\x1b[31m"]
    assert "ROS_LOCALHOST_ONLY=1" in lines
    assert not any("\n" in line for line in lines)


def test_a_network_is_one_line() -> None:
    network = Network("egress", allow=("192.0.2.1:80",), publish=(80,))
    with Island(network, "described", {"sim": "tap", "controller": "veth"}, pool=pool_of()) as island:
        assert island.refusals is not None
        for number in range(12):
            island.refusals.add("tcp", "192.0.2.9", number)
        island.refusals.add("tcp", "192.0.2.9", 1)
        line, *variables = network_lines(rollout_on(island), {})
        subnet = island.subnet
        name = island.plugs["sim"].interface
    assert line == (
        f"network: egress; subnet {subnet.network}; eth0 {subnet.machine(0)} at {name}; "
        f"machines sim {subnet.machine(0)}, controller {subnet.machine(1)}; "
        f"published 80 at 127.0.0.1:{island.published[80]}; "
        "refused tcp 192.0.2.9:0, tcp 192.0.2.9:1 (2 times), "
        + ", ".join(f"tcp 192.0.2.9:{number}" for number in range(2, 10))
        + ", 2 more"
    )
    assert "ROS_AUTOMATIC_DISCOVERY_RANGE=SUBNET" in variables
    assert any(each.startswith("CYCLONEDDS_URI=") and "name='eth0'" in each for each in variables)


@pytest.mark.parametrize(
    "nodeid",
    [
        "tests/test_x.py::test_it",
        "../x/test_ü.py::TestA::test_it[a/b-seed-0001]",
        "a" * 300,
        f"test_x.py::test_{'ü' * 80}[seed-0010]",
        "test_x.py::test_it[\udcff\n\x00]",
        "...",
    ],
)
def test_a_captures_name_is_a_plain_files_name(nodeid: str) -> None:
    name = file_name(nodeid)
    assert name.isascii()
    assert len(name) <= 100
    assert name.endswith(".pcap")
    assert not name.startswith(".")
    assert not set(name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def test_no_two_tests_have_one_captures_name() -> None:
    ids = [f"test_x.py::test_{'x' * 200}{middle}{'y' * 200}[seed-{seed}]" for middle in "äöü" for seed in (1, 10, 100)]
    assert len({file_name(each) for each in [*ids, "a/b.py::t", "a_b.py::t", "a/b.py__t"]}) == len(ids) + 3
    assert "seed-100" in file_name(ids[2])


def test_the_last_frames_of_a_failed_rollout_are_kept(tmp_path: Path, island: Island) -> None:
    frames, target = tmp_path / "frames", tmp_path / "kept.pcap"
    target.write_bytes(b"of the run before")
    island.capture(frames)
    state = ItemState(world="w", seed=1, rollout=rollout_on(island))
    with kept(state):
        state.pcap = target  # as a failure sets it
        say(island, b"the last words")
        frames.unlink()
        island.close()
    data = target.read_bytes()
    assert data[:4] == b"\xd4\xc3\xb2\xa1"
    assert b"the last words" in data
    assert list(tmp_path.iterdir()) == [target]


def test_nothing_is_kept_of_a_rollout_that_has_not_failed(tmp_path: Path, island: Island) -> None:
    island.capture(tmp_path / "frames")
    with kept(ItemState(world="w", seed=1, rollout=rollout_on(island))):
        say(island, b"words")
    assert [path.name for path in tmp_path.iterdir()] == ["frames"]
