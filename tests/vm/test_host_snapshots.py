"""Snapshots on disk: trusted only when whole, rebuilt when not, reused when nothing changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from hosting import ON_ANY_ENGINE, fresh_cache, plain, warm_cache
from microsim_vm import owner, snapshots
from microsim_vm.cache import Cache
from microsim_vm.engines import qemu, runsc
from microsim_vm.engines.gvisor import CHECKPOINT, Gvisor
from microsim_vm.errors import NoSpaceError, SnapshotError
from microsim_vm.options import Options
from microsim_vm.templates.bake import Image, bake
from microsim_vm.templates.spec import MachineShape, Template
from microsim_vm.world import WarmWorld, warm

pytestmark = pytest.mark.timeout(120)


class Place:
    """A template and a cache of its own; warmed on demand, with what was said meanwhile."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.template: Template = plain(folder)
        self.cache: Cache = warm_cache(folder / "cache", self.template, engine, to_be_spoiled=True)
        self.lines: list[str] = []
        self.engine = engine
        # The largest file of a snapshot, and all of them.
        self.memory, self.files = {"qemu": ("ram", ["ram", "state"])}.get(engine, (CHECKPOINT, [CHECKPOINT]))

    def warm(self) -> WarmWorld:
        self.lines = []
        return warm(self.template, Options(cache_dir=self.cache.root, engine=self.engine), self.lines.append)

    @property
    def boots(self) -> int:
        return len([line for line in self.lines if line.startswith("warmed up in")])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Place:
    return Place(tmp_path_factory.mktemp("snapshots"), engine)


@pytest.fixture
def ram(place: Place) -> Path:
    """The file of a good snapshot that has its memory."""
    return place.warm().snapshot.directory / place.memory


def flip(file: Path) -> None:
    """Change one byte in the middle of a file; its size stays."""
    file.chmod(0o600)
    with open(file, "r+b") as stream:
        stream.seek(file.stat().st_size // 2)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 0xFF]))


def forget_boot(folder: Path) -> None:
    """Make a snapshot look as if the host had been booted since."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["boot"] = "an earlier boot"
    (folder / "manifest.json").write_text(json.dumps(manifest))


def answers(world: WarmWorld) -> None:
    with world.fork(4) as machine:
        assert machine.exec("echo $EPISODE_SEED").stdout == "4\n"


def test_a_second_session_forks_without_booting(place: Place) -> None:
    place.warm()
    world = place.warm()
    assert world.reused
    assert not [line for line in place.lines if "booting" in line or "probing" in line]
    answers(world)


def test_forking_leaves_the_snapshot_as_it_is(place: Place, ram: Path) -> None:
    before = ram.stat()
    world = place.warm()
    with world.fork(1) as machine:
        machine.exec("dd if=/dev/urandom of=/dev/shm/noise bs=1M count=16", check=True)
    assert (ram.stat().st_mtime_ns, ram.stat().st_size) == (before.st_mtime_ns, before.st_size)
    forget_boot(ram.parent)
    assert snapshots.load(place.cache, world.snapshot.key) is not None


def shorten(file: Path, size: float) -> None:
    """Leave so much of a file, and its time of change as it is."""
    before = file.stat()
    file.chmod(0o600)
    os.truncate(file, max(0, int(before.st_size * size) - 1))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@ON_ANY_ENGINE
def test_a_shortened_file_is_never_forked(place: Place, ram: Path) -> None:
    """Not even where its time of change says nothing, as after a crash of the host."""
    shorten(ram, 0.5)
    world = place.warm()
    assert not world.reused
    answers(world)


@pytest.mark.parametrize("damage", [0, 1, 0.5, "flipped"])
def test_a_damaged_file_makes_a_snapshot_none(place: Place, ram: Path, tmp_path: Path, damage: float | str) -> None:
    copy = Cache(tmp_path)
    folder = copy.folder("snapshots") / ram.parent.name
    shutil.copytree(ram.parent, folder)
    assert snapshots.load(copy, folder.name) is not None
    if isinstance(damage, str):
        flip(folder / place.memory)
    else:
        shorten(folder / place.memory, damage)
    assert snapshots.load(copy, folder.name) is None
    assert not folder.exists()


@ON_ANY_ENGINE  # the one before is on each
def test_altered_memory_of_the_right_size_is_never_used(place: Place, ram: Path) -> None:
    size = ram.stat().st_size
    flip(ram)
    altered = ram.stat()
    assert altered.st_size == size
    world = place.warm()
    assert not world.reused
    assert place.boots == 1
    assert ram.stat().st_ctime_ns > altered.st_ctime_ns  # written anew; a file system may reuse the inode's number
    answers(world)


@ON_ANY_ENGINE
def test_deleted_files_with_the_manifest_kept_are_rebuilt(place: Place, ram: Path) -> None:
    for name in place.files:
        (ram.parent / name).unlink()
    assert (ram.parent / "manifest.json").exists()
    world = place.warm()
    assert not world.reused
    assert place.boots == 1
    answers(world)


@pytest.mark.parametrize("which", [0, -1])
def test_after_a_boot_of_the_host_contents_are_compared(place: Place, ram: Path, tmp_path: Path, which: int) -> None:
    name = place.files[which]
    key = ram.parent.name
    copy = Cache(tmp_path)
    folder = copy.folder("snapshots") / key
    shutil.copytree(ram.parent, folder)
    times = ram.parent.joinpath(name).stat()
    forget_boot(folder)
    found = snapshots.load(copy, key)
    assert found is not None
    assert found.manifest.boot == owner.boot_id()
    assert json.loads((folder / "manifest.json").read_text())["boot"] == owner.boot_id()

    flip(folder / name)
    os.utime(folder / name, ns=(times.st_atime_ns, times.st_mtime_ns))
    forget_boot(folder)
    assert snapshots.load(copy, key) is None
    assert not folder.exists()


@pytest.mark.parametrize("manifest", [None, b"", b'{"key": "'])
def test_a_snapshot_without_a_whole_manifest_is_discarded(
    place: Place, ram: Path, tmp_path: Path, manifest: bytes | None
) -> None:
    cache = Cache(tmp_path)
    folder = cache.folder("snapshots") / ram.parent.name
    folder.mkdir()
    (folder / place.memory).write_bytes(b"half")
    if manifest is not None:
        (folder / "manifest.json").write_bytes(manifest)
    assert snapshots.load(cache, ram.parent.name) is None
    assert not folder.exists()


def test_a_snapshot_that_vanishes_under_a_session_is_named(place: Place, ram: Path) -> None:
    world = place.warm()
    shutil.move(ram, ram.with_name("elsewhere"))
    try:
        with pytest.raises(SnapshotError, match="the snapshot of plain is gone") as caught:
            world.fork(1)
        assert str(ram.parent) in str(caught.value)
    finally:
        shutil.move(ram.with_name("elsewhere"), ram)


@dataclass
class OtherGvisor(Gvisor):
    """GVisor as some other host would have it."""

    there: dict[str, str]

    def identity(self) -> dict[str, str]:
        return self.there


@dataclass
class OtherEngine(qemu.Qemu):
    """QEMU as some other host would have it."""

    changed: dict[str, str]

    def identity(self) -> dict[str, str]:
        return {**qemu.Qemu("tcg").identity(), **self.changed}


@pytest.mark.parametrize("engine", ["gvisor"], indirect=True)
def test_the_key_covers_whatever_could_change_a_checkpoint(place: Place, ram: Path) -> None:
    image = bake(place.template, place.cache, locked=False, progress=print)
    engine = place.warm().forker.engine
    identity = engine.identity()
    changes = [{**identity, name: f"another {value}"} for name, value in identity.items()]
    keys = {snapshots.key_of(image, OtherGvisor(change), place.template.machine) for change in changes}
    own = snapshots.key_of(image, engine, place.template.machine)
    assert own == ram.parent.name
    assert len(keys | {own}) == 1 + len(changes)
    assert set(identity) == {"engine", "version", "platform", "cpu", "arguments"}
    assert identity["version"] == runsc.version()


@pytest.mark.parametrize("engine", ["qemu"], indirect=True)
def test_the_key_covers_whatever_could_change_a_snapshot(place: Place, ram: Path) -> None:
    image = bake(place.template, place.cache, locked=False, progress=print)
    shape = place.template.machine
    engine = qemu.Qemu("tcg")

    def key(image: Image = image, engine: qemu.Qemu = engine, shape: MachineShape = shape) -> str:
        return snapshots.key_of(image, engine, shape)

    identity = engine.identity()
    others = [
        key(shape=msgspec.structs.replace(shape, memory_mib=shape.memory_mib + 1)),
        key(shape=msgspec.structs.replace(shape, vcpus=shape.vcpus + 1)),
        key(image=replace(image, digest="0" * 64)),
        key(engine=OtherEngine({"version": "7.2.23"})),
        key(engine=OtherEngine({"cpu": "max on another processor"})),
        key(engine=OtherEngine({"accelerator": "kvm"})),
        key(engine=OtherEngine({"arguments": identity["arguments"] + " quiet"})),
    ]
    assert key() == ram.parent.name
    assert len({key(), *others}) == 1 + len(others)
    assert identity["version"] == qemu.version()
    assert identity["cpu"].endswith(_model_name())


def _model_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with 80 MiB, half of what the guest's memory takes."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs takes root")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_too_little_space_is_refused_up_front_with_nothing_partial_left(
    tmp_path: Path, small_disk: Path, engine: str
) -> None:
    cache = fresh_cache(small_disk / "cache")
    lines: list[str] = []
    with pytest.raises(NoSpaceError) as caught:
        warm(plain(tmp_path), Options(cache_dir=cache.root, engine=engine), lines.append)
    # A memory file of 160 MiB and some more; or a checkpoint, with what gVisor may need, that is written twice.
    need = 160 + 64 if engine == "qemu" else 2 * (160 + Gvisor.overhead_mib)
    assert f"need {need} MiB, have 7" in caught.value.what
    assert str(cache.root) in caught.value.what
    assert not [line for line in lines if f"booting {engine}" in line]
    assert list(cache.folder("snapshots").iterdir()) == []
    assert list(cache.folder("staging").iterdir()) == []


def test_too_little_space_for_the_base_system_is_refused_up_front(tmp_path: Path, small_disk: Path) -> None:
    cache = Cache(small_disk / "cache")
    with pytest.raises(NoSpaceError, match="no space for the base system: need 1024 MiB, have 80 MiB in "):
        warm(plain(tmp_path), Options(cache_dir=cache.root), print)
    assert list(cache.folder("bases").iterdir()) == []
    assert list(cache.folder("staging").iterdir()) == []
