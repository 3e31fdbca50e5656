"""What this machine can do, found out by doing it: each probe performs the real operation and leaves nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from microsim_vm import admission, digests, tools
from microsim_vm.cache import Cache
from microsim_vm.engines import gvisor, qemu, runsc, select, trials
from microsim_vm.engines.base import Boot
from microsim_vm.errors import MicrosimError, MissingToolError
from microsim_vm.islands import trials as trying
from microsim_vm.jail import layers
from microsim_vm.templates import base, spec
from microsim_vm.tools import Progress

State = Literal["ok", "missing", "unusable", "not tried"]
PROBE_MIB = 128
TIMEOUT_S = 30.0
NEED_BYTES = 2 << 30  # a base system, and one snapshot of a small guest
QEMU_TALK = '{"execute":"qmp_capabilities"}{"execute":"quit"}'
# Programs that only some of what this project does needs: (program, what is lost without it).
OPTIONAL = (("mkfs.ext4", "volumes"),)
BAKING = ("mmdebstrap", "mkfs.erofs", "dpkg-deb", "cpio", "apt-get")
# Shows where its word is, and tells by its exit status whether it became another one.
CHILD = """
import ctypes, sys
word = ctypes.create_string_buffer(b"before")
print(ctypes.addressof(word), flush=True)
sys.stdin.read()
sys.exit(word.value != b"after!")
"""


@dataclass(frozen=True)
class Finding:
    """What one probe found.

    Attributes:
        name: What was tried.
        state: "ok", "missing", "unusable", or "not tried".
        detail: How it went, one line.
        fix: The command that helps; "" where there is none.
        required: Nothing works without it.
        program: The program whose package is missing; "" otherwise.
    """

    name: str
    state: State
    detail: str
    fix: str = ""
    required: bool = False
    program: str = ""


def everything(cache: Cache, *, deep: bool, progress: Progress) -> Iterator[Finding]:
    """Yield one finding after the other.

    Args:
        cache: Where images are kept.
        deep: Build what a probe needs: KVM is tried with a guest, whose system takes minutes the first time.
        progress: Takes one-line texts.
    """
    yield _qemu()
    yield _program("setpriv", "ends guests with their owner", required=True)
    yield _program("setsid", "gives sandboxes a process of their own", required=True)
    yield _kvm(cache, deep, progress)
    for platform in trials.PLATFORMS:
        yield _gvisor(platform, cache, progress)
    yield _chosen(cache, deep, progress)
    yield _guest_memory()
    yield _jail()
    yield from _networks()
    yield _space(cache)
    yield _budget()
    for program in (*BAKING, *(["newuidmap"] if os.geteuid() else [])):
        yield _program(program, "builds images", required=True)
    for program, lost in OPTIONAL:
        yield _program(program, f"needed for {lost}", required=False)


def _missing(name: str, program: str, detail: str, *, required: bool) -> Finding:
    return Finding(name, "missing", detail, tools.install_command(program), required, program)


def _program(program: str, what_for: str, *, required: bool) -> Finding:
    path = shutil.which(program, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")
    if path is None:
        return _missing(program, program, f"not installed; {what_for}", required=required)
    return Finding(program, "ok", path, required=required)


def _qemu() -> Finding:
    """Start QEMU's microvm machine in its sandbox, talk to it, and end it."""
    name = "qemu"
    required = not tools.found("runsc")
    try:
        program = tools.need("qemu-system-x86_64")
    except MissingToolError:
        return _missing(name, "qemu-system-x86_64", "not installed; it runs the guests", required=required)
    argv = [
        program, "-nodefaults", "-no-user-config", "-display", "none", "-sandbox", qemu.SANDBOX, "-machine", "microvm",
        "-accel", "tcg,tb-size=16", "-m", "16M", "-S", "-qmp", "stdio",
    ]  # fmt: skip
    try:
        done = subprocess.run(argv, input=QEMU_TALK, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(name, "unusable", f"it does not start: {error}", required=required)
    if done.returncode != 0 or '"return"' not in done.stdout:
        return Finding(name, "unusable", f"it does not start: {_last(done.stderr)}", required=required)
    return Finding(name, "ok", f"{qemu.version()}: the microvm machine starts, with its system call filter",
                   required=required)  # fmt: skip


def _kvm(cache: Cache, deep: bool, progress: Progress) -> Finding:
    name = "kvm"
    slower = "guests run on gVisor, or are emulated, which is tens of times slower"
    if not os.path.exists("/dev/kvm"):
        return Finding(name, "missing", f"/dev/kvm does not exist; {slower}")
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return Finding(name, "unusable", f"this user may not open /dev/kvm; {slower}", "sudo usermod -aG kvm $USER")
    try:
        boot = _guest(cache, deep, progress)
        if boot is None:
            return Finding(name, "not tried", "it needs a guest, and no image is built yet", "microsim doctor --deep")
        why_not = trials.kvm(boot, cache, progress, anew=True)
    except MicrosimError as error:
        return Finding(name, "not tried", error.what)
    return Finding(name, "unusable", f"{why_not}; {slower}") if why_not else Finding(name, "ok", "it booted a guest")


def _gvisor(platform: str, cache: Cache, progress: Progress) -> Finding:
    """Run a guest of gVisor's, write it, and restore it twice, on one of its platforms."""
    name = f"gvisor ({platform})"
    if not tools.found("runsc"):
        return _missing(name, "runsc", "not installed; with it, guests need no KVM", required=False)
    try:
        why_not = trials.gvisor(platform, cache, progress, anew=True)
        if not why_not:
            how = "guests start, are written and restored, and draw differently"
            return Finding(name, "ok", f"runsc {runsc.version()}: {how}")
    except MicrosimError as error:
        why_not = error.what
    return Finding(name, "unusable", why_not)


def _chosen(cache: Cache, deep: bool, progress: Progress) -> Finding:
    """Choose as a run without options does."""
    name = "engine"
    try:
        boot = _guest(cache, deep, progress)
        if boot is None:
            return Finding(name, "not tried", "no image is built yet", "microsim doctor --deep")
        choice = select.choose("auto", "auto", "emulated", probe=boot, cache=cache, progress=progress)
    except MicrosimError as error:
        return Finding(name, "unusable", error.what, required=True)
    return Finding(name, "ok", choice.line(), required=True)


def _guest(cache: Cache, deep: bool, progress: Progress) -> Boot | None:
    """Return kernel and initramfs of any base system that is there, or with ``deep`` of the default one."""
    for folder in sorted(cache.folder("bases").iterdir()):
        if digests.read_json(folder / "manifest.json") is not None:
            return Boot(folder / "vmlinuz", folder / "initramfs.cpio", {}, 1, PROBE_MIB)
    if not deep:
        return None
    system = spec.Base()
    _, folder = base.ensure(system.suite, list(system.packages), spec.Kernel().package, cache, progress)
    return Boot(folder / "vmlinuz", folder / "initramfs.cpio", {}, 1, PROBE_MIB)


def _guest_memory() -> Finding:
    """Read and write a child's memory from outside, as copying a running guest does."""
    name = "memory of guests"
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        address = int(child.stdout.readline())
        try:
            with open(f"/proc/{child.pid}/mem", "r+b", buffering=0) as memory:
                memory.seek(address)
                read = memory.read(6)
                memory.seek(address)
                memory.write(b"after!")
            problem = "" if read == b"before" else "what is read is not what is there"
        except OSError as error:
            problem = f"the kernel refuses: {error.strerror}"
        child.communicate("", timeout=TIMEOUT_S)
    if problem or child.returncode != 0:
        detail = f"running sandboxes cannot be forked: {problem or 'what is written does not arrive'}"
        return Finding(name, "unusable", detail, "sudo sysctl kernel.yama.ptrace_scope=1")
    return Finding(name, "ok", "the memory of a child can be copied, so running sandboxes can be forked")


def _jail() -> Finding:
    """Enter each layer of the jail that QEMU runs in."""
    name = "jail"
    try:
        found = layers.here()
    except MicrosimError as error:
        return Finding(name, "unusable", error.what)
    return Finding(name, "ok" if found.whole else "unusable", found.detail())


def _networks() -> Iterator[Finding]:
    """Raise islands as rollouts do."""
    first = trying.alone()
    taps = first.state == "ok"
    fixes = set()
    for name, trial in (
        ("network", first),
        ("network of several", trying.several(taps=taps)),
        ("network capture", trying.capturing(taps=taps)),
        ("subnets", trying.addresses()),
    ):
        yield Finding(name, trial.state, trial.detail, "" if trial.fix in fixes else trial.fix)  # each is said once
        fixes.add(trial.fix)


def _space(cache: Cache) -> Finding:
    name = "space"
    try:
        root = cache.folder("staging")
        probe = root / f"probe-{os.getpid()}"
        probe.write_bytes(b"\0")
        probe.unlink()
    except (OSError, MicrosimError) as error:
        return Finding(name, "unusable", f"{cache.root} cannot be written: {getattr(error, 'what', error)}",
                       required=True)  # fmt: skip
    free = shutil.disk_usage(root).free
    detail = f"{free >> 20} MiB free in {cache.root}"
    if free < NEED_BYTES:
        return Finding(name, "unusable", f"{detail}, at least {NEED_BYTES >> 20} MiB are needed", "microsim gc",
                       required=True)  # fmt: skip
    return Finding(name, "ok", detail, required=True)


def _budget() -> Finding:
    name = "memory"
    budget = admission.budget_mib()
    need = spec.MachineShape().memory_mib + max(qemu.Qemu.overhead_mib, gvisor.Gvisor.overhead_mib)
    detail = (
        f"{budget} MiB for guests: room for {budget // need} that run at the same time, "
        f"each with {spec.MachineShape().memory_mib} MiB of its own"
    )
    return Finding(name, "ok" if budget >= need else "unusable", detail, required=True)


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it says nothing"


def install(programs: list[str], run: Callable[[list[str]], int]) -> bool:
    """Install the packages of programs.

    Args:
        programs: What is missing.
        run: Runs a command and returns its exit status.

    Returns:
        Whether the command succeeded.
    """
    words = tools.install_words(*programs)
    return run([*words[: words.index("install") + 1], "--yes", *words[words.index("install") + 1 :]]) == 0
