"""Pages of a guest's memory on disk: what is not as it was written never reaches another process's memory."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from microsim_vm.engines import memory
from microsim_vm.engines.memory import COUNT, PAGE
from microsim_vm.errors import SnapshotError

RAM_PAGES = 16
CHILD = """
import ctypes, mmap, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
if sys.argv[2:]:
    mapped[3 * 4096] = 7
    mapped[4 * 4096 + 5] = 8
    mapped[9 * 4096] = 9
print("mapped", flush=True)
sys.stdin.readline()
print(mapped[3 * 4096], mapped[4 * 4096 + 5], mapped[9 * 4096], mapped[0])
"""


def write(folder: Path, runs: list[tuple[int, int]], data: bytes, count: int | None = None) -> None:
    (folder / "ram").write_bytes(bytes(RAM_PAGES * PAGE))
    index = array("Q", [number for run in runs for number in run]).tobytes()
    (folder / "pages").write_bytes(COUNT.pack(len(runs) if count is None else count) + index + data)


def child(folder: Path, *words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder / "ram"), *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "mapped\n"
    return process


def test_what_a_process_has_written_is_found_and_put_into_another_one(tmp_path: Path) -> None:
    (tmp_path / "ram").write_bytes(b"\x01" * RAM_PAGES * PAGE)
    with child(tmp_path, "writes") as first:
        memory.copy_out(first.pid, tmp_path)
        first.communicate("\n")
    assert (tmp_path / "pages").stat().st_size == COUNT.size + 2 * 16 + 3 * PAGE  # pages 3 and 4 are one run
    with child(tmp_path) as second:
        memory.copy_in(second.pid, tmp_path)
        assert second.communicate("\n")[0] == "7 8 9 1\n"
    memory.flatten(tmp_path)
    merged = (tmp_path / "ram").read_bytes()
    assert (merged[3 * PAGE], merged[4 * PAGE + 5], merged[9 * PAGE], merged[0]) == (7, 8, 9, 1)
    assert not (tmp_path / "pages").exists()


@pytest.mark.parametrize(
    ("runs", "data", "count"),
    [
        ([((RAM_PAGES - 1) * PAGE, 2 * PAGE)], bytes(2 * PAGE), None),
        ([(RAM_PAGES * PAGE, PAGE)], bytes(PAGE), None),
        ([(1 << 63, PAGE)], bytes(PAGE), None),
        ([(1, PAGE)], bytes(PAGE), None),
        ([(0, PAGE - 1)], bytes(PAGE - 1), None),
        ([(0, 0)], b"", None),
        ([(PAGE, PAGE), (0, PAGE)], bytes(2 * PAGE), None),
        ([(0, PAGE), (0, PAGE)], bytes(2 * PAGE), None),
        ([(0, PAGE)], bytes(PAGE - 1), None),
        ([(0, PAGE)], bytes(PAGE + 1), None),
        ([(0, PAGE)], bytes(PAGE), 2),
        ([(0, PAGE)], bytes(PAGE), 1 << 62),
        ([], b"", 3),
    ],
    ids=["past the end", "outside", "far outside", "odd offset", "odd size", "empty", "backwards", "twice",
         "cut off", "too long", "fewer runs", "many runs", "no runs"],
)  # fmt: skip
def test_pages_made_by_hand_are_refused_everywhere(
    tmp_path: Path, runs: list[tuple[int, int]], data: bytes, count: int | None
) -> None:
    write(tmp_path, runs, data, count)
    with pytest.raises(SnapshotError, match="does not fit"):
        memory.check(tmp_path)
    with pytest.raises(SnapshotError, match="does not fit"):
        memory.flatten(tmp_path)
    with child(tmp_path) as process:
        with pytest.raises(SnapshotError, match="does not fit"):
            memory.copy_in(process.pid, tmp_path)
        assert process.communicate("\n")[0] == "0 0 0 0\n"
    assert (tmp_path / "ram").read_bytes() == bytes(RAM_PAGES * PAGE)


def test_a_page_file_that_is_too_short_to_be_one(tmp_path: Path) -> None:
    write(tmp_path, [], b"")
    (tmp_path / "pages").write_bytes(b"\x01")
    with pytest.raises(SnapshotError, match="does not fit"):
        memory.check(tmp_path)
    (tmp_path / "pages").unlink()
    memory.check(tmp_path)


def test_a_memory_file_whose_name_is_gone_gets_another_one(tmp_path: Path) -> None:
    (tmp_path / "ram").write_bytes(b"ram")
    os.link(tmp_path / "ram", tmp_path / "kept")
    fd = os.open(tmp_path / "ram", os.O_RDONLY)
    try:
        (tmp_path / "ram").unlink()
        memory.link(fd, tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == b"ram"
        for name in ("kept", "again"):
            (tmp_path / name).unlink()
        with pytest.raises(SnapshotError, match="is gone"):
            memory.link(fd, tmp_path / "late")
    finally:
        os.close(fd)
