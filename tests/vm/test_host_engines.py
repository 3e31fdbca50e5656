"""The choice of engine and accelerator: tried for real, named, and never silently less than asked for."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hosting import fresh_cache, plain
from microsim_vm.cache import Cache
from microsim_vm.engines import qemu, select
from microsim_vm.engines.base import Boot
from microsim_vm.engines.select import Choice
from microsim_vm.errors import EngineUnavailableError
from microsim_vm.options import Options
from microsim_vm.templates.bake import bake
from microsim_vm.templates.initramfs import PROBE_MARKER
from microsim_vm.world import WarmWorld, known_engine, warm

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Boot:
    image = bake(plain(tmp_path_factory.mktemp("probe")), Cache(), locked=False, progress=print)
    return Boot(image.kernel, image.initramfs, {}, 1, 128)


@pytest.fixture(scope="module")
def why_no_kvm(probe: Boot) -> str:
    """Why KVM does not work on this machine, or "" where it does."""
    return select.probe_kvm(probe, Cache(), print)


def choose(probe: Boot, engine: str = "auto", accel: str = "auto", isolation: str = "emulated") -> Choice:
    return select.choose(engine, accel, isolation, probe=probe, cache=Cache(), progress=print)


def test_auto_takes_kvm_where_it_boots_a_guest_and_says_why_not_elsewhere(probe: Boot, why_no_kvm: str) -> None:
    line = choose(probe).line()
    if why_no_kvm:
        assert line == f"qemu {qemu.version()}, tcg (emulated): no KVM: {why_no_kvm}"
        assert "/dev/kvm" in why_no_kvm or "guest" in why_no_kvm
    else:
        assert line == f"qemu {qemu.version()}, kvm (hardware): KVM booted a guest"


def test_explicit_kvm_is_never_downgraded(probe: Boot, why_no_kvm: str) -> None:
    if not why_no_kvm:
        assert choose(probe, accel="kvm").engine.isolation == "hardware"
        return
    with pytest.raises(EngineUnavailableError, match="KVM was asked for and does not work here") as caught:
        choose(probe, accel="kvm")
    assert caught.value.cause == why_no_kvm


def test_explicit_tcg_is_taken_also_where_kvm_works(probe: Boot) -> None:
    choice = choose(probe, accel="tcg")
    assert choice.line() == f"qemu {qemu.version()}, tcg (emulated): TCG was asked for"


@pytest.mark.parametrize("isolation", ["hardware", "sandbox"])
def test_a_weaker_boundary_than_asked_for_is_refused(probe: Boot, why_no_kvm: str, isolation: str) -> None:
    if not why_no_kvm:
        assert choose(probe, isolation=isolation).engine.isolation == "hardware"
        return
    with pytest.raises(EngineUnavailableError) as caught:
        choose(probe, isolation=isolation)
    assert f"isolation '{isolation}' was asked for" in caught.value.what
    assert f"qemu {qemu.version()}, tcg (emulated)" in caught.value.what
    assert "--microsim-isolation" in caught.value.hint


def test_tcg_is_no_hardware_boundary_wherever_it_runs(probe: Boot) -> None:
    with pytest.raises(EngineUnavailableError, match=r"the best that works here is qemu .* tcg"):
        choose(probe, accel="tcg", isolation="hardware")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("engine", "qmeu", "unknown engine 'qmeu'"),
        ("accel", "hvf", "unknown accelerator 'hvf'"),
        ("isolation", "hard", "unknown isolation level 'hard'"),
    ],
)
def test_an_unknown_name_is_refused_before_anything_is_built(
    tmp_path: Path, option: str, value: str, message: str
) -> None:
    lines: list[str] = []
    with pytest.raises(EngineUnavailableError, match=message) as caught:
        warm(plain(tmp_path), Options(cache_dir=tmp_path / "cache", **{option: value}), lines.append)
    assert "known" in caught.value.hint
    assert lines == []
    assert not (tmp_path / "cache").exists()


def test_the_probe_boots_once_per_boot_of_the_host(probe: Boot, tmp_path: Path) -> None:
    if not os.path.exists("/dev/kvm"):
        pytest.skip("without /dev/kvm there is nothing to boot")
    cache = fresh_cache(tmp_path / "cache", "bases")
    lines: list[str] = []
    first = select.probe_kvm(probe, cache, lines.append)
    assert lines[0] == "probing KVM by booting a guest"
    again: list[str] = []
    assert select.probe_kvm(probe, cache, again.append) == first
    assert again == []
    assert list(cache.folder("staging").iterdir()) == []


@pytest.mark.timeout(150)
def test_five_boots_in_a_row_come_up(probe: Boot, tmp_path: Path) -> None:
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        vm = qemu.Qemu("tcg").boot(probe, folder, probe=True)
        try:
            deadline = time.monotonic() + 25
            while PROBE_MARKER not in vm.console():
                assert vm.alive()
                assert time.monotonic() < deadline, f"boot {attempt} hangs after:\n{vm.console()}"
                time.sleep(0.05)
        finally:
            vm.kill()


def test_the_engine_is_known_before_anything_starts_once_it_was_chosen(cartpole: WarmWorld) -> None:
    warm(cartpole.template, Options(), print)
    assert known_engine(Options()) == cartpole.engine_line
    assert known_engine(Options(accel="tcg", isolation="sandbox")) is None  # nobody can have chosen that
