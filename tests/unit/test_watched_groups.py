"""Groups whose memory is looked at: whom a look kills, and whom not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from microsim_guest import controlgroup, watchedgroup
from microsim_guest.watchedgroup import Use, WatchedGroup

LITTLE, MUCH = Use(1 << 20, 0, 0), Use(1 << 30, 1 << 30, 0)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as sleeping:
        yield sleeping
        sleeping.kill()


@pytest.mark.parametrize(("by_then", "killed"), [(LITTLE, 0), (MUCH, 1)])
def test_memory_that_is_given_back_by_then_kills_nobody(
    by_then: Use, killed: int, process: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in memory is removed after it was measured, and the next command is what is listed."""
    monkeypatch.setattr(controlgroup, "ROOT", str(tmp_path))
    monkeypatch.setattr(watchedgroup, "_use", lambda _=None: LITTLE)
    monkeypatch.setattr(watchedgroup._Watch, "_run", lambda _: None)
    monkeypatch.setattr(watchedgroup, "_watch", watchedgroup._Watch())
    group = WatchedGroup("command", memory_max=64 << 20)
    (tmp_path / "command/cgroup.procs").write_text(f"{process.pid}\n")
    monkeypatch.setattr(watchedgroup, "_use", lambda _=None: by_then)
    assert group.look(MUCH)
    assert group.events()[controlgroup.OOM_KILL] == killed
    if killed:
        assert process.wait(10) == -9
    else:
        assert process.poll() is None
