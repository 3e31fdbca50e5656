"""What breaks on the host while guests are made, copied and kept: said in the error, and over with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosting import ON_ANY_ENGINE, QUICK, REPOSITORY, Place, fresh_cache, plain, share_snapshot
from islands import ISLE
from microsim_vm import warmup
from microsim_vm.engines.gvisor import Gvisor
from microsim_vm.engines.qemu import Qemu
from microsim_vm.errors import BootError, NoSpaceError, SandboxStateError, SnapshotError
from microsim_vm.templates import wheels
from microsim_vm.world import WarmWorld, warm

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs takes root"),
]

DISK_MIB = 1000  # room for a guest's memory and engine, twice
SPACE = "free some space there, or choose another place with --microsim-cache-dir"


class Disk:
    """A small file system that can be filled in a moment, as something else on the machine would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """Leave no block."""
        with open(self.folder / "fill", "ab", buffering=0) as file:
            for size in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass
        assert shutil.disk_usage(self.folder).free == 0

    def free(self) -> None:
        """Give it back."""
        (self.folder / "fill").unlink(missing_ok=True)

    def fills_at(self, patch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool = False) -> None:
        """Fill it the next time that something is called: once there seemed to be room."""
        real = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            patch.setattr(owner, name, real)
            if after:
                made = real(*arguments, **named)
                self.fill()
                return made
            self.fill()
            return real(*arguments, **named)

        patch.setattr(owner, name, call)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    folder = tmp_path_factory.mktemp("disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", folder], check=True)
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def place(disk: Disk, tmp_path: Path, engine: str) -> Iterator[Place]:
    """A cache on that disk, with nothing warm in it."""
    cache = fresh_cache(disk.folder / "cache")
    (tmp_path / "images").mkdir()  # gVisor's have hard links to their layers, which are on the other disk
    (cache.root / "images").symlink_to(tmp_path / "images")
    found = Place(plain(tmp_path), cache, engine)
    yield found
    disk.free()
    shutil.rmtree(found.cache.root)


def nothing_half_made(place: Place, *kinds: str) -> None:
    for kind in ("staging", *kinds):
        assert list(place.cache.folder(kind).iterdir()) == [], kind


def warmed(place: Place) -> WarmWorld:
    return warm(place.template, place.options, print)


@ON_ANY_ENGINE
def test_the_disk_fills_while_an_image_is_baked(place: Place, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.fills_at(monkeypatch, wheels, "make_image")
    with pytest.raises(NoSpaceError) as caught:
        warmed(place)
    assert caught.value.what == f"no space left for the world layer: the disk of {place.cache.root} is full"
    assert "something else has filled it meanwhile" in caught.value.cause
    assert caught.value.hint == SPACE
    assert caught.value.details
    nothing_half_made(place, "images")


def test_an_engine_dies_and_the_disk_fills_while_a_world_is_warmed(
    place: Place, disk: Disk, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        real = warmup._wait_for_agent

        def wait(vm: Any, client: Any) -> None:
            os.kill(vm.pid, signal.SIGKILL)
            real(vm, client)

        patch.setattr(warmup, "_wait_for_agent", wait)
        with pytest.raises(BootError, match="the guest died while booting") as died:
            warmed(place)
    assert "its engine's process ended" in died.value.cause
    assert "kernel log" in died.value.hint
    nothing_half_made(place, "snapshots")

    # QEMU's memory is a file there, and it dies at the first page that does not fit; gVisor writes at the end.
    started = time.monotonic()
    disk.fills_at(monkeypatch, *((Qemu, "boot") if engine == "qemu" else (Gvisor, "save")), after=engine == "qemu")
    with pytest.raises(NoSpaceError) as full:
        warmed(place)
    assert time.monotonic() - started < 60
    assert full.value.what == f"no space left for a snapshot: the disk of {place.cache.root} is full"
    assert full.value.hint == SPACE
    assert ("the guest died while booting" if engine == "qemu" else "could not be saved") in full.value.details
    nothing_half_made(place, "snapshots")

    disk.free()
    if engine == QUICK:
        with warmed(place).fork(3) as machine:
            assert machine.exec("echo well").stdout == "well\n"


def test_the_disk_fills_while_a_running_guest_is_copied(
    place: Place, disk: Disk, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEMU's runs on; gVisor's ends with its copy, so that it is lost, and says so."""
    share_snapshot(place.cache, place.template, engine, to_be_spoiled=True)
    branching = Qemu if engine == "qemu" else Gvisor
    for name, what in (("fork", "a copy of a running guest"), ("hibernate", "a sandbox that is to hibernate")):
        with place.create() as sandbox:
            sandbox.exec("head -c 1000000 /dev/urandom >/workspace/noise", check=True)
            disk.fills_at(monkeypatch, branching, "branch")
            with pytest.raises(NoSpaceError) as caught:
                getattr(sandbox, name)()
            assert caught.value.what == f"no space left for {what}: the disk of {place.cache.root} is full"
            assert caught.value.hint == SPACE
            disk.free()
            nothing_half_made(place)
            if engine == "qemu":
                assert sandbox.exec("wc -c </workspace/noise").stdout.strip() == "1000000"
            else:
                assert "the guest is lost with it" in caught.value.details
                with pytest.raises(SandboxStateError, match="has crashed"):
                    sandbox.exec("true")
    with place.create() as sandbox, sandbox.fork() as child:
        assert child.exec("echo well").stdout == "well\n"


def test_the_disk_of_the_records_fills(place: Place, disk: Disk, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    share_snapshot(place.cache, place.template, engine)
    world = warmed(place)
    runtime = disk.folder / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    try:
        with world.fork(1) as other:
            disk.fill()
            with pytest.raises(NoSpaceError) as caught:
                world.fork(2)
            assert (
                caught.value.what == f"no space left for the record of a guest: the disk of {runtime}/microsim is full"
            )
            assert "XDG_RUNTIME_DIR" in caught.value.hint
            assert other.exec("echo well").stdout == "well\n"
            disk.free()
            with world.fork(2) as machine:
                assert machine.exec("echo well").stdout == "well\n"
        assert list((runtime / "microsim").glob("*.guest")) == []
    finally:
        shutil.rmtree(runtime)


def test_a_snapshot_that_is_damaged_under_a_session_is_not_forked(place: Place, engine: str) -> None:
    """Its forks of before live on: what they have mapped is as it was, unless it was cut off."""
    share_snapshot(place.cache, place.template, engine, to_be_spoiled=True)
    world = warmed(place)
    assert world.reused
    for name in world.snapshot.manifest.files:
        file = world.snapshot.directory / name
        good = file.stat()
        with open(file, "rb") as stream:
            byte, last = os.pread(stream.fileno(), 1, good.st_size // 2), os.pread(stream.fileno(), 1, good.st_size - 1)
        for damage in ("flipped", "cut off"):
            file.chmod(0o600)
            with open(file, "r+b") as stream:
                if damage == "cut off":
                    stream.truncate(good.st_size - 1)
                else:
                    os.pwrite(stream.fileno(), bytes([byte[0] ^ 0xFF]), good.st_size // 2)
            with pytest.raises(SnapshotError) as caught:
                world.fork(1)
            assert caught.value.what == f"the snapshot of plain is damaged: {name} changed while this session used it"
            assert caught.value.cause == f"somebody wrote to {world.snapshot.directory}"
            assert caught.value.hint == "start again: it is warmed up anew"
            with open(file, "r+b") as stream:
                os.pwrite(stream.fileno(), byte, good.st_size // 2)
                os.pwrite(stream.fileno(), last, good.st_size - 1)
            os.utime(file, ns=(good.st_atime_ns, good.st_mtime_ns))
    with world.fork(2) as machine:
        assert machine.exec("echo well").stdout == "well\n"


def test_rollouts_in_a_row_leave_nothing(tmp_path: Path, engine: str) -> None:
    """The script does the same with 200; one descriptor, process, interface or group more than before fails it."""
    (tmp_path / "isle").mkdir()
    (tmp_path / "isle/template.yaml").write_text(ISLE)
    words = ["--world", str(tmp_path / "isle"), "--engine", engine, "--rollouts", "12"]
    script = str(REPOSITORY / "benchmarks/bench_endurance.py")
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 rollouts in a row" in done.stdout
