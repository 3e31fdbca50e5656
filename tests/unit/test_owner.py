"""Owners are told apart from later processes with the same number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from microsim_vm import owner
from microsim_vm.owner import Process


def test_this_process_is_alive() -> None:
    current = Process.current()
    assert current.pid == os.getpid()
    assert current.alive()


def test_a_process_that_ended_is_not_alive_even_before_it_is_buried() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    process = Process.of(child.pid)
    assert process.alive()
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}").exists()
    assert not process.alive()
    child.wait()
    assert not process.alive()
    with pytest.raises(ProcessLookupError):
        Process.of(child.pid)


@pytest.mark.parametrize("change", [{"started": 1}, {"boot": "another boot"}])
def test_a_stranger_with_the_same_number_is_not_the_owner(change: dict[str, int | str]) -> None:
    assert not msgspec.structs.replace(Process.current(), **change).alive()


def test_a_name_with_spaces_and_brackets_does_not_shift_the_fields(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([program, "60"])
    try:
        first = owner.start_time(child.pid)
        assert first is not None
        assert abs(first - (owner.start_time(os.getpid()) or 0)) < 10**7
        assert Process.of(child.pid).alive()
    finally:
        child.kill()
        child.wait()


def test_a_folder_remembers_its_owner(tmp_path: Path) -> None:
    owner.write(tmp_path, Process.current())
    assert owner.read(tmp_path) == Process.current()


@pytest.mark.parametrize("text", [None, "", '{"pid": 1', '{"pid": "one"}'])
def test_a_missing_or_half_written_record_is_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "owner.json").write_text(text)
    assert owner.read(tmp_path) is None
