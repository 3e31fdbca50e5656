"""The cache: one builder at a time, scratch folders that go, and space that is asked for first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from microsim_vm import owner
from microsim_vm.cache import Cache, need_space
from microsim_vm.errors import BakeError, NoSpaceError

HOLDER = """
import sys, time
from pathlib import Path
from microsim_vm.cache import Cache
with Cache(Path(sys.argv[1])).lock("thing", what="the thing", progress=print, timeout_s=5):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache ü")


def held_by_another(cache: Cache) -> subprocess.Popen[str]:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, cache.root], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder.stdout as output:
        assert output.readline() == "held\n"
    return holder


def test_the_place_comes_from_the_argument_the_environment_or_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MICROSIM_CACHE_DIR", "/from/environment")
    assert Cache(Path("/from/argument")).root == Path("/from/argument")
    assert Cache().root == Path("/from/environment")
    monkeypatch.delenv("MICROSIM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/from/user")
    assert Cache().root == Path("/from/user/microsim")


def test_a_relative_place_does_not_move_with_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cache = Cache(Path("here"))
    monkeypatch.chdir("/")
    assert cache.folder("locks") == tmp_path / "here/locks"


def test_a_place_that_cannot_be_made_is_an_error_that_says_how_to_choose_another(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BakeError, match="cannot create the cache folder") as caught:
        Cache(tmp_path / "file").folder("locks")
    assert "--microsim-cache-dir" in caught.value.hint


def test_nothing_is_created_before_it_is_needed(cache: Cache) -> None:
    assert not cache.root.exists()


def test_a_lock_waits_for_a_live_holder_says_so_and_gives_up_at_the_deadline(cache: Cache) -> None:
    holder = held_by_another(cache)
    lines: list[str] = []
    try:
        with (
            pytest.raises(BakeError, match="waited 1 s for another process to finish the thing") as caught,
            cache.lock("thing", what="the thing", progress=lines.append, timeout_s=1),
        ):
            pass
    finally:
        holder.kill()
        holder.wait()
    assert lines == ["waiting for another process: the thing"]
    assert "thing.lock" in caught.value.hint


def test_a_holder_that_is_killed_frees_the_lock(cache: Cache) -> None:
    holder = held_by_another(cache)
    killer = threading.Timer(0.3, lambda: holder.send_signal(signal.SIGKILL))
    killer.start()
    started = time.monotonic()
    with cache.lock("thing", what="the thing", progress=print, timeout_s=20):
        assert time.monotonic() - started < 10
    killer.join()
    holder.wait()


def test_two_threads_hold_a_lock_one_after_the_other(cache: Cache) -> None:
    inside, most = 0, 0

    def hold() -> None:
        nonlocal inside, most
        with cache.lock("thing", what="the thing", progress=print, timeout_s=20):
            inside += 1
            most = max(most, inside)
            time.sleep(0.1)
            inside -= 1

    threads = [threading.Thread(target=hold) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_different_locks_are_held_side_by_side(cache: Cache) -> None:
    with (
        cache.lock("one", what="one", progress=pytest.fail, timeout_s=0),
        cache.lock("two", what="two", progress=pytest.fail, timeout_s=0),
    ):
        pass


def test_an_exception_frees_the_lock(cache: Cache) -> None:
    with pytest.raises(KeyError), cache.lock("thing", what="the thing", progress=print, timeout_s=0):
        raise KeyError
    with cache.lock("thing", what="the thing", progress=pytest.fail, timeout_s=0):
        pass


def test_a_staging_folder_has_an_owner_and_goes_at_the_end(cache: Cache) -> None:
    with cache.staging("base") as work:
        assert work.parent.parent == cache.root / "staging"
        assert work.parent.name.startswith("base-")
        assert owner.read(work.parent) == owner.Process.current()
        (work / "file").write_text("text")
    assert list((cache.root / "staging").iterdir()) == []


def test_a_staging_folder_goes_with_an_exception_too(cache: Cache) -> None:
    with pytest.raises(KeyboardInterrupt), cache.staging("base"):
        raise KeyboardInterrupt
    assert list((cache.root / "staging").iterdir()) == []


def test_too_little_space_says_need_have_and_path(tmp_path: Path) -> None:
    with pytest.raises(NoSpaceError) as caught:
        need_space(tmp_path, 1 << 60, "the snapshot of plain")
    have = os.statvfs(tmp_path)
    assert f"need {1 << 40} MiB, have {have.f_bavail * have.f_frsize >> 20}"[:30] in caught.value.what
    assert caught.value.what.endswith(f"MiB in {tmp_path}")
    need_space(tmp_path, 1, "a byte")
