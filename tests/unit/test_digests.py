"""Digests depend on content alone, and files are whole or absent."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from microsim_vm import digests


def test_a_files_digest_is_its_sha256(tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "file").write_bytes(data)
    assert digests.of_file(tmp_path / "file") == hashlib.sha256(data).hexdigest()


def test_the_order_of_keys_does_not_matter_and_everything_else_does() -> None:
    base: dict[str, Any] = {"a": 1, "b": ["x", "y"]}
    assert digests.of_data(base) == digests.of_data({"b": ["x", "y"], "a": 1})
    others: list[Any] = [
        {"a": 1, "b": ["y", "x"]}, {"a": "1", "b": ["x", "y"]}, {"a": 1, "b": ["xy"]}, {"a": True, "b": ["x", "y"]},
        {"a": 1.0, "b": ["x", "y"]}, {"A": 1, "b": ["x", "y"]}, {"a": 1, "b": "xy"}, {"a": 1}, [base], None,
    ]  # fmt: skip
    found = {digests.of_data(data) for data in (base, *others)}
    assert len(found) == 1 + len(others)


def test_text_beyond_ascii_is_digested_as_utf_8() -> None:
    assert digests.of_data("ü") == hashlib.sha256('"ü"'.encode()).hexdigest()


def test_a_file_is_replaced_whole_and_nothing_partial_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    digests.write_atomically(path, b"one")
    with path.open("rb") as reader:
        digests.write_atomically(path, b"two")
        assert reader.read() == b"one"  # who had it open keeps the old file, whole
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    digests.write_json(path, {"good": 1})
    with pytest.raises(TypeError):
        digests.write_json(path, {"bad": {1, 2}})
    assert digests.read_json(path) == {"good": 1}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    digests.write_atomically(path, b"old")
    (tmp_path / f".file.{os.getpid()}.{threading.get_ident()}.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        digests.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert stat.S_ISREG(path.stat().st_mode)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b'{"a": 1}{'])
def test_what_is_no_json_reads_as_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    assert digests.read_json(tmp_path / "file") is None


def test_a_missing_file_reads_as_none(tmp_path: Path) -> None:
    assert digests.read_json(tmp_path / "file") is None


def test_json_is_written_in_a_stable_order(tmp_path: Path) -> None:
    digests.write_json(tmp_path / "one", {"b": 1, "a": "ü"})
    digests.write_json(tmp_path / "two", {"a": "ü", "b": 1})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert json.loads((tmp_path / "one").read_text()) == {"a": "ü", "b": 1}
    assert "ü" in (tmp_path / "one").read_text()
