"""Volumes on the host: one at a time decides over a name, and nothing blocks a name for ever."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from microsim_vm import volumes
from microsim_vm.cache import Cache
from microsim_vm.errors import VolumeBusyError, VolumeError
from microsim_vm.sandbox.store import Mount

pytestmark = pytest.mark.skipif(
    not shutil.which("mkfs.ext4", path="/usr/sbin:/sbin:/usr/bin:/bin"), reason="mkfs.ext4 is not installed"
)
SCENES = Mount("scenes", "/scenes", read_only=False)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def outcome(attempt: Callable[[], object]) -> type[Exception] | None:
    try:
        attempt()
    except VolumeError as error:
        return type(error)
    return None


def test_of_a_deletion_and_a_claim_at_once_one_wins(cache: Cache) -> None:
    begin = threading.Barrier(2)

    def delete() -> None:
        begin.wait()
        volumes.delete(cache, "scenes", lambda _: True)

    def claim() -> None:
        begin.wait()
        volumes.claim(cache, [SCENES], "sb-1", lambda _: True)

    with ThreadPoolExecutor(2) as pool:
        for _ in range(10):
            volumes.create(cache, "scenes", 8)
            deleted, claimed = [each.result() for each in [pool.submit(outcome, what) for what in (delete, claim)]]
            assert (deleted, claimed) in ((None, VolumeError), (VolumeBusyError, None))
            assert (cache.folder("volumes") / "scenes").exists() == (claimed is None)
            if claimed is None:
                volumes.delete(cache, "scenes", lambda _: False)


def test_what_is_left_of_a_volume_does_not_block_its_name(cache: Cache) -> None:
    left = cache.folder("volumes", "scenes")
    (left / "image").write_bytes(b"half")
    (left / "lock").touch()
    assert volumes.listed(cache) == []
    with pytest.raises(VolumeError, match="there is no volume 'scenes'"):
        volumes.claim(cache, [SCENES], "sb-1", lambda _: True)
    volumes.create(cache, "scenes", 8)
    assert (left / "image").stat().st_size == 8 << 20
    with pytest.raises(VolumeError, match="there is a volume 'scenes' already"):
        volumes.create(cache, "scenes", 8)


def test_a_name_that_is_no_volumes_makes_nothing(cache: Cache) -> None:
    wanted = Mount("../scenes", "/scenes", read_only=False)
    with pytest.raises(VolumeError, match="there is no volume"):
        volumes.claim(cache, [wanted], "sb-1", lambda _: True)
    with pytest.raises(VolumeError, match="there is no volume"):
        volumes.delete(cache, "../scenes", lambda _: False)
    assert not [path for path in cache.root.rglob("*") if not path.is_dir()]
