"""Exported snapshots: what is whole comes back as it was; all else is refused with the reason, and leaves nothing."""

from __future__ import annotations

import hashlib
import os
import tarfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from microsim_vm import archive, owner
from microsim_vm.archive import Manifest
from microsim_vm.cache import Cache
from microsim_vm.cli.main import main
from microsim_vm.engines.qemu import Qemu
from microsim_vm.errors import ArchiveError, SnapshotError, SnapshotMismatchError
from microsim_vm.sandbox import saved
from microsim_vm.sandbox.origin import Origin
from microsim_vm.sandbox.saved import SavedSnapshot
from microsim_vm.templates.spec import ControllerLimits, MachineShape

BASE, PYTHON, IMAGE = "a" * 32, "b" * 32, "c" * 32
FILES = {f"bases/{BASE}/vmlinuz": b"kernel", f"bases/{BASE}/initramfs.cpio": b"initramfs",
         f"bases/{BASE}/base.erofs": b"base" * 1000, f"pythons/{PYTHON}/python.erofs": b"python",
         f"images/{IMAGE}/world.erofs": b"world"}  # fmt: skip
Edit = Callable[[dict[str, Any]], None]


def saved_in(cache: Cache, **engine: str) -> SavedSnapshot:
    """Make a saved snapshot and an image: files like those of a guest, of which none is one."""
    for name, data in FILES.items():
        path = cache.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    names = list(FILES)
    origin = Origin(
        "cart", "d" * 64, {**Qemu("tcg").identity(), **engine}, MachineShape(memory_mib=128), names[0], names[1],
        {"base": names[2], "python": names[3], "world": names[4]}, ControllerLimits(),
    )  # fmt: skip
    with cache.staging("saved") as staging:
        with open(staging / "ram", "wb") as ram:
            ram.truncate(128 << 20)
            ram.seek(5 << 20)
            ram.write(os.urandom(200_000))
        (staging / "state").write_bytes(b"devices" * 100)
        snapshot = SavedSnapshot("one", origin, "sb-1", 1.5, owner.boot_id(), {}, {"role": "test"})
        snapshot = saved.keep(cache, staging, snapshot)
        staging.mkdir()
    return snapshot


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    cache = Cache(tmp_path_factory.mktemp("source"))
    saved_in(cache)
    return cache


@pytest.fixture(scope="module")
def exported(source: Cache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("exported") / "one.microsim"
    archive.export(source, "one", target)
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    return target


@pytest.fixture
def empty(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def left_in(cache: Cache) -> list[str]:
    """Return all files of a cache but its locks."""
    found = (str(path.relative_to(cache.root)) for path in cache.root.rglob("*") if not path.is_dir())
    return sorted(name for name in found if not name.startswith("locks/"))


def refused(cache: Cache, file: Path) -> str:
    with pytest.raises(ArchiveError) as error:
        archive.restore(cache, file)
    assert left_in(cache) == []
    assert str(file) in error.value.what
    return error.value.what


def made_by_hand(folder: Path, manifest: bytes, *members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE) -> Path:
    """Write an archive of these members that is whole as far as compression and tar go."""
    frames = [bytearray(), bytearray()]
    for name, content in (("manifest.json", manifest), *members):
        info = tarfile.TarInfo(name)
        info.size = len(content)
        info.type = tarfile.REGTYPE if name == "manifest.json" else kind
        frames[name != "manifest.json"] += info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)
    frames[1] += bytes(1024)
    path = folder / "by-hand.microsim"
    path.write_bytes(b"".join(zstandard.ZstdCompressor(write_checksum=True).compress(bytes(data)) for data in frames))
    return path


def manifest_of(source: Cache, edit: Edit) -> bytes:
    """Return the manifest of the good archive, changed."""
    snapshot = saved.get(source, "one")
    contents = {f"guest/{name}": (record.size, record.sha256) for name, record in sorted(snapshot.files.items())}
    contents |= {f"image/{name}": (len(data), hashlib.sha256(data).hexdigest()) for name, data in FILES.items()}
    members = [{"name": name, "size": size, "sha256": sha256} for name, (size, sha256) in contents.items()]
    document = {"format": archive.FORMAT, "snapshot": msgspec.to_builtins(snapshot), "members": members}
    edit(document)
    return msgspec.json.encode(document)


def test_what_is_exported_comes_back_as_it_was(source: Cache, exported: Path, empty: Cache) -> None:
    before = saved.get(source, "one")
    after = archive.restore(empty, exported)
    assert saved.get(empty, "one") == after
    assert [(name, each.size, each.sha256) for name, each in after.files.items()] == [
        (name, each.size, each.sha256) for name, each in before.files.items()
    ]
    assert (after.metadata, after.created_at, after.sandbox) == (before.metadata, before.created_at, before.sandbox)
    boot = after.origin.boot(empty)
    assert [path.read_bytes() for path in (boot.kernel, boot.initramfs, *boot.layers.values())] == list(FILES.values())
    assert all(name.startswith("imported/") for name in after.origin.files)
    ram = saved.folder_of(empty, "one") / "ram"
    assert ram.stat().st_blocks * 512 < 1 << 20, "holes are holes again"


def test_image_files_that_are_there_are_kept(exported: Path, empty: Cache) -> None:
    for name, data in FILES.items():
        (empty.root / name).parent.mkdir(parents=True, exist_ok=True)
        (empty.root / name).write_bytes(data)
    assert archive.restore(empty, exported).origin.files == list(FILES)
    assert not (empty.root / "imported").exists()


def test_an_image_file_that_differs_is_neither_used_nor_replaced(exported: Path, empty: Cache) -> None:
    other = empty.root / f"images/{IMAGE}/world.erofs"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"WORLD")
    snapshot = archive.restore(empty, exported)
    assert (empty.root / snapshot.origin.layers["world"]).read_bytes() == b"world"
    assert other.read_bytes() == b"WORLD"


def test_a_second_import_needs_another_name_and_shares_the_image(exported: Path, empty: Cache) -> None:
    first = archive.restore(empty, exported)
    with pytest.raises(SnapshotError, match="there is a snapshot one already"):
        archive.restore(empty, exported)
    second = archive.restore(empty, exported, name="two")
    assert second.origin == first.origin
    assert [snapshot.id for snapshot in saved.listed(empty)] == ["one", "two"]


def at_once(attempt: Callable[[], object]) -> list[str]:
    """Return what four attempts at the same time come to: "" or the error."""
    begin = threading.Barrier(4)

    def outcome() -> str:
        begin.wait()
        try:
            attempt()
        except SnapshotError as error:
            return error.what
        return ""

    with ThreadPoolExecutor(4) as pool:
        return sorted(each.result() for each in [pool.submit(outcome) for _ in range(4)])


def test_imports_at_once_leave_one_whole_snapshot(exported: Path, empty: Cache) -> None:
    assert at_once(lambda: archive.restore(empty, exported)) == ["", *["there is a snapshot one already"] * 3]
    boot = saved.get(empty, "one").origin.boot(empty)
    assert [path.read_bytes() for path in (boot.kernel, boot.initramfs, *boot.layers.values())] == list(FILES.values())


def test_an_import_that_fails_keeps_what_was_there(exported: Path, empty: Cache) -> None:
    first = archive.restore(empty, exported)
    damaged = empty.root / first.origin.layers["world"]
    damaged.chmod(0o600)
    damaged.write_bytes(b"WORLD")
    blocked = saved.folder_of(empty, "two")
    blocked.symlink_to("nowhere")  # no snapshot, so that only the very last step fails
    with pytest.raises(OSError, match="two"):
        archive.restore(empty, exported, name="two")
    blocked.unlink()
    assert damaged.read_bytes() == b"world"
    assert archive.restore(empty, exported, name="two").origin == first.origin


@pytest.mark.parametrize("name", ["../images/x", "a/b", ".hidden", "..", "", "a b", "x" * 101, "caf\u00e9"])
def test_a_name_that_is_none_is_refused_before_anything_is_unpacked(name: str, exported: Path, empty: Cache) -> None:
    with pytest.raises(SnapshotError, match="is no snapshot's id"):
        archive.restore(empty, exported, name=name)
    with pytest.raises(SnapshotError, match="is no snapshot's id"):
        saved.check_name(empty, name)
    with pytest.raises(SnapshotError, match="there is no saved snapshot"):
        saved.get(empty, name)
    with pytest.raises(SnapshotError, match="there is no saved snapshot"):
        saved.delete(empty, name)
    assert left_in(empty) == []


def test_snapshots_kept_at_once_under_one_name_are_one(empty: Cache) -> None:
    assert at_once(lambda: saved_in(empty)) == ["", *["there is a snapshot one already"] * 3]
    saved.get(empty, "one")


def test_a_snapshot_that_is_used_says_so(empty: Cache) -> None:
    saved_in(empty)
    os.utime(saved.folder_of(empty, "one"), (1.0, 1.0))
    saved.get(empty, "one")
    assert saved.folder_of(empty, "one").stat().st_mtime > 1.0


def test_what_was_imported_can_be_exported_again(exported: Path, empty: Cache, tmp_path: Path) -> None:
    archive.restore(empty, exported)
    archive.export(empty, "one", tmp_path / "again.microsim")
    third = Cache(tmp_path / "third")
    assert archive.restore(third, tmp_path / "again.microsim").files.keys() == {"ram", "state"}


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.9999])
def test_a_file_that_was_cut_off_is_refused(share: float, exported: Path, empty: Cache, tmp_path: Path) -> None:
    cut = tmp_path / "cut.microsim"
    data = exported.read_bytes()
    cut.write_bytes(data[: int(len(data) * share)])
    refused(empty, cut)


def test_a_file_without_its_last_byte_is_refused(exported: Path, empty: Cache, tmp_path: Path) -> None:
    cut = tmp_path / "cut.microsim"
    cut.write_bytes(exported.read_bytes()[:-1])
    assert "it ends too early" in refused(empty, cut)


@pytest.mark.parametrize("share", [0.0, 0.0003, 0.01, 0.5, 0.99, 0.99999])
def test_a_file_with_one_flipped_bit_is_refused(share: float, exported: Path, empty: Cache, tmp_path: Path) -> None:
    data = bytearray(exported.read_bytes())
    data[int(len(data) * share)] ^= 0x10
    flipped = tmp_path / "flipped.microsim"
    flipped.write_bytes(data)
    refused(empty, flipped)


@pytest.mark.parametrize("more", [b"\0", b"more", None], ids=["a zero", "text", "another archive"])
def test_a_file_that_goes_on_is_refused(more: bytes | None, exported: Path, empty: Cache, tmp_path: Path) -> None:
    data = exported.read_bytes()
    longer = tmp_path / "longer.microsim"
    longer.write_bytes(data + (data if more is None else more))
    assert "something was added" in refused(empty, longer)


def test_what_is_no_archive_is_refused(empty: Cache, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("nothing of the kind\n" * 100)
    refused(empty, text)


def test_another_engine_is_refused_before_anything_is_unpacked(tmp_path: Path, empty: Cache) -> None:
    there = Cache(tmp_path / "there")
    saved_in(there, cpu="another processor", version="1.0")
    target = tmp_path / "there.microsim"
    archive.export(there, "one", target)
    # Only the manifest's frame is left of the file: who unpacked first would complain about that.
    frame = zstandard.ZstdDecompressor().decompressobj()
    frame.decompress(target.read_bytes())
    target.write_bytes(target.read_bytes()[: -len(frame.unused_data)])
    with pytest.raises(SnapshotMismatchError) as error:
        archive.restore(empty, target)
    assert "another cpu, version" in error.value.what
    assert left_in(empty) == []


def _places(old: str, new: str) -> Edit:
    """Return an edit that puts an image's file elsewhere, consistently."""

    def edit(document: dict[str, Any]) -> None:
        text = msgspec.json.encode(document).replace(old.encode(), new.encode())
        document.update(msgspec.json.decode(text))

    return edit


def _set(*path: Any, to: Any) -> Edit:
    def edit(document: dict[str, Any]) -> None:
        *folders, last = path
        for key in folders:
            document = document[key]
        document[last] = to

    return edit


HOSTILE: dict[str, tuple[Edit, str]] = {
    "an absolute place": (_places(f"images/{IMAGE}/world.erofs", "/etc/cron.d/evil"), "lies where no image has one"),
    "a place above": (_places(f"images/{IMAGE}/", f"images/{IMAGE}/../../"), "lies where no image has one"),
    "a place among the snapshots": (_places(f"images/{IMAGE}", f"snapshots/{IMAGE}"), "lies where no image has one"),
    "another file of the guest": (_places('"state"', '"../../x"'), "a saved guest has other files"),
    "a layer that is an option": (_places('"world":"images', '"world,file=x":"images'), "a layer's name is none"),
    "an id that is a path": (_set("snapshot", "id", to="../evil"), "is no snapshot's id"),
    "an id that is hidden": (_set("snapshot", "id", to=".evil"), "is no snapshot's id"),
    "an empty id": (_set("snapshot", "id", to=""), "is no snapshot's id"),
    "one member more": (lambda document: document["members"].append(document["members"][0]), "other files than"),
    "one member less": (lambda document: document["members"].pop(), "other files than"),
    "a memory of another size": (_set("snapshot", "files", "ram", "size", to=1), "do not fit a guest of 128 MiB"),
    "a member too large": (_set("members", 0, "size", to=1 << 50), "do not fit a guest of 128 MiB"),
    "a negative size": (_set("members", 2, "size", to=-1), "a size or hash is none"),
    "a hash that is a path": (_set("members", 2, "sha256", to="../../x"), "a size or hash is none"),
    "another format": (_set("format", to="microsim snapshot 9"), "its format is"),
    "an unknown key": (_set("extra", to=1), "its manifest cannot be read"),
    "an absurd machine": (_set("snapshot", "origin", "machine", "vcpus", to=0), "its manifest cannot be read"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_manifest_that_asks_for_what_it_must_not_is_refused(
    case: str, source: Cache, empty: Cache, tmp_path: Path
) -> None:
    edit, reason = HOSTILE[case]
    assert reason in refused(empty, made_by_hand(tmp_path, manifest_of(source, edit)))


GVISOR = {**Qemu("tcg").identity(), "engine": "gvisor", "platform": "ptrace"}
CHECKPOINT = {"size": 5, "mtime_ns": 0, "sha256": "0" * 64}
FOREIGN = {
    "no checkpoint": ({"ram": CHECKPOINT}, "a saved guest has other files"),
    "a memory file": ({"checkpoint.img": CHECKPOINT, "ram": CHECKPOINT}, "a saved guest has other files"),
    "too large a checkpoint": ({"checkpoint.img": {**CHECKPOINT, "size": 400 << 20}}, "do not fit a guest of 128 MiB"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_gvisor_would_not_have_saved_is_refused(case: str, source: Cache, empty: Cache, tmp_path: Path) -> None:
    files, reason = FOREIGN[case]

    def edit(document: dict[str, Any]) -> None:
        document["snapshot"]["origin"]["engine"] = GVISOR
        document["snapshot"]["files"] = files
        image = [each for each in document["members"] if each["name"].startswith("image/")]
        guest = [{"name": f"guest/{name}", "size": each["size"], "sha256": each["sha256"]}
                 for name, each in sorted(files.items())]  # fmt: skip
        document["members"] = guest + image

    assert reason in refused(empty, made_by_hand(tmp_path, manifest_of(source, edit)))


def test_a_manifest_without_end_is_refused(empty: Cache, tmp_path: Path) -> None:
    assert "where manifest.json should be" in refused(empty, made_by_hand(tmp_path, b" " * (2 << 20)))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.GNUTYPE_LONGNAME])
def test_only_regular_files_are_unpacked(kind: bytes, source: Cache, empty: Cache, tmp_path: Path) -> None:
    file = made_by_hand(tmp_path, manifest_of(source, lambda _: None), ("guest/ram", b"x"), kind=kind)
    assert "where guest/ram should be" in refused(empty, file)


@pytest.mark.parametrize("name", ["guest/state", "/etc/passwd", "../guest/ram"])
def test_only_the_member_whose_turn_it_is_is_unpacked(name: str, source: Cache, empty: Cache, tmp_path: Path) -> None:
    file = made_by_hand(tmp_path, manifest_of(source, lambda _: None), (name, b"x"))
    assert "where guest/ram should be" in refused(empty, file)


def test_a_snapshot_without_its_image_is_not_exported(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    saved_in(cache)
    (cache.root / f"images/{IMAGE}/world.erofs").unlink()
    with pytest.raises(SnapshotError, match="the image of cart is gone"):
        archive.export(cache, "one", tmp_path / "one.microsim")
    assert not list(tmp_path.glob("*.microsim*"))


def test_a_damaged_snapshot_is_not_exported(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    saved_in(cache)
    (saved.folder_of(cache, "one") / "state").write_bytes(b"other")
    with pytest.raises(SnapshotError, match="is damaged"):
        archive.export(cache, "one", tmp_path / "one.microsim")


def test_the_command_imports_and_exports(source: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "one.microsim")
    assert main(["export", "one", file, "--cache-dir", str(source.root)]) == 0
    assert main(["import", file, "--cache-dir", str(tmp_path / "cache"), "--name", "mine"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "mine"
    Path(file).write_bytes(Path(file).read_bytes()[:-10])
    assert main(["import", file, "--cache-dir", str(tmp_path / "cache"), "--name", "cut"]) == 1
    assert "it ends too early" in capsys.readouterr().err


def test_export_speaks_of_the_file_that_was_named(
    source: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / ("x" * 250)  # the file beside it, which becomes this one, has a longer name
    assert main(["export", "one", str(file), "--cache-dir", str(source.root)]) == 1
    said = capsys.readouterr().err
    assert f"{file} cannot be written: File name too long" in said
    assert ".partial" not in said


def test_the_manifest_says_what_is_in_the_archive(source: Cache, tmp_path: Path) -> None:
    manifest = archive.export(source, "one", tmp_path / "one.microsim")
    assert isinstance(manifest, Manifest)
    with open(tmp_path / "one.microsim", "rb") as file:
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            names = [member.name for member in tar]
    assert names == ["manifest.json", *(member.name for member in manifest.members)]
