"""A real guest that was exported runs on elsewhere: in another cache, from nothing but the file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosting import fresh_cache
from microsim_vm import Options, Sandbox, archive
from microsim_vm.cache import Cache
from microsim_vm.errors import ArchiveError
from microsim_vm.sandbox import saved
from microsim_vm.templates import find_template
from microsim_vm.templates.bake import bake

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, templates: list[Path], engine: str) -> Path:
    """A sandbox with a file, and a process that counts, exported."""
    target = tmp_path_factory.mktemp("archive") / "counting.microsim"
    with Sandbox.create("cartpole", templates=templates, options=Options(engine=engine)) as sandbox:
        sandbox.filesystem.write("/data/note", b"\xff\xfe\x00 note")
        count = "n=$((n+1)); echo $n > /data/next; mv /data/next /data/count; sleep 0.05"  # nobody reads half a number
        sandbox.exec(f"n=0; (while :; do {count}; done) >/dev/null 2>&1 &")
        snapshot = sandbox.snapshot()
    try:
        archive.export(Cache(), snapshot.id, target)
    finally:
        saved.delete(Cache(), snapshot.id)
    return target


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory, templates: list[Path], engine: str) -> Iterator[Cache]:
    """A cache with nothing in it; for gVisor, which runs no image from elsewhere, with the image baked in it."""
    root = tmp_path_factory.mktemp("elsewhere") / "cache"
    if engine == "gvisor":
        bake(find_template("cartpole", templates), fresh_cache(root), locked=False, progress=print)
    yield Cache(root)
    shutil.rmtree(root)


def test_files_and_processes_go_on_where_they_were(exported: Path, elsewhere: Cache) -> None:
    snapshot = archive.restore(elsewhere, exported, name="counting")
    assert snapshot.origin.template == "cartpole"
    with Sandbox.create(from_snapshot="counting", options=Options(cache_dir=elsewhere.root)) as sandbox:
        assert sandbox.filesystem.read("/data/note") == b"\xff\xfe\x00 note"
        first = int(sandbox.exec("cat /data/count").stdout)
        second = int(sandbox.exec("sleep 1; cat /data/count").stdout)
    assert 1 <= first < second


def test_sandboxes_of_what_was_imported_differ(exported: Path, elsewhere: Cache) -> None:
    if not saved.folder_of(elsewhere, "counting").exists():
        archive.restore(elsewhere, exported, name="counting")
    drawn = set()
    for _ in range(2):
        with Sandbox.create(from_snapshot="counting", options=Options(cache_dir=elsewhere.root)) as sandbox:
            drawn.add(sandbox.exec("head -c 16 /dev/urandom | od -An -tx1").stdout)
    assert len(drawn) == 2


def test_a_damaged_file_leaves_nothing_beside_what_is_there(exported: Path, elsewhere: Cache, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.microsim"
    data = bytearray(exported.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    before = files_of(elsewhere)
    with pytest.raises(ArchiveError):
        archive.restore(elsewhere, damaged, name="damaged")
    assert files_of(elsewhere) == before


def test_gvisor_unpacks_no_image_that_it_was_sent(exported: Path, tmp_path: Path, engine: str) -> None:
    cache = Cache(tmp_path / "cache")
    if engine == "qemu":
        archive.restore(cache, exported, name="sent")  # its guest mounts what is in the image, and not the host
        assert len(list(cache.folder(archive.IMPORTED).iterdir())) == 5
        return
    with pytest.raises(ArchiveError, match="the image of cartpole is not here") as caught:
        archive.restore(cache, exported, name="sent")
    assert "microsim bake" in caught.value.hint
    assert [path for path in files_of(cache) if "saved" in path.parts or archive.IMPORTED in path.parts] == []


def files_of(cache: Cache) -> list[Path]:
    return sorted(path for path in cache.root.rglob("*") if path.is_file() and "locks" not in path.parts)
