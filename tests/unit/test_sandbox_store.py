"""The records of sandboxes: found by name, believed only when whole, removed with their owners."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from microsim_vm import owner, reaper, runtime
from microsim_vm.cache import Cache
from microsim_vm.errors import SandboxNotFoundError
from microsim_vm.owner import Process
from microsim_vm.sandbox import door
from microsim_vm.sandbox.origin import Origin
from microsim_vm.sandbox.store import HIBERNATED, RECORD, Mount, Record, Store
from microsim_vm.templates.spec import ControllerLimits, MachineShape

DEAD = Process(2**22 + 1, 5, owner.boot_id())  # above the largest process number there is
REBOOTED = Process(1, 0, "an earlier boot")
ORIGIN = Origin("plain", "0123", {}, MachineShape(), "kernel", "initramfs", {}, ControllerLimits())
HALF_AN_HOUR_AGO = time.time() - 1800


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return Store(Cache(tmp_path / "cache"))


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            yield process
        finally:
            process.kill()


def plant(store: Store, name: str, **fields: Any) -> Record:
    settings = {"status": "running", "created_at": 1.0, "seed": 0, "owner": Process.current()} | fields
    record = Record(name, ORIGIN, **settings)
    store.folder(name).mkdir()
    store.write(record)
    return record


def names(store: Store) -> list[str]:
    return sorted(folder.name for folder in store.cache.folder("sandboxes").iterdir())


def test_a_record_is_read_as_it_was_written(store: Store) -> None:
    record = plant(
        store, "sb-1", metadata={"ä": "ü"}, volumes=(Mount("v", "/data", True),), ttl_seconds=1.5, hibernate_after=2.0
    )
    assert store.read("sb-1") == record
    assert store.read("sb-2") is None


def test_a_sandbox_is_found_by_its_id_or_by_the_only_beginning(store: Store) -> None:
    first, second = plant(store, "sb-12"), plant(store, "sb-123")
    other = plant(store, "sb-2", status="hibernated", owner=None)
    assert store.find("sb-12") == first  # also where another one begins so
    assert store.find("sb-123") == second
    assert store.find("sb-2") == other
    with pytest.raises(SandboxNotFoundError, match="2 sandboxes whose id begins with 'sb-1'") as several:
        store.find("sb-1")
    assert "sb-12: plain, running" in str(several.value)
    assert "sb-2" not in str(several.value)


@pytest.mark.parametrize("name", ["", "sb-3", "../sb-1", ".", "*"])
def test_what_is_not_found_is_an_error_that_lists_what_there_is(store: Store, name: str) -> None:
    plant(store, "sb-1")
    with pytest.raises(SandboxNotFoundError, match="no sandbox") as error:
        store.find(name)
    assert "sb-1: plain, running" in str(error.value)


def test_records_come_oldest_first(store: Store) -> None:
    for name, created_at in (("sb-a", 3.0), ("sb-b", 1.0), ("sb-c", 2.0)):
        plant(store, name, created_at=created_at)
    assert [record.id for record in store.records()] == ["sb-b", "sb-c", "sb-a"]


@pytest.mark.parametrize(
    ("fields", "exists"),
    [
        ({}, True),
        ({"status": "starting"}, True),
        ({"status": "waking"}, True),
        ({"status": "paused"}, True),
        ({"status": "hibernated", "owner": None}, True),
        ({"owner": DEAD}, False),
        ({"owner": REBOOTED}, False),
        ({"owner": None}, False),
        ({"status": "paused", "owner": DEAD}, False),
        ({"status": "starting", "owner": DEAD}, False),
    ],
)
def test_a_sandbox_exists_while_it_has_an_owner_or_hibernates(
    store: Store, fields: dict[str, Any], exists: bool
) -> None:
    plant(store, "sb-1", **fields)
    assert store.exists("sb-1") is exists
    assert store.reap() == ([] if exists else ["sandbox sb-1"])
    assert names(store) == (["sb-1"] if exists else [])
    assert store.reap() == []


def test_a_half_made_wake_goes_back_to_hibernation(store: Store) -> None:
    waking = {"status": "waking", "owner": DEAD, "door": "/run/x", "pid": 5}
    plant(store, "sb-reads", volumes=(Mount("v", "/data", read_only=True),), **waking)
    plant(store, "sb-reads-and-ran", volumes=(Mount("v", "/data", read_only=True),), ran=True, **waking)
    plant(store, "sb-writes", volumes=(Mount("v", "/data"),), **waking)
    plant(store, "sb-writes-and-ran", volumes=(Mount("v", "/data"),), ran=True, **waking)
    kept = ["sb-reads", "sb-reads-and-ran", "sb-writes"]
    for name in kept:
        (store.folder(name) / HIBERNATED).mkdir()
    assert store.reap() == ["sandbox sb-writes-and-ran"]
    for name in kept:
        record = store.read(name)
        assert record is not None
        assert (record.status, record.owner, record.door, record.pid, record.ran) == ("hibernated", None, "", 0, False)
        assert (store.folder(name) / HIBERNATED).is_dir()
    assert sorted(names(store)) == kept


@pytest.mark.parametrize("text", [b"", b"{", b'{"id": "sb-1"}', b"\xff\xfe", b"[]"])
def test_a_half_written_record_is_none_and_goes_with_its_maker(store: Store, text: bytes) -> None:
    folder = store.folder("sb-1")
    folder.mkdir()
    (folder / RECORD).write_bytes(text)
    assert store.read("sb-1") is None
    assert store.records() == []
    assert not store.exists("sb-1")
    owner.write(folder, Process.current())
    assert store.reap() == []  # its maker may be about to write it
    owner.write(folder, DEAD)
    assert store.reap() == ["sandbox sb-1"]
    assert names(store) == []


def test_a_folder_that_nobody_owns_goes_once_it_is_old(store: Store) -> None:
    folder = store.folder("sb-1")
    folder.mkdir()
    assert store.reap() == []
    os.utime(folder, (HALF_AN_HOUR_AGO,) * 2)
    assert store.reap() == ["sandbox sb-1"]


def test_a_strangers_number_is_no_owner_and_the_stranger_lives(store: Store, stranger: subprocess.Popen[bytes]) -> None:
    plant(store, "sb-1", owner=Process(stranger.pid, 1, owner.boot_id()), pid=stranger.pid)
    plant(store, "sb-2", owner=Process.of(stranger.pid), pid=stranger.pid)
    assert reaper.reap(store.cache) == ["sandbox sb-1"]
    assert names(store) == ["sb-2"]
    assert stranger.poll() is None


def test_a_record_is_whole_for_whoever_reads_it_meanwhile(store: Store) -> None:
    record = plant(store, "sb-1")
    done = threading.Event()

    def write() -> None:
        for seed in range(300):
            store.write(msgspec.structs.replace(record, seed=seed, metadata={"long": "x" * seed * 100}))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert store.read("sb-1") is not None
    writer.join()


def test_a_sandbox_is_locked_only_while_it_is_there(store: Store) -> None:
    with pytest.raises(SandboxNotFoundError), store.locked("sb-1"):
        pass
    assert names(store) == []
    plant(store, "sb-1")
    with store.locked("sb-1"):
        store.remove("sb-1")
    assert names(store) == []


def test_doors_of_the_dead_go_and_those_of_the_living_stay(stranger: subprocess.Popen[bytes]) -> None:
    folder = runtime.folder()
    ours = folder / f"{os.getpid()}-{owner.start_time(os.getpid())}.door"
    theirs = folder / f"{stranger.pid}-{owner.start_time(stranger.pid)}.door"
    reused, dead, odd = (folder / name for name in (f"{stranger.pid}-1.door", f"{DEAD.pid}-5.door", "odd.door"))
    for place in (ours, theirs, reused, dead, odd):
        place.touch()
    door.reap()
    assert sorted(folder.glob("*.door")) == sorted([ours, theirs, odd])


def test_a_door_is_closed_by_its_process_and_not_by_a_child_of_it(tmp_path: Path) -> None:
    body = """
import os, sys
from microsim_vm.sandbox import door
place = door.path()
assert place == door.path()
if os.fork() == 0:
    sys.exit()
os.wait()
print(place, os.path.exists(place), flush=True)
"""
    output = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=True, timeout=60).stdout
    place, stayed = output.split()
    assert stayed == "True"
    assert Path(place).parent == tmp_path / "microsim"
    assert not Path(place).exists()
