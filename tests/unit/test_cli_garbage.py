"""Garbage collection: oldest first, by age or size; never what is in use, needed, locked or behind a link."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import filelock
import msgspec
import pytest
from microsim_vm import garbage, owner, runtime
from microsim_vm.cache import Cache
from microsim_vm.cli.main import main
from microsim_vm.runtime import GuestRecord
from microsim_vm.sandbox.origin import Origin
from microsim_vm.sandbox.saved import SavedSnapshot
from microsim_vm.sandbox.store import Record, Store
from microsim_vm.templates.spec import ControllerLimits, MachineShape

DAY_S = 86400.0
MIB = 1 << 20


class Fake:
    """A cache whose things have ages in days and sizes in MiB."""

    def __init__(self, root: Path) -> None:
        self.cache = Cache(root)

    def folder(self, kind: str, name: str, days: float, manifest: Any, **files: int) -> Path:
        folder = self.cache.folder(kind, name)
        for file, mib in files.items():
            (folder / file).write_bytes(os.urandom(mib * MIB))
        if manifest is not None:
            (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))
        return self.aged(folder, days)

    def aged(self, path: Path, days: float) -> Path:
        then = time.time() - days * DAY_S
        for each in (*(path.iterdir() if path.is_dir() else ()), path):
            os.utime(each, (then, then))
        return path

    def image(self, name: str, days: float) -> Origin:
        """Make an image ``name`` with layers ``name``, of 3 MiB in all."""
        self.folder("bases", name, days, {"sha256": {}}, base=1)
        self.folder("pythons", name, days, {"sha256": ""}, python=1)
        lock = {"digest": f"digest-{name}", "template": {"name": name}}
        self.folder("images", name, days, {"base": name, "python": name, "lock": lock}, world=1)
        layers = {"base": f"bases/{name}/base", "python": f"pythons/{name}/python", "world": f"images/{name}/world"}
        return Origin(name, f"digest-{name}", {}, MachineShape(), f"bases/{name}/base", f"bases/{name}/base", layers,
                      ControllerLimits())  # fmt: skip

    def snapshot(self, name: str, days: float, image: str = "gone") -> Path:
        return self.folder("snapshots", name, days, {"template": "t", "digest": f"digest-{image}"}, ram=2)

    def saved(self, name: str, days: float, origin: Origin) -> Path:
        return self.folder("saved", name, days, SavedSnapshot(name, origin, "sb", 0.0, "", {}), ram=2)

    def sandbox(self, name: str, origin: Origin, **settings: Any) -> None:
        self.cache.folder("sandboxes", name)
        Store(self.cache).write(Record(name, origin, created_at=0.0, seed=0, **settings))

    def collect(self, **settings: Any) -> list[str]:
        report = garbage.collect(self.cache, **settings)
        return [f"{each.kind}/{each.name}" for each in report.removed]

    @property
    def left(self) -> set[str]:
        return {
            f"{kind}/{path.name}" for kind in garbage.KINDS if (self.cache.root / kind).exists()
            for path in (self.cache.root / kind).iterdir()
        }  # fmt: skip


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path / "cache")


def test_without_limits_only_rubbish_goes(fake: Fake) -> None:
    fake.image("old", 400)
    fake.snapshot("old", 400, "old")
    fake.folder("images", "half", 2, None, world=1)
    (fake.cache.folder("failures") / "1-key.json").write_text("{}")
    fake.aged(fake.cache.root / "failures" / "1-key.json", 2)
    assert set(fake.collect()) == {"images/half", "failures/1-key.json"}


def test_what_is_older_than_asked_for_goes_and_the_rest_stays(fake: Fake) -> None:
    fake.image("old", 10)
    fake.image("new", 1)
    fake.snapshot("old", 10, "old")
    fake.snapshot("new", 1, "new")
    fake.cache.folder("wheels")
    for name, days in (("old.whl", 10), ("new.whl", 1)):
        (fake.cache.root / "wheels" / name).write_bytes(b"x")
        fake.aged(fake.cache.root / "wheels" / name, days)
    removed = fake.collect(older_than=7 * DAY_S)
    assert set(removed) == {"snapshots/old", "images/old", "bases/old", "pythons/old", "wheels/old.whl"}
    assert removed.index("snapshots/old") < removed.index("images/old") < removed.index("bases/old")
    assert fake.left == {"snapshots/new", "images/new", "bases/new", "pythons/new", "wheels/new.whl"}


def test_until_it_is_small_enough_what_was_used_longest_ago_goes_first(fake: Fake) -> None:
    for name, days in (("b", 3), ("a", 4), ("c", 2)):
        fake.snapshot(name, days)
    assert fake.collect(max_size=3 * MIB) == ["snapshots/a", "snapshots/b"]
    assert fake.collect(max_size=3 * MIB) == []


def test_what_a_kept_thing_needs_stays_however_old_it_is(fake: Fake) -> None:
    fake.image("old", 400)
    fake.snapshot("new", 1, "old")
    assert fake.collect(older_than=7 * DAY_S) == []
    assert fake.collect(max_size=0)[0] == "snapshots/new"
    assert fake.left == set()


def test_a_layer_that_two_images_share_goes_with_the_last(fake: Fake) -> None:
    fake.image("one", 10)
    lock = {"digest": "digest-two", "template": {"name": "two"}}
    fake.folder("images", "two", 1, {"base": "one", "python": "one", "lock": lock}, world=1)
    assert fake.collect(older_than=7 * DAY_S) == ["images/one"]
    assert set(fake.collect(older_than=0.5 * DAY_S)) == {"images/two", "bases/one", "pythons/one"}


@pytest.mark.parametrize("status", ["running", "hibernated", "paused"])
def test_the_image_of_a_sandbox_stays(status: Any, fake: Fake) -> None:
    here = owner.Process.current() if status != "hibernated" else None
    fake.sandbox("sb-1", fake.image("old", 400), status=status, owner=here)
    fake.image("other", 400)
    assert set(fake.collect(max_size=0)) == {"images/other", "bases/other", "pythons/other"}


@pytest.mark.parametrize("file", ["world", "root-0123456789abcdef"])
def test_the_image_that_a_guest_runs_from_stays_though_no_sandbox_is_its(
    file: str, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    fake.image("old", 400)
    fake.image("other", 400)
    fake.image("left", 400)
    gone = owner.Process(pid=2**22 + 1, started=1, boot=owner.boot_id())
    elsewhere = tmp_path / "elsewhere/images/other"
    for holder, image in ((owner.Process.current(), fake.cache.root / "images/old" / file), (gone, "images/left/world"),
                          (owner.Process.current(), elsewhere)):  # fmt: skip
        with runtime.locked() as path:
            runtime.new_record(path, GuestRecord(holder, 100, "seed 3", image=str(fake.cache.root / image)))
    report = garbage.collect(fake.cache, max_size=0, dry_run=True)
    assert dict(report.held)["images/old"] == "a guest runs from it"
    removed = set(fake.collect(max_size=0))
    assert removed == {f"{kind}/{name}" for kind in ("images", "bases", "pythons") for name in ("other", "left")}


def test_an_image_that_a_guest_was_started_from_meanwhile_stays(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    fake.image("old", 400)
    fake.snapshot("older", 500)
    real = shutil.rmtree

    def starting(folder: Path, **settings: Any) -> None:
        real(folder, **settings)
        if folder.name == "older":
            with runtime.locked() as path:
                image = str(fake.cache.root / "images/old/world")
                runtime.new_record(path, GuestRecord(owner.Process.current(), 100, "seed 3", image=image))

    monkeypatch.setattr(shutil, "rmtree", starting)
    assert fake.collect(max_size=0) == ["snapshots/older"]
    assert fake.left == {"images/old", "bases/old", "pythons/old"}


def test_the_image_of_a_dead_sandbox_goes_with_it(fake: Fake) -> None:
    gone = owner.Process(pid=2**22 + 1, started=1, boot=owner.boot_id())
    fake.sandbox("sb-1", fake.image("old", 400), status="running", owner=gone)
    assert "images/old" in fake.collect(max_size=0, dry_run=True)
    assert "images/old" in fake.collect(max_size=0)
    assert Store(fake.cache).records() == []


def test_saved_snapshots_go_too_and_keep_their_image_until_then(fake: Fake) -> None:
    fake.saved("mine", 1, fake.image("old", 400))
    assert fake.collect(older_than=7 * DAY_S) == []
    assert fake.collect(older_than=0.5 * DAY_S)[0] == "saved/mine"
    assert fake.left == set()


def test_imported_image_files_stay_as_long_as_a_snapshot_needs_them(fake: Fake) -> None:
    origin = fake.image("old", 400)
    fake.folder("imported", "f" * 64, 400, None, file=1)
    moved = msgspec.structs.replace(origin, kernel=f"imported/{'f' * 64}/file")
    fake.saved("mine", 1, moved)
    assert fake.collect(older_than=7 * DAY_S) == []
    assert f"imported/{'f' * 64}" in fake.collect(older_than=0.5 * DAY_S)


def test_what_was_used_within_the_hour_stays_with_all_that_it_needs(fake: Fake) -> None:
    fake.image("old", 400)
    fake.snapshot("now", 0.01, "old")
    fake.folder("bases", "building", 0.01, None, base=1)
    report = garbage.collect(fake.cache, older_than=0.0, max_size=0)
    assert report.removed == []
    assert dict(report.held)["images/old"] == "snapshots/now needs it"


def test_what_is_locked_stays(fake: Fake) -> None:
    fake.snapshot("busy", 10)
    lock = fake.cache.folder("locks") / "snapshot-busy.lock"
    with filelock.FileLock(lock):
        assert fake.collect(max_size=0) == []
    assert fake.collect(max_size=0) == ["snapshots/busy"]


@pytest.mark.parametrize("lock", ["snapshot-x", "image-x", "base-x", "python-x"])
def test_while_something_is_built_what_it_may_be_built_from_stays(lock: str, fake: Fake) -> None:
    fake.image("old", 400)
    fake.snapshot("old", 400)
    with filelock.FileLock(fake.cache.folder("locks") / f"{lock}.lock"):
        assert fake.collect(max_size=0) == ["snapshots/old"]
    assert set(fake.collect(max_size=0)) == {"images/old", "bases/old", "pythons/old"}


def test_an_empty_cache_is_fine(fake: Fake) -> None:
    assert fake.collect(max_size=0, dry_run=True) == []


def test_what_lies_behind_a_link_is_another_caches(fake: Fake, tmp_path: Path) -> None:
    other = Fake(tmp_path / "other")
    other.image("old", 400)
    for kind in ("bases", "pythons"):
        fake.cache.root.mkdir(exist_ok=True)
        (fake.cache.root / kind).symlink_to(other.cache.root / kind)
    fake.snapshot("old", 400)
    assert fake.collect(max_size=0) == ["snapshots/old"]
    assert (other.cache.root / "bases/old/base").exists()


def test_memory_that_two_snapshots_share_is_counted_once_and_freed_with_the_last(fake: Fake) -> None:
    first = fake.snapshot("a", 4)
    second = fake.folder("snapshots", "b", 3, {"template": "t", "digest": ""})
    os.link(first / "ram", second / "ram")
    fake.aged(second, 3)
    report = garbage.collect(fake.cache, max_size=0, dry_run=True)
    assert [each.name for each in report.removed] == ["a", "b"]
    assert report.removed[0].size < MIB < 2 * MIB <= report.removed[1].size
    assert report.before - report.after == sum(each.size for each in report.removed)


def test_unpacked_layers_are_counted_once_and_go_with_their_images(fake: Fake) -> None:
    """A layer's tree lies beside it, and the root of an image is hard links into the trees of its layers."""
    fake.image("one", 9)
    base, image = fake.cache.root / "bases/one", fake.cache.root / "images/one"
    tree, root = base / "base.tree", image / "root-0123456789abcdef"
    for folder in (tree / "usr", root / "usr"):
        folder.mkdir(parents=True)
    (tree / "usr/lib").write_bytes(os.urandom(4 * MIB))
    os.link(tree / "usr/lib", root / "usr/lib")
    (root / "usr/loop").symlink_to("/")  # what an image has in it may point anywhere
    partial = image / "root-fedcba9876543210.partial"  # an unpacking that was killed
    partial.mkdir()
    os.link(tree / "usr/lib", partial / "lib")
    for folder in (base, image):
        for each in (*folder.rglob("*"), folder):
            os.utime(each, (time.time() - 9 * DAY_S,) * 2, follow_symlinks=False)
    report = garbage.collect(fake.cache, older_than=1.0)
    assert 7 * MIB < report.before < 8 * MIB
    freed = {each.kind: each.size for each in report.removed}
    assert freed["images"] < 2 * MIB < 5 * MIB <= freed["bases"]
    assert report.before - report.after == sum(freed.values())
    assert not base.exists()
    assert not image.exists()


def test_a_dry_run_says_what_would_go_and_changes_nothing(fake: Fake) -> None:
    fake.image("old", 10)
    fake.snapshot("old", 10, "old")
    gone = owner.Process(pid=2**22 + 1, started=1, boot=owner.boot_id())
    staging = fake.cache.folder("staging", "left")
    owner.write(staging, gone)
    before = fake.left
    would = fake.collect(older_than=DAY_S, dry_run=True)
    assert fake.left == before
    assert staging.exists()
    assert fake.collect(older_than=DAY_S) == would
    assert not staging.exists()


def test_looking_is_no_use(fake: Fake) -> None:
    fake.saved("mine", 10, fake.image("old", 400))
    for _ in range(2):
        (fake.cache.root / "saved/mine/manifest.json").read_bytes()
        assert "saved/mine" in fake.collect(older_than=DAY_S, dry_run=True)


def test_volumes_and_sandboxes_are_never_touched(fake: Fake) -> None:
    fake.folder("volumes", "data", 400, None, image=1)
    fake.sandbox("sb-1", fake.image("old", 400), status="hibernated")
    fake.collect(older_than=0.0, max_size=0)
    assert (fake.cache.root / "volumes/data/image").exists()
    assert (fake.cache.root / "sandboxes/sb-1").exists()


def test_the_command_says_what_it_did(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake.snapshot("a" * 32, 10)
    where = ["--cache-dir", str(fake.cache.root)]
    assert main(["gc", "--older-than", "7d", "--dry-run", *where]) == 0
    said = capsys.readouterr().out
    assert "WOULD REMOVE" in said
    assert "would free 2.0 MiB" in said
    assert main(["gc", "--max-size", "1M", "--json", *where]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in document["removed"]] == ["a" * 32]
    assert document["freed"] >= 2 * MIB
    assert main(["gc", *where]) == 0
    assert "give --older-than or --max-size" in capsys.readouterr().out
