"""The choice of engine and accelerator: tried for real, named, and never silently less than asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from hosting import fresh_cache, plain
from microsim_vm.cache import Cache
from microsim_vm.engines import qemu, runsc, select, trials
from microsim_vm.engines.base import ABILITIES, Ability, Boot
from microsim_vm.engines.gvisor import Gvisor
from microsim_vm.engines.select import Choice
from microsim_vm.errors import (
    EngineUnavailableError,
    IsolationError,
    LockDriftError,
    MissingToolError,
    UnsupportedByEngineError,
)
from microsim_vm.options import Options
from microsim_vm.templates import lock as locks
from microsim_vm.templates import spec
from microsim_vm.templates.bake import bake
from microsim_vm.templates.initramfs import PROBE_MARKER
from microsim_vm.world import WarmWorld, abilities_of, known_engine, warm
from msgspec import structs

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Boot:
    image = bake(plain(tmp_path_factory.mktemp("probe")), Cache(), locked=False, progress=print)
    return Boot(image.kernel, image.initramfs, {}, 1, 128)


@pytest.fixture(scope="module")
def why_no_kvm(probe: Boot) -> str:
    """Why KVM does not work on this machine, or "" where it does."""
    return trials.kvm(probe, Cache(), print)


@pytest.fixture(scope="module")
def platform() -> str:
    """What runsc runs guests by on this machine; skips where nothing works."""
    why_not = {platform: trials.gvisor(platform, Cache(), print) for platform in trials.SOFTWARE_PLATFORMS}
    working = [platform for platform, reason in why_not.items() if not reason]
    if not working:
        pytest.skip(f"gVisor does not work here: {why_not}")
    return working[0]


@pytest.fixture
def without_runsc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has everything else."""
    for folder in os.environ["PATH"].split(":"):
        for program in Path(folder).glob("*"):
            link = tmp_path / "bin" / program.name
            if program.name != "runsc" and not link.is_symlink():
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def choose(
    probe: Boot, engine: str = "auto", accel: str = "auto", isolation: str = "emulated", needs: Sequence[Ability] = ()
) -> Choice:
    return select.choose(engine, accel, isolation, probe=probe, cache=Cache(), progress=print, needs=needs)


def test_auto_takes_kvm_where_it_boots_a_guest_and_then_gvisor(probe: Boot, why_no_kvm: str, platform: str) -> None:
    line = choose(probe).line()
    if why_no_kvm:
        assert line == f"gvisor {runsc.version()}, {platform} (sandbox): no KVM: {why_no_kvm}"
        assert "/dev/kvm" in why_no_kvm or "guest" in why_no_kvm
    else:
        assert line == f"qemu {qemu.version()}, kvm (hardware): KVM booted a guest"


@pytest.mark.usefixtures("without_runsc")
def test_auto_emulates_where_there_is_nothing_else_and_says_why(probe: Boot, why_no_kvm: str) -> None:
    if not why_no_kvm:
        pytest.skip("this machine has KVM")
    choice = choose(probe)
    assert choice.line() == (
        f"qemu {qemu.version()}, tcg (emulated): no KVM: {why_no_kvm}; no gVisor: runsc is not installed"
    )
    with pytest.raises(IsolationError, match="isolation 'sandbox' was asked for") as caught:
        choose(probe, isolation="sandbox")
    assert "install runsc" in caught.value.hint
    with pytest.raises(MissingToolError, match="runsc not found") as missing:
        choose(probe, engine="gvisor")
    assert "apt-get install --no-install-recommends" in missing.value.hint


def test_an_engine_that_was_asked_for_is_taken(probe: Boot, why_no_kvm: str, platform: str) -> None:
    choice = choose(probe, engine="gvisor")
    assert choice.reason == "gVisor was asked for"
    assert choice.engine.describe() in (f"gvisor {runsc.version()}, {platform}", f"gvisor {runsc.version()}, kvm")
    assert choice.engine.isolation == "sandbox"
    if why_no_kvm:
        assert choose(probe, engine="qemu").line() == (f"qemu {qemu.version()}, tcg (emulated): no KVM: {why_no_kvm}")


@pytest.mark.usefixtures("platform")
def test_auto_leaves_out_an_engine_that_cannot_do_what_is_needed(probe: Boot, why_no_kvm: str) -> None:
    choice = choose(probe, needs=["volumes"])
    assert choice.engine.name == "qemu"
    if why_no_kvm:
        assert choice.reason == f"no KVM: {why_no_kvm}; gVisor cannot mount volumes"
        with pytest.raises(IsolationError, match="gVisor cannot mount volumes"):
            choose(probe, isolation="sandbox", needs=["volumes"])


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("ability", Gvisor.lacks)
def test_what_an_engine_lacks_is_refused_with_the_reason(probe: Boot, ability: Ability) -> None:
    with pytest.raises(UnsupportedByEngineError) as caught:
        choose(probe, engine="gvisor", needs=[ability])
    assert caught.value.what == f"a guest of engine gvisor cannot {ABILITIES[ability]}"
    assert caught.value.cause == Gvisor.lacks[ability]
    assert "--microsim-engine qemu" in caught.value.hint


def test_a_template_with_a_kernel_of_its_own_needs_an_engine_that_boots_it(tmp_path: Path) -> None:
    template = plain(tmp_path)
    assert abilities_of(template) == []
    assert abilities_of(structs.replace(template, kernel=spec.Kernel(package="linux-image-amd64"))) == ["kernel"]


def test_explicit_kvm_is_never_downgraded(probe: Boot, why_no_kvm: str) -> None:
    if not why_no_kvm:
        assert choose(probe, accel="kvm").engine.isolation == "hardware"
        return
    with pytest.raises(EngineUnavailableError, match="KVM was asked for and does not work here") as caught:
        choose(probe, accel="kvm")
    assert caught.value.cause == why_no_kvm


def test_explicit_tcg_is_taken_also_where_something_better_works(probe: Boot) -> None:
    choice = choose(probe, accel="tcg")
    assert choice.line() == f"qemu {qemu.version()}, tcg (emulated): TCG was asked for"


@pytest.mark.parametrize("accel", ["kvm", "tcg"])
def test_gvisor_has_no_accelerator(probe: Boot, accel: str) -> None:
    with pytest.raises(EngineUnavailableError, match=f"accelerator '{accel}' is QEMU's"):
        choose(probe, engine="gvisor", accel=accel)


def test_a_weaker_boundary_than_asked_for_is_refused(probe: Boot, why_no_kvm: str) -> None:
    if not why_no_kvm:
        assert choose(probe, isolation="hardware").engine.isolation == "hardware"
        return
    with pytest.raises(IsolationError, match="isolation 'hardware' was asked for") as caught:
        choose(probe, isolation="hardware")
    assert "the best that works here is" in caught.value.what
    assert "--microsim-isolation" in caught.value.hint


@pytest.mark.parametrize("isolation", ["hardware", "sandbox"])
def test_tcg_is_neither_wherever_it_runs(probe: Boot, isolation: str) -> None:
    with pytest.raises(IsolationError, match=r"the best that works here is qemu .* tcg"):
        choose(probe, accel="tcg", isolation=isolation)


@pytest.mark.usefixtures("platform")
def test_the_same_bake_feeds_both_engines_and_the_lock_names_both_kernels(tmp_path: Path) -> None:
    template = plain(tmp_path)
    emulated = warm(template, Options(engine="qemu"), print)
    native = warm(template, Options(engine="gvisor"), print)
    assert emulated.digest == native.digest
    assert emulated.snapshot.key != native.snapshot.key
    lock = locks.read(template.path.parent)
    assert lock is not None
    assert lock.kernel.startswith("linux-image-")
    assert lock.gvisor_kernel == runsc.version()


@pytest.mark.usefixtures("platform")
def test_a_locked_run_refuses_another_release_of_gvisor(tmp_path: Path) -> None:
    template = plain(tmp_path)
    folder = template.path.parent
    warm(template, Options(engine="gvisor"), print)
    lock = locks.read(folder)
    assert lock is not None
    locks.write(folder, structs.replace(lock, gvisor_kernel="release-20200101.0"))
    warm(template, Options(engine="qemu", locked=True), print)  # which does not run on it
    with pytest.raises(LockDriftError, match=r"result gvisor_kernel changed: release-20200101\.0 -> "):
        warm(template, Options(engine="gvisor", locked=True), print)
    warm(template, Options(engine="gvisor"), print)
    assert locks.read(folder) == lock


@pytest.mark.usefixtures("platform")
def test_a_platform_that_does_not_work_is_given_up_in_time_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kvm platform hangs where KVM does not work, an unknown one ends at once."""
    cache = fresh_cache(tmp_path / "cache", "bases")
    in_time = 3 * trials.TIMEOUT_S
    monkeypatch.setattr(trials, "TIMEOUT_S", 2.0)
    started = time.monotonic()
    why_not = {name: trials.gvisor(name, cache, print) for name in ("kvm", "steam")}
    assert time.monotonic() - started < in_time
    assert why_not["steam"] == "a guest cannot be run, written and restored: unknown platform: steam"
    assert why_not["kvm"] == "" or "guest" in why_not["kvm"]
    own = [child.name() for child in psutil.Process().children(recursive=True)]
    assert not [name for name in own if "runsc" in name]
    again: list[str] = []
    assert {name: trials.gvisor(name, cache, again.append) for name in why_not} == why_not
    assert again == []


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
    first = trials.kvm(probe, cache, lines.append)
    assert lines[0] == "probing KVM by booting a guest"
    again: list[str] = []
    assert trials.kvm(probe, cache, again.append) == first
    assert again == []
    assert list(cache.folder("staging").iterdir()) == []


@pytest.mark.timeout(150)
def test_three_boots_in_a_row_come_up(probe: Boot, tmp_path: Path) -> None:
    for attempt in range(3):
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


def test_the_engine_is_known_before_anything_starts_once_it_was_chosen(cartpole: WarmWorld, engine: str) -> None:
    warm(cartpole.template, Options(engine=engine), print)
    assert known_engine(Options(engine=engine)) == cartpole.engine_line
    assert known_engine(Options(accel="tcg", isolation="sandbox")) is None  # nobody can have chosen that
