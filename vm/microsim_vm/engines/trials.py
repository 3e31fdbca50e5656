"""Engines tried out for real: that a device opens or a program starts proves nothing."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from microsim_vm import digests, owner, tools
from microsim_vm.cache import Cache
from microsim_vm.engines import qemu, runsc
from microsim_vm.engines.base import Boot
from microsim_vm.engines.gvisor import GvisorVm
from microsim_vm.errors import BootError, MicrosimError
from microsim_vm.templates import rootfs
from microsim_vm.templates.initramfs import PROBE_MARKER
from microsim_vm.tools import Progress

TIMEOUT_S = 15.0
FORGET_S = 3600.0  # what does not work may have had a bad moment; what does is known until the host's next boot
# What runsc can run guests by without hardware, the faster first.
SOFTWARE_PLATFORMS = ("systrap", "ptrace")
PLATFORMS = (*SOFTWARE_PLATFORMS, "kvm")
# Answers each line on its channel with random bytes of its kernel's.
ECHO = "exec 3<&0; while read -r line; do head -c 16 /dev/urandom | od -An -tx1 >&3; done"
MEMORY_MIB = 64


def kvm(probe: Boot, cache: Cache, progress: Progress, *, anew: bool = False) -> str:
    """Return why KVM does not work here, or "" where it does.

    ``/dev/kvm`` may open and create machines and still not run a guest, so a guest is booted.

    Args:
        probe: Kernel and initramfs to boot.
        cache: Where the result is remembered, for this boot of the host, this QEMU and this kernel.
        progress: Takes one-line texts.
        anew: Whatever is remembered.
    """
    if not os.path.exists("/dev/kvm"):
        return "/dev/kvm does not exist"
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "/dev/kvm may not be opened by this user (is it in the group kvm?)"
    made_of = [qemu.version(), str(probe.kernel)]
    return _remembered(
        "kvm", made_of, cache, progress, "KVM by booting a guest", lambda folder: _boot(probe, folder, progress), anew
    )


def gvisor(platform: str, cache: Cache, progress: Progress, *, anew: bool = False) -> str:
    """Return why gVisor does not work here on a platform of its own, or "" where it does.

    A guest is run, written, and restored twice: the two must draw different bytes from their kernels.

    Args:
        platform: "systrap", "ptrace" or "kvm".
        cache: Where the result is remembered, for this boot of the host and this runsc.
        progress: Takes one-line texts.
        anew: Whatever is remembered.
    """
    if not tools.found("runsc"):
        return "runsc is not installed"
    if os.geteuid() != 0:
        return "runsc needs root"
    if why_not := rootfs.why_not():
        return why_not
    made_of = [runsc.version(), platform]
    return _remembered(
        "gvisor", made_of, cache, progress, f"gVisor ({platform}) by restoring two guests",
        lambda folder: _restore_two(platform, folder), anew,
    )  # fmt: skip


def _remembered(
    name: str, made_of: list[str], cache: Cache, progress: Progress, what: str, attempt: Callable[[Path], str],
    anew: bool,
) -> str:  # fmt: skip
    key = digests.of_data([owner.boot_id(), os.geteuid(), *made_of])[:32]
    result = cache.folder("probes") / f"{name}-{key}.json"
    with cache.lock(f"probe-{key}", what=f"probing {name}", progress=progress, timeout_s=120):
        known = digests.read_json(result)
        if known is None or anew or (known["why_not"] and time.time() - known.get("at", 0.0) > FORGET_S):
            progress(f"probing {what}")
            with cache.staging("probe") as folder:
                known = {"why_not": attempt(folder), "at": time.time()}
            digests.write_json(result, known)
    return str(known["why_not"])


def _boot(probe: Boot, folder: Path, progress: Progress) -> str:
    try:
        vm = qemu.Qemu("kvm").boot(probe, folder, probe=True)
    except BootError as error:
        said = (error.details.strip() or error.cause).splitlines()[-1]
        progress(f"KVM does not work here; QEMU said: {said}")
        return "it cannot run a guest here"
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            if PROBE_MARKER in vm.console():
                return ""
            if not vm.alive():
                return "a guest booted with it dies"
            time.sleep(0.05)
    except MicrosimError as error:
        return f"a guest booted with it dies ({error.what})"
    finally:
        vm.kill()
    return f"a guest booted with it does not come up within {TIMEOUT_S:.0f} s"


def _restore_two(platform: str, folder: Path) -> str:
    # The host's own root: the script is ours, and a probe must not need an image.
    program = runsc.Program(Path("/"), ("/bin/sh", "-c", ECHO), {"PATH": "/usr/bin:/bin"})

    def start(image: Path | None) -> GvisorVm:
        vm = GvisorVm(platform, program, MEMORY_MIB, image, timeout_s=TIMEOUT_S)
        guests.callback(vm.kill)
        vm.run()
        return vm

    with contextlib.ExitStack() as guests:
        try:
            first = start(None)
            _draw(first)
            first.checkpoint(folder)
            drawn = [_draw(start(folder)) for _ in range(2)]
        except TimeoutError:
            return f"a guest does not answer within {TIMEOUT_S:.0f} s"
        except (MicrosimError, OSError) as error:
            cause = getattr(error, "cause", "") or str(error)
            return f"a guest cannot be run, written and restored: {cause.strip().splitlines()[-1]}"
    return "" if drawn[0] != drawn[1] else "two guests restored from one draw the same random bytes from their kernels"


def _draw(vm: GvisorVm) -> bytes:
    """Return what a guest answers.

    Raises:
        TimeoutError: It does not.
        MicrosimError: It ended.
    """
    vm.channel.settimeout(TIMEOUT_S)
    with contextlib.suppress(ConnectionError):
        vm.channel.sendall(b"draw\n")
        if drawn := vm.channel.recv(256):
            return drawn
    raise BootError("it ended", cause=vm.console() or "it ended and said nothing")
