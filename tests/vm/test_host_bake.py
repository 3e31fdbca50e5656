"""Baking: what changes an image's digest and what does not, what the lock says, what is rebuilt."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hosting import fresh_cache, plain
from microsim_vm import digests
from microsim_vm.cache import Cache
from microsim_vm.errors import BakeError, LockDriftError
from microsim_vm.templates import base as base_layer
from microsim_vm.templates import load_template
from microsim_vm.templates import wheels as python_layer
from microsim_vm.templates.bake import Image, bake
from microsim_vm.templates.spec import Template

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return fresh_cache(tmp_path / "cache")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Image, Cache]:
    """The image of the template as it is, and the cache that it is in."""
    folder = tmp_path_factory.mktemp("bake")
    cache = fresh_cache(folder / "cache")
    return baked(plain(folder), cache)[0], cache


def baked(template: Template, cache: Cache, *, locked: bool = False) -> tuple[Image, list[str]]:
    lines: list[str] = []
    return bake(template, cache, locked=locked, progress=lines.append), lines


def changed(folder: Path, what: str) -> Template:
    """Change one input of the template ``plain`` in a folder."""
    plain(folder)
    file = folder / "plain"
    match what:
        case "world file":
            (file / "world.py").write_text((file / "world.py").read_text() + "\n")
        case "file":
            (file / "settings.txt").write_text("Some text\n")
        case "mode of a file":
            (file / "settings.txt").chmod(0o755)
        case "new file":
            (file / "more.txt").write_text("")
        case "kwargs":
            return plain(folder, ("start: 1", "start: 2"))
        case "env":
            return plain(folder, ('"hello"', '"Hello"'))
        case "requirement":
            return plain(folder, ("env:", 'python: {requirements: ["cloudpickle==3.1.3"]}\nenv:'))
    return plain(folder)


def test_the_digest_is_the_same_from_any_folder_and_any_copy(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = baked(plain(tmp_path), cache)
    elsewhere = tmp_path / "Gerät mit Leerzeichen"
    plain(elsewhere)
    monkeypatch.chdir(elsewhere / "plain")
    old_umask = os.umask(0o077)
    try:
        copy, lines = baked(load_template(Path("template.yaml")), fresh_cache(tmp_path / "other cache"))
    finally:
        os.umask(old_umask)
    assert any("packing the world layer" in line for line in lines)
    assert copy.digest == first.digest
    assert (tmp_path / "plain/template.lock").read_bytes() == (elsewhere / "plain/template.lock").read_bytes()
    again, lines = baked(load_template(Path("../plain/template.yaml")), cache)
    assert again.digest == first.digest


@pytest.mark.parametrize("what", ["world file", "file", "mode of a file", "new file", "kwargs", "env"])
def test_a_changed_input_gives_a_new_digest_and_rebuilds_the_world_layer_only(
    tmp_path: Path, first: tuple[Image, Cache], what: str
) -> None:
    before, cache = first
    after, lines = baked(changed(tmp_path, what), cache)
    assert after.digest != before.digest
    assert [line.split(":")[0] for line in lines] == [
        "packing the world layer of plain", "image of plain", f"wrote {tmp_path / 'plain/template.lock'}",
    ]  # fmt: skip
    assert {name: after.layers[name] for name in ("base", "python")} == {
        name: before.layers[name] for name in ("base", "python")
    }
    assert after.layers["world"] != before.layers["world"]


def test_a_new_requirement_rebuilds_the_python_layer_too(tmp_path: Path, first: tuple[Image, Cache]) -> None:
    before, cache = first
    after, lines = baked(changed(tmp_path, "requirement"), cache)
    assert after.digest != before.digest
    assert after.layers["base"] == before.layers["base"]
    assert after.layers["python"] != before.layers["python"]
    assert not any("base system" in line for line in lines)


def test_an_unchanged_template_builds_nothing(tmp_path: Path, cache: Cache) -> None:
    baked(plain(tmp_path), cache)
    baked(plain(tmp_path), cache)  # the lock is there now, and its pins are an input
    _, lines = baked(plain(tmp_path), cache)
    assert lines == []


def test_the_lock_names_every_ingredient_and_nothing_of_this_machine(tmp_path: Path, cache: Cache) -> None:
    image, _ = baked(changed(tmp_path, "requirement"), cache)
    text = (tmp_path / "plain/template.lock").read_text()
    lock = json.loads(text)
    assert lock["digest"] == image.digest
    assert lock["image"] == {path.name: digests.of_file(path) for path in
                             (*image.layers.values(), image.kernel, image.initramfs)}  # fmt: skip
    kernel = lock["packages"][lock["kernel"]]
    assert re.fullmatch(r"linux-image-.*-cloud-amd64", lock["kernel"])
    assert "linux-image-cloud-amd64" in lock["packages"]
    for package in (kernel, lock["packages"]["python3"], lock["packages"]["libc6"], lock["packages"]["busybox-static"]):
        assert re.fullmatch(r"[0-9a-f]{64}", package["sha256"])
        assert package["version"]
    (wheel,) = lock["wheels"]
    assert (wheel["name"], wheel["version"]) == ("cloudpickle", "3.1.3")
    assert re.fullmatch(r"[0-9a-f]{64}", wheel["sha256"])
    assert set(lock["files"]) == {"files/etc/plain.txt", "world/settings.txt", "world/world.py"}
    assert str(tmp_path) not in text
    assert str(Path.home()) not in text
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
    assert "://" not in text
    for mirror in base_layer.mirrors("bookworm"):
        assert str(urlsplit(mirror.split()[1]).hostname) not in text


def test_locked_without_a_lock_is_refused(tmp_path: Path, first: tuple[Image, Cache]) -> None:
    _, cache = first
    with pytest.raises(LockDriftError, match=r"no template\.lock") as caught:
        baked(plain(tmp_path), cache, locked=True)
    assert str(tmp_path / "plain/template.lock") in caught.value.hint


def test_locked_with_all_inputs_unchanged_bakes(tmp_path: Path, cache: Cache) -> None:
    first, _ = baked(plain(tmp_path), cache)
    locked, _ = baked(plain(tmp_path), fresh_cache(tmp_path / "another machine's"), locked=True)
    assert locked.digest == first.digest


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("world file", "file world/world.py changed"),
        ("file", "file files/etc/plain.txt changed"),
        ("mode of a file", "file files/etc/plain.txt changed"),
        ("new file", "file world/more.txt was added"),
        ("kwargs", "template world.kwargs.start changed: 1 -> 2"),
        ("env", "template env.GREETING changed: hello -> Hello"),
        ("requirement", 'template python.requirements changed: [] -> ["cloudpickle==3.1.3"]'),
    ],
)
def test_locked_refuses_a_drift_and_names_the_input(
    tmp_path: Path, first: tuple[Image, Cache], what: str, named: str
) -> None:
    _, cache = first
    baked(plain(tmp_path), cache)
    lock = tmp_path / "plain/template.lock"
    before = lock.read_bytes()
    with pytest.raises(LockDriftError) as caught:
        baked(changed(tmp_path, what), cache, locked=True)
    assert named in str(caught.value)
    assert lock.read_bytes() == before


def test_locked_refuses_another_version_of_a_debian_package(tmp_path: Path, first: tuple[Image, Cache]) -> None:
    _, cache = first
    image, _ = baked(plain(tmp_path), cache)
    lock = tmp_path / "plain/template.lock"
    data = json.loads(lock.read_text())
    data["packages"]["libc6"]["version"] = "2.36-9+deb12u1"
    lock.write_text(json.dumps(data))
    with pytest.raises(LockDriftError) as caught:
        baked(plain(tmp_path), cache, locked=True)
    real = image.lock.packages["libc6"]
    named = f"Debian package libc6 changed: 2.36-9+deb12u1 ({real.sha256[:12]}) -> {real.version} ({real.sha256[:12]})"
    assert named in caught.value.what


def test_a_lock_that_claims_another_wheel_is_refused_by_name(tmp_path: Path, cache: Cache) -> None:
    baked(changed(tmp_path, "requirement"), cache)
    lock = tmp_path / "plain/template.lock"
    data = json.loads(lock.read_text())
    data["wheels"][0]["sha256"] = "0" * 64
    lock.write_text(json.dumps(data))
    with pytest.raises(BakeError) as caught:
        baked(plain(tmp_path), fresh_cache(tmp_path / "empty", "bases"), locked=True)
    assert "cloudpickle" in str(caught.value)
    assert "template.lock" in str(caught.value)


def test_a_half_written_image_is_never_used(tmp_path: Path, cache: Cache) -> None:
    baked(plain(tmp_path), cache)
    image, _ = baked(plain(tmp_path), cache)
    folder = image.layers["world"].parent
    (folder / "manifest.json").unlink()
    folder.joinpath("world.erofs").chmod(0o600)
    folder.joinpath("world.erofs").write_bytes(b"half")
    again, lines = baked(plain(tmp_path), cache)
    assert "packing the world layer of plain" in lines
    assert again.digest == image.digest == json.loads((folder / "manifest.json").read_text())["lock"]["digest"]
    assert digests.of_file(again.layers["world"]) == image.lock.image["world.erofs"]


@pytest.mark.timeout(200)
def test_the_python_layer_is_reproducible(tmp_path: Path, cache: Cache) -> None:
    image, _ = baked(changed(tmp_path, "requirement"), cache)
    results = []
    for name in ("one", "zwei und ü"):
        scratch = fresh_cache(tmp_path / name, "wheels")
        folder = python_layer.ensure(list(image.lock.wheels), image.lock.python, scratch, print)
        results.append(digests.of_file(folder / "python.erofs"))
    assert results == [image.lock.image["python.erofs"]] * 2


@pytest.mark.timeout(400)
def test_the_base_layer_is_reproducible_also_in_a_deep_folder(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, _ = baked(plain(tmp_path), cache)
    deep = tmp_path / ("tïef und 'brëit' " * 7)
    (deep / "tmp").mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(deep / "tmp"))
    old_umask = os.umask(0o077)
    try:
        base, folder = base_layer.ensure("bookworm", ["python3"], "linux-image-cloud-amd64", Cache(deep), print)
    finally:
        os.umask(old_umask)
    assert base.sha256 == {name: image.lock.image[name] for name in base.sha256}
    assert {name: digests.of_file(folder / name) for name in base.sha256} == base.sha256
    assert base.packages == image.lock.packages
    assert list((deep / "tmp").iterdir()) == []
    shutil.rmtree(deep)
