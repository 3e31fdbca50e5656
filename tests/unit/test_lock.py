"""template.lock: reading, writing, and naming what differs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from microsim_vm.errors import LockDriftError, TemplateError
from microsim_vm.templates import lock as locks
from microsim_vm.templates.base import Package
from microsim_vm.templates.lock import Lock
from microsim_vm.templates.wheels import Wheel


@pytest.fixture
def lock() -> Lock:
    return Lock(
        template={"name": "plain", "env": {"TEXT": "3.10", "FLAG": "no"}, "world": {"kwargs": {"start": 1}}},
        files={"world/world.py": "aa:644"},
        guest="bb",
        kernel="linux-image-6.1",
        packages={"libc6": Package("2.36-9", "cc")},
        python="3.11",
        wheels=[Wheel("numpy", "2.4.6", "numpy-2.4.6-cp311.whl", "dd")],
        image={"base.erofs": "ee"},
        digest="ff",
    )


def test_a_lock_is_read_as_it_was_written(tmp_path: Path, lock: Lock) -> None:
    locks.write(tmp_path, lock)
    assert locks.read(tmp_path) == lock
    assert '"TEXT": "3.10"' in (tmp_path / "template.lock").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["template.lock"]


def test_an_unchanged_lock_is_not_written_again(tmp_path: Path, lock: Lock) -> None:
    locks.write(tmp_path, lock)
    os.utime(tmp_path / "template.lock", (0, 0))
    locks.write(tmp_path, lock)
    assert (tmp_path / "template.lock").stat().st_mtime == 0


def test_no_lock_is_none(tmp_path: Path) -> None:
    assert locks.read(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{}", '{"digest": 1}', "<<<<<<< HEAD\n{}", "\xff", '{"surprise": true}'])
def test_what_is_no_lock_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "template.lock").write_text(text, encoding="latin-1")
    with pytest.raises(TemplateError, match=r"template\.lock:1: not a lock file") as caught:
        locks.read(tmp_path)
    assert "delete it" in caught.value.hint


def test_what_is_no_lock_is_replaced_by_a_bake(tmp_path: Path, lock: Lock) -> None:
    (tmp_path / "template.lock").write_text("<<<<<<< HEAD")
    locks.write(tmp_path, lock)
    assert locks.read(tmp_path) == lock


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"template": {"name": "plain", "env": {"TEXT": "3.1", "FLAG": "no"}, "world": {"kwargs": {"start": 1}}}},
         "template env.TEXT changed: 3.10 -> 3.1"),
        ({"template": {"name": "plain", "env": {"TEXT": "3.10"}, "world": {"kwargs": {"start": 1}}}},
         "template env.FLAG was removed"),
        ({"files": {"world/world.py": "ab:644"}}, "file world/world.py changed: aa:644 -> ab:644"),
        ({"files": {"world/world.py": "aa:644", "world/b.py": "x"}}, "file world/b.py was added"),
        ({"files": {}}, "file world/world.py was removed"),
        ({"guest": "bc"}, "the guest package: this pytest-microsim is not the version that wrote the lock"),
        ({"packages": {"libc6": Package("2.36-10", "cd")}},
         "Debian package libc6 changed: 2.36-9 (cc) -> 2.36-10 (cd)"),
        ({"wheels": [Wheel("numpy", "2.4.7", "numpy-2.4.7-cp311.whl", "de")]},
         "wheel numpy changed: 2.4.6 (dd) -> 2.4.7 (de)"),
        ({"image": {"base.erofs": "ef"}}, "result image.base.erofs changed: ee -> ef"),
    ],
)  # fmt: skip
def test_a_difference_is_named(lock: Lock, change: dict[str, Any], named: str) -> None:
    with pytest.raises(LockDriftError) as caught:
        locks.refuse_drift("plain", lock, msgspec.structs.replace(lock, **change))
    assert caught.value.what == f"template plain no longer matches its template.lock: {named}"


@pytest.mark.parametrize(
    "change",
    [
        {"packages": {"libc6": Package("2.36-9", "another archive")}},
        {"wheels": [Wheel("numpy", "2.4.6", "numpy-2.4.6-cp311.whl", "another archive")]},
        {"kernel": "linux-image-6.2"},
        {"python": "3.13"},
        {"digest": "another digest"},
    ],
)
def test_no_difference_passes_unnoticed(lock: Lock, change: dict[str, Any]) -> None:
    with pytest.raises(LockDriftError):
        locks.refuse_drift("plain", lock, msgspec.structs.replace(lock, **change))


def test_equal_locks_pass(lock: Lock) -> None:
    locks.refuse_drift("plain", lock, lock)


def test_many_differences_are_counted(lock: Lock) -> None:
    files = {f"world/{index:02}.py": "aa:644" for index in range(25)}
    with pytest.raises(LockDriftError) as caught:
        locks.refuse_drift("plain", lock, msgspec.structs.replace(lock, files=files))
    assert len(caught.value.details.splitlines()) == 11
    assert caught.value.details.endswith("... and 16 more")
