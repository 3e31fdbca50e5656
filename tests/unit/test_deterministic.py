"""The deterministic machine without a guest: what it refuses, where things lie, what follows from what."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
from microsim_guest import jitter, mailbox, wire
from microsim_vm import deterministic, endings, warmup
from microsim_vm.deterministic import History, Life
from microsim_vm.engines import boxes, icount, select
from microsim_vm.engines.base import Boot
from microsim_vm.engines.icount import Icount
from microsim_vm.errors import ChannelClosedError, DeterminismError, SeedError, SnapshotError
from microsim_vm.templates import load_template
from templating import write

GOOD = 'world: {factory: "world:make"}\nnetwork: none\ndeterministic: true\n'


def boot(tmp_path: Path, memory_mib: int = 256, **layers: int) -> Boot:
    """Return a machine whose layers have so many bytes."""
    paths = {name: tmp_path / name for name in layers}
    for name, size in layers.items():
        with open(paths[name], "wb") as file:
            file.truncate(size)
    return Boot(tmp_path, tmp_path, paths, 1, memory_mib)


def section(identity: int, name: bytes, data: bytes) -> bytes:
    """Return a section of a device state."""
    head = b"\x04" + struct.pack(">IB", identity, len(name)) + name + struct.pack(">II", 0, 1)
    return head + data + b"\x7e" + struct.pack(">I", identity)


def test_a_template_that_can_be_deterministic_is_let_through(tmp_path: Path) -> None:
    template = load_template(write(tmp_path / "good", GOOD))
    assert template.deterministic
    deterministic.check_template(template)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ('world: {factory: "world:make"}\nnetwork: none\nmachine: {vcpus: 2}\n', "machine.vcpus"),
        ('world: {factory: "world:make"}\nnetwork: island\n', "'island'"),
        ('world: {factory: "world:make"}\nnetwork: none\nwall_clock: now\n', "'now'"),
    ],
)
def test_what_depends_on_the_host_is_refused_with_the_reason(tmp_path: Path, changes: str, word: str) -> None:
    template = load_template(write(tmp_path / "bad", changes))
    with pytest.raises(DeterminismError) as caught:
        deterministic.check_template(template)
    assert word in caught.value.what
    assert caught.value.cause
    assert caught.value.hint


@pytest.mark.parametrize(("engine", "accelerator"), [("gvisor", "auto"), ("auto", "kvm"), ("qemu", "kvm")])
def test_engines_that_run_on_the_hosts_processor_are_refused(engine: str, accelerator: str) -> None:
    with pytest.raises(DeterminismError, match="QEMU with TCG"):
        select.check_deterministic(engine, accelerator)


def test_the_engine_is_known_by_its_identity() -> None:
    identity = {"engine": "qemu", "accelerator": "tcg"}
    assert not select.of(identity).deterministic
    assert select.of({**identity, "deterministic": "2^1 ns per instruction"}).deterministic


def test_layers_lie_apart_after_the_mailbox_and_the_machine_keeps_its_own_memory(tmp_path: Path) -> None:
    machine = boot(tmp_path, 256, base=5 << 20, python=4096, world=(2 << 20) + 1)
    placed = [(at, size) for at, size, _ in icount._placed(machine)]
    first = (mailbox.AT + mailbox.SIZE) >> 20
    assert placed == [(first, 6), (first + 8, 2), (first + 12, 4)]
    assert icount._enlarged(machine).memory_mib == 256 + 32 + 6 + 2 + 2 + 2 + 4 + 2
    assert f"memmap=32M$0x{mailbox.AT:x},6M!0x{first << 20:x}," in Icount()._command_line(machine)


def test_an_image_that_does_not_fit_into_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeterminismError, match="3072 MiB"):
        icount._enlarged(boot(tmp_path, 1024, base=2 << 30))


def test_a_life_follows_from_the_seed_and_the_schedule() -> None:
    assert Life.of(7, None) == Life.of(7, None)
    assert Life.of(7, None).schedule != Life.of(8, None).schedule
    assert Life.of(7, 1).entropy == Life.of(7, 2).entropy, "another schedule is another order, and nothing else"
    assert Life.of(7, 1).entropy != Life.of(8, 1).entropy


def test_names_that_are_drawn_for_a_request_are_not_sent() -> None:
    def framed(token: str) -> bytes:
        history = History(cast(Any, None), Path(), Life.of(3, None))
        return history._framed("exec", {"token": token, "argv": ["true"]}, [])[1]

    assert framed("a") == framed("b")


@pytest.mark.parametrize("op", ["world.reset", "world.step", "terminal.open", "relay.input", "controller.visit"])
def test_what_hears_from_the_host_as_it_runs_is_refused(op: str) -> None:
    with pytest.raises(DeterminismError, match="a deterministic machine has no"):
        History(cast(Any, None), Path(), Life.of(3, None)).call(op, timeout_s=1.0)


def test_a_machine_that_was_closed_or_lost_is_asked_nothing_more() -> None:
    closed, lost = (History(cast(Any, None), Path(), Life.of(3, None)) for _ in range(2))
    closed.close()
    lost._lost = endings.ENGINE
    for history, cause in ((closed, endings.CLOSED.cause), (lost, endings.ENGINE.cause)):
        assert not history.alive()
        with pytest.raises(ChannelClosedError) as caught:
            history.call("exec", timeout_s=1.0)
        assert caught.value.cause == cause


def test_a_world_may_take_longer_to_load_than_its_limit_which_the_guest_keeps_by_its_own_clock(tmp_path: Path) -> None:
    waited = []

    class Client:
        def call(self, op: str, args: dict[str, float], *, timeout_s: float) -> tuple[dict[str, float], list[bytes]]:
            waited.append((args["timeout_s"], timeout_s))
            return {}, []

    template = load_template(write(tmp_path / "slow", GOOD + "warmup_timeout_s: 100\n"))
    warmup.load_world(template, cast(Any, None), cast(Any, Client()), print, slower=deterministic.SLOWER)
    assert waited == [(100.0, (100.0 + warmup.GRACE_S) * deterministic.SLOWER)]


def test_the_clock_of_another_process_is_its_processor_time() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            clock = jitter._clock(busy.pid)
            first = time.clock_gettime_ns(clock)
            while time.clock_gettime_ns(clock) == first:
                time.sleep(0.01)
        finally:
            busy.kill()


def test_a_running_machine_is_not_copied() -> None:
    with (
        pytest.raises(DeterminismError, match="no running forks"),
        History(cast(Any, None), Path(), Life.of(3, 1)).quiesced(),
    ):
        pass


def test_a_schedule_is_a_whole_number(tmp_path: Path) -> None:
    forker = cast(Any, type("Forker", (), {"engine": Icount()}))
    with pytest.raises(SeedError):
        deterministic.fork(forker, tmp_path, 1, schedule=-1, reseed=True, wall_clock=0.0)
    with pytest.raises(DeterminismError, match="wall clock"):
        deterministic.fork(forker, tmp_path, 1, schedule=1, reseed=True, wall_clock=None)


def test_frames_that_a_guest_left_are_read_one_by_one() -> None:
    data = wire.encode({"id": "a", "event": "stdout"}, [b"one"]) + wire.encode({"id": "a", "ok": {}})
    assert [frame.header["id"] for frame in deterministic._frames(data)] == ["a", "a"]


def test_a_device_state_is_taken_apart_into_its_sections() -> None:
    data = {"timer": b"\1\2", "cpu": b"registers \x7e\0\0\0\2", "rtc": b""}
    state = b"QEVM\0\0\0\3" + b"".join(section(n, name.encode(), data[name]) for n, name in enumerate(data, 1)) + b"\0"
    assert dict(boxes.sections(state)) == data


@pytest.mark.parametrize("state", [b"", b"QEVM\0\0\0\3", b"QEVM\0\0\0\3\x04\0\0\0\1\3cpu\0\0\0\0\0\0\0\1"])
def test_what_is_no_device_state_is_refused(state: bytes) -> None:
    with pytest.raises(SnapshotError):
        list(boxes.sections(state))
