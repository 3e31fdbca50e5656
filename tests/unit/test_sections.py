"""Output of controllers and guests, made safe to show."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from microsim_vm.islands import frames, namespaces
from microsim_vm.islands.island import Island
from microsim_vm.islands.policy import Network, pool_of
from microsim_vm.machine import Machine
from microsim_vm.templates.spec import ControllerLimits

from pytest_microsim.report.captures import ended, file_name, kept
from pytest_microsim.report.sections import LIMIT, network_lines, shown
from pytest_microsim.rollout import Rollout
from pytest_microsim.state import ITEM, ItemState


def rollout_on(island: Island | None) -> Rollout:
    """Return a rollout whose guest is never asked for anything."""
    berth = None if island is None else island.berth("sim")
    machine = Machine(cast(Any, None), cast(Any, None), seed=1, limits=ControllerLimits(), berth=berth)
    return Rollout(machine, seed=1, world="w", controller_folders=[])


@pytest.fixture
def island() -> Iterator[Island]:
    with Island(Network("island"), "sections", {"sim": "tap"}, pool=pool_of()) as found:
        yield found


def say(island: Island, data: bytes, times: int = 1) -> None:
    """Send datagrams to whom they reach as broadcasts, without asking where it is."""
    with namespaces.socket_in(island.namespace, socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        for _ in range(times):
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


def test_a_rollout_without_a_network_says_so_and_no_more() -> None:
    assert list(network_lines(rollout_on(None), {"ROS_DOMAIN_ID": "7"})) == [
        "network: none, a loopback and nothing else"
    ]


def test_a_rollout_with_one_says_what_its_processes_are_told(island: Island) -> None:
    lines = list(network_lines(rollout_on(island), {"ROS_DOMAIN_ID": "7\x1b[31m", "ROS_DISTRO": "humble"}))
    assert lines[1] == "ROS_DOMAIN_ID=7\\x1b[31m"
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
        "refused or failed tcp 192.0.2.9:0, tcp 192.0.2.9:1 (2 times), "
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


@pytest.fixture
def item(request: pytest.FixtureRequest) -> Iterator[pytest.Item]:
    """Return this test itself; what it is given of a rollout is gone when its own end is reported."""
    node: pytest.Item = request.node
    yield node
    del node.stash[ITEM]


def torn_down(item: pytest.Item) -> pytest.TestReport:
    report = pytest.TestReport(item.nodeid, item.location, {}, "passed", None, "teardown")
    ended(item, report)
    return report


def captured(island: Island, frames: Path) -> Rollout:
    """Return a rollout whose network is captured; its end is that of its island and its file, as usual."""
    rollout = rollout_on(island)
    island.capture(frames)
    rollout.machine.resources.callback(frames.unlink)
    rollout.machine.resources.callback(island.close)
    return rollout


def test_the_last_frames_of_a_failed_rollout_and_of_its_forks_are_kept(
    tmp_path: Path, island: Island, item: pytest.Item
) -> None:
    target = tmp_path / "kept.pcap"
    target.write_bytes(b"of the run before")
    rollout = captured(island, tmp_path / "frames")
    state = item.stash[ITEM] = ItemState(world="w", seed=1, rollout=rollout)
    networks = [island]
    with kept(state):
        parent = rollout
        for number in range(2):  # the second is a fork of the first
            networks.append(Island(Network("island"), f"fork {number}", {"sim": "tap"}, pool=pool_of()))
            parent.children.append(captured(networks[-1], tmp_path / f"frames of {number}"))
            parent = parent.children[0]
        state.pcap = target  # as a failure sets it
        for number, each in enumerate(networks):
            say(each, b"the last words of %d" % number)
    assert list(tmp_path.iterdir()) == [target]
    assert torn_down(item).sections == []
    assert len(list(tmp_path.iterdir())) == 3
    for number, name in enumerate(["kept", "kept-child1", "kept-child1-child1"]):
        data = (tmp_path / f"{name}.pcap").read_bytes()
        assert data[:4] == b"\xd4\xc3\xb2\xa1"
        assert [each for each in range(3) if b"the last words of %d" % each in data] == [number]


def test_a_capture_that_cannot_be_written_is_said(tmp_path: Path, island: Island, item: pytest.Item) -> None:
    state = item.stash[ITEM] = ItemState(world="w", seed=1, rollout=captured(island, tmp_path / "frames"))
    with kept(state):
        state.pcap = tmp_path / "none" / "kept.pcap"
    said = f"capture: {state.pcap} could not be written: No such file or directory"
    assert torn_down(item).sections == [("microsim teardown", said)]
    assert list(tmp_path.iterdir()) == []


def test_frames_that_a_capture_lacks_are_said(
    tmp_path: Path, island: Island, item: pytest.Item, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "BUFFER_BYTES", 1)  # room for one or two
    state = item.stash[ITEM] = ItemState(world="w", seed=1, rollout=captured(island, tmp_path / "frames"))
    with kept(state):
        state.pcap = tmp_path / "kept.pcap"
        say(island, bytes(1000), 2000)
    ((where, text),) = torn_down(item).sections
    assert where == "microsim teardown"
    assert re.fullmatch(rf"capture: {re.escape(str(state.pcap))} lacks \d+ frames, which passed too fast", text)


def test_nothing_is_kept_of_a_rollout_that_has_not_failed(tmp_path: Path, island: Island, item: pytest.Item) -> None:
    state = item.stash[ITEM] = ItemState(world="w", seed=1, rollout=captured(island, tmp_path / "frames"))
    with kept(state):
        say(island, b"words")
    ((_, held),) = state.frames.values()
    assert torn_down(item).sections == []
    assert held.closed
    assert state.frames == {}
    assert list(tmp_path.iterdir()) == []
