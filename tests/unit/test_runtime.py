"""The reaper: what dead owners left goes, everything else stays."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from microsim_vm import owner, runtime
from microsim_vm.cache import Cache
from microsim_vm.errors import EngineError
from microsim_vm.owner import Process
from microsim_vm.runtime import GuestRecord

DEAD = Process(2**22 + 1, 5, owner.boot_id())  # above the largest process number there is


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return Cache(tmp_path / "cache")


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            yield process
        finally:
            process.kill()


def plant(record: GuestRecord) -> Path:
    with runtime.locked() as path:
        return runtime.new_record(path, record)


def test_a_dead_owners_record_goes_and_a_live_ones_stays(cache: Cache) -> None:
    dead = plant(GuestRecord(DEAD, 100, "left behind"))
    live = plant(GuestRecord(Process.current(), 100, "ours"))
    runtime.reap(cache)
    assert not dead.exists()
    assert live.exists()
    assert runtime.reap(cache) == []


def test_a_dead_owners_guest_that_still_runs_is_killed(cache: Cache, stranger: subprocess.Popen[bytes]) -> None:
    plant(GuestRecord(DEAD, 100, "left behind", Process.of(stranger.pid)))
    assert runtime.reap(cache) == [f"guest process {stranger.pid} (left behind)"]
    assert stranger.wait(5) == -9
    assert runtime.reap(cache) == []


@pytest.mark.parametrize("change", [{"started": 1}, {"boot": "an earlier boot"}])
def test_a_stranger_that_got_the_guests_number_is_untouched(
    cache: Cache, stranger: subprocess.Popen[bytes], change: dict[str, int | str]
) -> None:
    guest = msgspec.structs.replace(Process.of(stranger.pid), **change)
    record = plant(GuestRecord(DEAD, 100, "left behind", guest))
    assert runtime.reap(cache) == []
    assert not record.exists()
    time.sleep(0.1)
    assert stranger.poll() is None


def test_a_live_owners_guest_is_untouched(cache: Cache, stranger: subprocess.Popen[bytes]) -> None:
    record = plant(GuestRecord(Process.current(), 100, "ours", Process.of(stranger.pid)))
    assert runtime.reap(cache) == []
    assert record.exists()
    assert stranger.poll() is None


def test_an_owner_whose_number_a_stranger_got_is_dead(cache: Cache, stranger: subprocess.Popen[bytes]) -> None:
    record = plant(GuestRecord(Process(stranger.pid, 1, owner.boot_id()), 100, "left behind"))
    runtime.reap(cache)
    assert not record.exists()
    assert stranger.poll() is None


def test_a_half_written_record_goes(cache: Cache) -> None:
    file = plant(GuestRecord(Process.current(), 100, "ours"))
    file.write_bytes(file.read_bytes()[:10])
    runtime.reap(cache)
    assert not file.exists()


def test_staging_folders_of_the_dead_go_and_those_of_the_living_stay(cache: Cache) -> None:
    with cache.staging("snapshot") as ours:
        left = cache.folder("staging", "snapshot-left")
        owner.write(left, DEAD)
        (left / "work").mkdir()
        (left / "work/ram").write_bytes(b"half")
        assert runtime.reap(cache) == ["half-written snapshot-left"]
        assert not left.exists()
        assert ours.is_dir()
    assert list(cache.folder("staging").iterdir()) == []


def test_what_lost_its_owner_while_being_made_goes_only_once_it_is_old(cache: Cache) -> None:
    folder = cache.folder("staging", "snapshot-unowned")
    partial = runtime.folder() / "0123.partial"
    partial.write_bytes(b"")
    assert runtime.reap(cache) == []
    assert folder.exists()
    assert partial.exists()
    for path in (folder, partial):
        os.utime(path, (time.time() - 2 * runtime.OWNERLESS_S,) * 2)
    assert runtime.reap(cache) == ["half-written snapshot-unowned"]
    assert not folder.exists()
    assert not partial.exists()


def test_a_guest_is_added_to_its_record(stranger: subprocess.Popen[bytes]) -> None:
    record = GuestRecord(Process.current(), 100, "ours")
    file = plant(record)
    runtime.started(file, record, stranger.pid)
    with runtime.locked() as path:
        ((found, full),) = runtime.records(path)
    assert found == file
    assert full.vmm == Process.of(stranger.pid)


def test_the_folder_is_private_and_does_not_follow_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime.folder() == tmp_path / "microsim"
    assert runtime.folder().stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert runtime.folder() == Path(f"/tmp/microsim-{os.geteuid()}")


def test_a_folder_that_cannot_be_made_is_an_error_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    with pytest.raises(EngineError, match=r"the runtime folder .*file/microsim cannot be used"):
        runtime.folder()


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to somebody else takes root")
def test_somebody_elses_folder_is_refused(tmp_path: Path) -> None:
    os.chown(runtime.folder(), 12345, 12345)
    with pytest.raises(EngineError, match="it belongs to somebody else"):
        runtime.folder()
