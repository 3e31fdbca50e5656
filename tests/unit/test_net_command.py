"""``microsim net``: records of islands, grouped, with what went over their links."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from microsim_vm import owner, runtime
from microsim_vm.cli import net
from microsim_vm.cli.main import main
from microsim_vm.islands.island import Island
from microsim_vm.islands.plug import Wire
from microsim_vm.islands.policy import Network, pool_of

HEAD = "Inter-|   Receive  |  Transmit\n face |bytes packets ... multicast|bytes packets ... compressed\n"
LINK = "{:>6}: {} 2 0 0 0 0 0 0 {} 3 0 0 0 0 0 0\n"
GONE = owner.Process(pid=1, started=0, boot="another")


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return runtime.folder()


def link(name: str, came_in: int, went_out: int) -> str:
    return LINK.format(name, came_in, went_out)


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ([("ms0123456789ab", 100, 20)], net.Traffic(sent=100, received=20)),
        ([("eth0", 20, 100)], net.Traffic(sent=100, received=20)),
        ([("msffffffffffff", 1, 2), ("ms0123456789ab", 100, 20)], net.Traffic(sent=100, received=20)),
        ([("msffffffffffff", 1, 2)], None),
        ([], None),
    ],
    ids=["gateway-side", "guest-side", "bridge", "another", "none"],
)
def test_bytes_are_counted_as_the_guest_sees_them(
    links: list[tuple[str, int, int]], expected: net.Traffic | None
) -> None:
    text = HEAD + link("lo", 7, 7) + "".join(link(*each) for each in links)
    assert net.traffic(text, "ms0123456789ab") == expected


def record(
    subnet: str, machine: str, address: str, *, owner_: owner.Process | None = None, label: str = "isle seed 1",
    published: dict[int, int] | None = None, vmm: owner.Process | None = None, interface: str = "ms0123456789ab",
) -> runtime.GuestRecord:  # fmt: skip
    island = runtime.IslandRecord(subnet, "island", interface, machine, address, published or {})
    return runtime.GuestRecord(owner_ or owner.Process.current(), 64, label, vmm=vmm, island=island)


def plant(folder: Path, *records: runtime.GuestRecord) -> None:
    for each in records:
        runtime.new_record(folder, each)


def test_nothing_alive_is_said(capsys: pytest.CaptureFixture[str], runtime_folder: Path) -> None:
    plant(
        runtime_folder,
        record("198.18.0.0/30", "sim", "198.18.0.2", owner_=GONE),
        runtime.GuestRecord(owner.Process.current(), 64, "without a network"),
    )
    assert main(["net"]) == 0
    assert capsys.readouterr().out == "no guest with a network is alive\n"
    assert main(["net", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_machines_that_share_a_subnet_stand_together(capsys: pytest.CaptureFixture[str], runtime_folder: Path) -> None:
    plant(
        runtime_folder,
        record("198.18.100.0/29", "controller", "198.18.100.3"),
        record("198.18.20.0/30", "sim", "198.18.20.2", label="isle seed 2"),
        record("198.18.100.0/29", "sim", "198.18.100.2", label="duo seed 1", published={80: 40123, 8080: 40124}),
        record("198.18.0.0/30", "sim", "198.18.0.2", owner_=GONE),
    )
    assert main(["net"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    me = str(os.getpid())
    assert rows == [
        list(net.HEADER),
        ["198.18.20.0/30", "island", "sim", "198.18.20.2", "-", "-", "-", "ms0123456789ab", me, "isle", "seed", "2"],
        ["198.18.100.0/29", "island", "sim", "198.18.100.2", "-", "-", "80", "at", "127.0.0.1:40123,", "8080", "at",
         "127.0.0.1:40124", "ms0123456789ab", me, "duo", "seed", "1"],
        ["controller", "198.18.100.3", "-", "-", "-", "ms0123456789ab", me, "isle", "seed", "1"],
    ]  # fmt: skip
    assert main(["net", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["subnet"], len(first["machines"])) == ("198.18.20.0/30", 1)
    assert (second["subnet"], second["policy"]) == ("198.18.100.0/29", "island")
    assert [each["machine"] for each in second["machines"]] == ["sim", "controller"]
    assert second["machines"][0] == {
        "machine": "sim", "address": "198.18.100.2", "sent_bytes": None, "received_bytes": None,
        "published": {"80": "127.0.0.1:40123", "8080": "127.0.0.1:40124"}, "interface": "ms0123456789ab",
        "owner": os.getpid(), "label": "duo seed 1",
    }  # fmt: skip


@pytest.fixture
def live(runtime_folder: Path) -> Iterator[Island]:
    """Raise an island of two kinds of links, with a process in the place of each engine."""
    wires: dict[str, Wire] = {"sim": "tap", "controller": "veth"}
    with Island(Network("island"), "net command", wires, pool=pool_of()) as island:
        engines = []
        try:
            for name, plug in island.plugs.items():
                words = [*plug.entering(), "sh", "-c", "echo in; exec sleep 60"]
                engine = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
                engines.append(engine)
                assert engine.stdout is not None
                assert engine.stdout.readline() == "in\n"
                place = island.berth(name).record()
                new = runtime.GuestRecord(owner.Process.current(), 64, name)
                runtime.started(runtime.new_record(runtime_folder, new), new, engine.pid, place)
            yield island
        finally:
            for engine in engines:
                engine.kill()
                engine.communicate()


def test_each_machine_of_a_live_island_has_its_own_bytes(live: Island) -> None:
    def bytes_of() -> dict[str, tuple[int, int]]:
        (island,) = net.islands()
        assert island["subnet"] == str(live.subnet.network)
        return {each["machine"]: (each["sent_bytes"], each["received_bytes"]) for each in island["machines"]}

    tap = live.plugs["sim"].tap
    assert tap is not None
    before = bytes_of()
    broadcast = b"\xff" * 6 + bytes.fromhex(live.plugs["sim"].mac.replace(":", "")) + b"\x88\xb5" + bytes(986)
    assert os.write(tap, broadcast) == 1000
    after = bytes_of()
    grown = {name: (after[name][0] - before[name][0], after[name][1] - before[name][1]) for name in after}
    assert grown["sim"] == (1000, 0)
    assert grown["controller"][0] == 0
    assert grown["controller"][1] >= 986  # the header of the link is not counted there


def test_an_engine_that_has_ended_has_no_bytes(runtime_folder: Path) -> None:
    plant(runtime_folder, record("198.18.0.0/30", "sim", "198.18.0.2", vmm=GONE, interface="lo"))
    (island,) = net.islands()
    assert [(each["sent_bytes"], each["received_bytes"]) for each in island["machines"]] == [(None, None)]


def test_an_engine_in_the_hosts_namespace_has_none_of_the_hosts_bytes(runtime_folder: Path) -> None:
    plant(runtime_folder, record("198.18.0.0/30", "sim", "198.18.0.2", vmm=owner.Process.current(), interface="lo"))
    (island,) = net.islands()
    assert [(each["sent_bytes"], each["received_bytes"]) for each in island["machines"]] == [(None, None)]
