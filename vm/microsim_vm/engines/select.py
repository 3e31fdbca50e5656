"""Choose engine and accelerator by trying them for real, and say why."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from microsim_vm import digests, owner, tools
from microsim_vm.cache import Cache
from microsim_vm.engines import qemu
from microsim_vm.engines.base import ISOLATIONS, Boot, Engine
from microsim_vm.errors import BootError, EngineUnavailableError, IsolationError, MicrosimError, SnapshotMismatchError
from microsim_vm.templates.initramfs import PROBE_MARKER
from microsim_vm.tools import Progress

PROBE_TIMEOUT_S = 15.0
ENGINES = ("auto", "qemu")
ACCELERATORS = ("auto", "kvm", "tcg")


@dataclass(frozen=True)
class Choice:
    """The engine in use, and why it is that one."""

    engine: Engine
    reason: str

    def line(self) -> str:
        """Return the header line: engine, accelerator, isolation, reason."""
        text = f"{self.engine.describe()} ({self.engine.isolation})"
        return f"{text}: {self.reason}" if self.reason else text


def check(engine: str, accelerator: str, isolation: str) -> None:
    """Refuse what can be refused without trying, before minutes go into an image.

    Raises:
        EngineUnavailableError: A name is unknown.
        MissingToolError: QEMU is not installed.
    """
    if engine not in ENGINES:
        raise EngineUnavailableError(f"unknown engine {engine!r}", hint=f"known engines: {', '.join(ENGINES)}")
    if accelerator not in ACCELERATORS:
        raise EngineUnavailableError(
            f"unknown accelerator {accelerator!r}", hint=f"known accelerators: {', '.join(ACCELERATORS)}"
        )
    if isolation not in ISOLATIONS:
        raise EngineUnavailableError(
            f"unknown isolation level {isolation!r}", hint=f"known levels, strongest first: {', '.join(ISOLATIONS)}"
        )
    tools.need("qemu-system-x86_64", "setpriv")


def choose(engine: str, accelerator: str, isolation: str, *, probe: Boot, cache: Cache, progress: Progress) -> Choice:
    """Return the strongest engine that works here; an explicit choice is never replaced by another.

    Args:
        engine: "auto" or an engine's name.
        accelerator: "auto", "kvm" or "tcg".
        isolation: The weakest acceptable boundary: "hardware", "sandbox" or "emulated".
        probe: Kernel and initramfs to try KVM with.
        cache: Where a probe's result is kept.
        progress: Takes one-line texts.

    Raises:
        EngineUnavailableError: What was asked for does not work here.
        IsolationError: What works here is weaker than ``isolation``.
        MissingToolError: QEMU is not installed.
    """
    check(engine, accelerator, isolation)
    if accelerator == "tcg":
        choice = Choice(qemu.Qemu("tcg"), "TCG was asked for")
    else:
        why_not = probe_kvm(probe, cache, progress)
        if not why_not:
            choice = Choice(qemu.Qemu("kvm"), "KVM booted a guest")
        elif accelerator == "kvm":
            raise EngineUnavailableError(
                "KVM was asked for and does not work here", cause=why_not,
                hint="use a machine with working KVM, or --microsim-accel auto",
            )  # fmt: skip
        else:
            choice = Choice(qemu.Qemu("tcg"), f"no KVM: {why_not}")
    if ISOLATIONS.index(choice.engine.isolation) > ISOLATIONS.index(isolation):
        raise IsolationError(
            f"isolation {isolation!r} was asked for; the best that works here is {choice.line()}",
            hint="run on a machine with working KVM, or accept less with --microsim-isolation",
        )
    return choice


def matching(identity: Mapping[str, str], what: str) -> Engine:
    """Return the engine that a saved guest was made by.

    Args:
        identity: What :meth:`Engine.identity` was when it was saved.
        what: The saved guest, for the message.

    Raises:
        SnapshotMismatchError: There is none here; the message says what differs.
        MissingToolError: QEMU is not installed.
    """
    accelerator: qemu.Accelerator = "kvm" if identity.get("accelerator") == "kvm" else "tcg"
    engine = qemu.Qemu(accelerator)
    here = engine.identity()
    differing = [key for key in sorted({*identity, *here}) if identity.get(key) != here.get(key)]
    if differing:
        raise SnapshotMismatchError(
            f"{what} cannot run here: another {', '.join(differing)}",
            cause="saved guests run only on the engine and the processor that they were saved on",
            hint="make it again here: its template bakes the same image",
            details="\n".join(f"{key}: {identity.get(key)!r} there, {here.get(key)!r} here" for key in differing),
        )
    return engine


def remember(choice: Choice, asked: tuple[str, str, str], cache: Cache) -> None:
    """Keep what was chosen for an engine, accelerator and isolation asked for, for :func:`recall`."""
    known = {"boot": owner.boot_id(), "line": choice.line()}
    digests.write_json(cache.folder("probes") / _choice_file(asked), known)


def recall(asked: tuple[str, str, str], cache: Cache) -> str | None:
    """Return the line of what was chosen since this host's boot; starts nothing and writes nothing."""
    known = digests.read_json(cache.root / "probes" / _choice_file(asked))
    return str(known["line"]) if known is not None and known["boot"] == owner.boot_id() else None


def _choice_file(asked: tuple[str, str, str]) -> str:
    return f"choice-{'-'.join(asked)}.json"


def probe_kvm(probe: Boot, cache: Cache, progress: Progress) -> str:
    """Return why KVM does not work here, or "" where it does.

    ``/dev/kvm`` may open and create machines and still not run a guest, so a guest is booted. The result is
    remembered for this boot of the host, this QEMU and this kernel.
    """
    if not os.path.exists("/dev/kvm"):
        return "/dev/kvm does not exist"
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "/dev/kvm may not be opened by this user (is it in the group kvm?)"
    key = digests.of_data([owner.boot_id(), qemu.version(), str(probe.kernel), os.geteuid()])[:32]
    result = cache.folder("probes") / f"kvm-{key}.json"
    with cache.lock(f"probe-{key}", what="probing KVM", progress=progress, timeout_s=120):
        known = digests.read_json(result)
        if known is None:
            progress("probing KVM by booting a guest")
            with cache.staging("probe") as folder:
                known = {"why_not": _boot_probe(probe, folder, progress)}
            digests.write_json(result, known)
    return str(known["why_not"])


def _boot_probe(probe: Boot, folder: Path, progress: Progress) -> str:
    try:
        vm = qemu.Qemu("kvm").boot(probe, folder, probe=True)
    except BootError as error:
        said = (error.details.strip() or error.cause).splitlines()[-1]
        progress(f"KVM does not work here; QEMU said: {said}")
        return "it cannot run a guest here"
    deadline = time.monotonic() + PROBE_TIMEOUT_S
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
    return f"a guest booted with it does not come up within {PROBE_TIMEOUT_S:.0f} s"
