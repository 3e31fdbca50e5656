"""Memory budgets: of the machine, of the control groups around a process, and who counts in which."""

from __future__ import annotations

import functools
import os
import threading
import time
from pathlib import Path

import psutil
import pytest
from microsim_vm import admission, owner, runtime
from microsim_vm.admission import Pool
from microsim_vm.errors import MemoryBudgetError
from microsim_vm.owner import Process

HERE = Pool(1000, None)
ENGINE_MIB = 96
admitted = functools.partial(admission.admitted, overhead_mib=ENGINE_MIB)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose guests may use 1000 MiB."""
    monkeypatch.setattr(admission, "pools", lambda: [HERE])


def records() -> list[runtime.GuestRecord]:
    with runtime.locked() as path:
        return [record for _, record in runtime.records(path)]


@pytest.mark.usefixtures("budget")
def test_a_promise_holds_for_the_block_and_covers_the_engine_too() -> None:
    with admitted(300, "one") as (file, record):
        assert records() == [record]
        assert record.memory_mib == 300 + ENGINE_MIB
        assert record.owner == Process.current()
        assert file.exists()
    assert records() == []


@pytest.mark.usefixtures("budget")
def test_a_promise_ends_with_an_exception_too() -> None:
    with pytest.raises(KeyError), admitted(300, "one"):
        raise KeyError
    assert records() == []


@pytest.mark.usefixtures("budget")
def test_a_guest_waits_until_another_one_is_gone() -> None:
    order: list[str] = []

    def second() -> None:
        with admitted(600, "second", wait_s=10):
            order.append("second starts")

    with admitted(600, "first"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.3)
        order.append("first ends")
    thread.join()
    assert order == ["first ends", "second starts"]


@pytest.mark.usefixtures("budget")
def test_two_hundred_at_once_take_turns() -> None:
    most = 0
    done = []

    def guest(number: int) -> None:
        nonlocal most
        with admitted(150, f"guest {number}", wait_s=60):
            most = max(most, len(records()))
            time.sleep(0.002)
        done.append(number)

    threads = [threading.Thread(target=guest, args=(number,)) for number in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(200))
    assert 2 <= most <= 1000 // (150 + ENGINE_MIB)


@pytest.mark.usefixtures("budget")
def test_waiting_in_vain_is_an_error_that_names_the_live_guests() -> None:
    started = time.monotonic()
    with (
        admitted(300, "warehouse seed 3"),
        admitted(300, "warehouse seed 12"),
        pytest.raises(MemoryBudgetError) as caught,
        admitted(300, "warehouse seed 13", wait_s=0.2),
    ):
        pass
    assert time.monotonic() - started < 5
    assert caught.value.what == (
        "out of memory budget: 2 live guests hold 792 of 1000 MiB, and 396 MiB did not become free within 0.2 s"
    )
    assert f"warehouse seed 12 (process {os.getpid()})" in caught.value.details
    assert f"warehouse seed 3 (process {os.getpid()})" in caught.value.details
    assert "seed 13" not in str(caught.value)


@pytest.mark.usefixtures("budget")
def test_what_can_never_fit_is_refused_at_once_and_leaves_no_record() -> None:
    started = time.monotonic()
    with (
        pytest.raises(MemoryBudgetError, match=r"needs 1096 MiB, the budget is 1000 MiB"),
        admitted(1000, "x"),
    ):
        pass
    assert time.monotonic() - started < 1
    assert records() == []


@pytest.mark.usefixtures("budget")
def test_the_dead_hold_no_memory() -> None:
    with runtime.locked() as path:
        runtime.new_record(path, runtime.GuestRecord(Process(2**22 + 1, 5, owner.boot_id()), 900, "left behind"))
    with admitted(600, "one", wait_s=0):
        pass


def test_a_full_group_does_not_hold_up_a_guest_outside_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inner, outer = Pool(500, tmp_path / "a"), Pool(5000, None)
    monkeypatch.setattr(admission, "_groups", lambda pid: [tmp_path / "b"])
    monkeypatch.setattr(admission, "pools", lambda: [outer])
    with admitted(400, "outside the group"):
        monkeypatch.setattr(admission, "pools", lambda: [outer, inner])
        with admitted(400, "inside the group", wait_s=0):
            pass
        monkeypatch.setattr(admission, "_groups", lambda pid: [tmp_path / "a"])
        with pytest.raises(MemoryBudgetError, match="hold 496 of 500 MiB"), admitted(1, "x", wait_s=0):
            pass


def test_the_machines_memory_is_a_pool_that_everybody_lives_in() -> None:
    machine = admission.pools()[0]
    assert machine.group is None
    assert machine.holds(Process.current())
    assert machine.budget_mib == int((psutil.virtual_memory().total >> 20) * admission.SHARE)
    assert admission.budget_mib() <= machine.budget_mib


@pytest.mark.parametrize(
    ("line", "folder", "file"),
    [("0::{}", "", "memory.max"), ("4:memory:{}", "memory", "memory.limit_in_bytes")],
)
def test_the_limits_of_all_groups_around_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, folder: str, file: str
) -> None:
    root = tmp_path / folder
    (root / "team/job").mkdir(parents=True)
    (root / "team/job" / file).write_text("max\n" if file == "memory.max" else "9223372036854771712\n")
    (root / "team" / file).write_text(f"{1 << 30}\n")
    monkeypatch.setattr(admission, "CGROUPS", tmp_path)
    monkeypatch.setattr(
        admission, "_lines_of", lambda pid: ["2:cpu:/elsewhere", line.format("/team/job"), "1:name=systemd:/x"]
    )
    assert (Pool(int(1024 * admission.SHARE), root / "team")) in admission.pools()
    assert admission.budget_mib() == int(1024 * admission.SHARE)


def test_a_process_that_is_gone_is_in_no_group() -> None:
    assert admission._groups(2**22 + 1) == []
