"""Choose engine and accelerator by trying them for real, and say why."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from microsim_vm import digests, owner, tools
from microsim_vm.cache import Cache
from microsim_vm.engines import qemu, trials
from microsim_vm.engines.base import ABILITIES, ISOLATIONS, Ability, Boot, Engine, need
from microsim_vm.engines.gvisor import Gvisor
from microsim_vm.engines.icount import Icount
from microsim_vm.errors import (
    DeterminismError,
    EngineUnavailableError,
    IsolationError,
    MicrosimError,
    SnapshotMismatchError,
)
from microsim_vm.tools import Progress

ENGINES = ("auto", "qemu", "gvisor")
ACCELERATORS = ("auto", "kvm", "tcg")


@dataclass(frozen=True)
class Choice:
    """The engine in use, and why it is that one."""

    engine: Engine
    reason: str

    def line(self) -> str:
        """Return the header line: engine, accelerator, isolation, reason, and what its jail lacks."""
        text = f"{self.engine.describe()} ({self.engine.isolation})"
        text = f"{text}: {self.reason}" if self.reason else text
        unjailed = self.engine.unjailed()
        return f"{text}; {unjailed}" if unjailed else text


def check(engine: str, accelerator: str, isolation: str) -> None:
    """Refuse what can be refused without trying, before minutes go into an image.

    Raises:
        EngineUnavailableError: A name is unknown, or the names do not go together.
        MissingToolError: What the engine needs is not installed.
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
    if engine == Gvisor.name and accelerator != "auto":
        raise EngineUnavailableError(
            f"accelerator {accelerator!r} is QEMU's, and engine 'gvisor' was asked for", hint="leave one of them out"
        )
    anything = engine == "auto" and accelerator == "auto"
    if engine == Gvisor.name or (anything and tools.found("runsc") and not tools.found("qemu-system-x86_64")):
        tools.need("runsc", "setpriv", "fsck.erofs")
    else:
        tools.need("qemu-system-x86_64", "setpriv")


def check_deterministic(engine: str, accelerator: str) -> None:
    """Refuse an engine that is no deterministic machine.

    Raises:
        DeterminismError: It is gVisor, or QEMU with KVM.
    """
    other = "gVisor" if engine == Gvisor.name else "KVM" if accelerator == "kvm" else ""
    if other:
        raise DeterminismError(
            f"a deterministic machine runs on QEMU with TCG, and {other} was asked for",
            cause="its guests run on the host's processor, whose clocks and interrupts are the host's",
            hint="leave engine and accelerator out, or the deterministic mode",
        )


def choose(
    engine: str, accelerator: str, isolation: str, *, probe: Boot, cache: Cache, progress: Progress,
    needs: Sequence[Ability] = (), deterministic: bool = False,
) -> Choice:  # fmt: skip
    """Return the strongest engine that works here; an explicit choice is never replaced by another.

    Args:
        engine: "auto" or an engine's name.
        accelerator: "auto", or QEMU's: "kvm" or "tcg".
        isolation: The weakest acceptable boundary: "hardware", "sandbox" or "emulated".
        probe: Kernel and initramfs to try KVM with.
        cache: Where a probe's result is kept.
        progress: Takes one-line texts.
        needs: What the engine must be able to do.
        deterministic: All that its guests do has to follow from the snapshot and a seed.

    Raises:
        DeterminismError: What was asked for cannot be deterministic.
        EngineUnavailableError: What was asked for does not work here.
        UnsupportedByEngineError: The engine that was asked for lacks an ability.
        IsolationError: What works here is weaker than ``isolation``.
        MissingToolError: What the engine needs is not installed.
    """
    check(engine, accelerator, isolation)
    if deterministic:
        check_deterministic(engine, accelerator)
        choice = Choice(Icount(), "the deterministic mode was asked for")
    else:
        choice = _strongest(engine, accelerator, probe, cache, progress, needs)
    need(choice.engine, *needs)
    if ISOLATIONS.index(choice.engine.isolation) > ISOLATIONS.index(isolation):
        raise IsolationError(
            f"isolation {isolation!r} was asked for; the best that works here is {choice.line()}",
            hint="run on a machine with working KVM, install runsc (gVisor), or accept less with --microsim-isolation",
        )
    return choice


def _strongest(
    engine: str, accelerator: str, probe: Boot, cache: Cache, progress: Progress, needs: Sequence[Ability]
) -> Choice:
    if engine == "gvisor":
        # Its own use of KVM is faster still; where QEMU's does not work it has been seen to hang.
        platforms = ("kvm", *trials.SOFTWARE_PLATFORMS) if not _why_no_kvm(probe, cache, progress) else None
        return _gvisor(platforms or trials.SOFTWARE_PLATFORMS, cache, progress, "gVisor was asked for")
    if accelerator == "tcg":
        return Choice(qemu.Qemu("tcg"), "TCG was asked for")
    no_kvm = _why_no_kvm(probe, cache, progress)
    if not no_kvm:
        return Choice(qemu.Qemu("kvm"), "KVM booted a guest")
    if accelerator == "kvm":
        raise EngineUnavailableError(
            "KVM was asked for and does not work here", cause=no_kvm,
            hint="use a machine with working KVM, or --microsim-accel auto",
        )  # fmt: skip
    if engine == "qemu":
        return Choice(qemu.Qemu("tcg"), f"no KVM: {no_kvm}")
    for ability in needs:
        if ability in Gvisor.lacks:
            return Choice(qemu.Qemu("tcg"), f"no KVM: {no_kvm}; gVisor cannot {ABILITIES[ability]}")
    try:
        return _gvisor(trials.SOFTWARE_PLATFORMS, cache, progress, f"no KVM: {no_kvm}")
    except MicrosimError as error:
        reason = f"no KVM: {no_kvm}; no gVisor: {error.cause or error.what}"
        if not tools.found("qemu-system-x86_64"):
            raise EngineUnavailableError("no engine works here", cause=reason, hint="see microsim doctor") from error
        return Choice(qemu.Qemu("tcg"), reason)


def _why_no_kvm(probe: Boot, cache: Cache, progress: Progress) -> str:
    if not tools.found("qemu-system-x86_64"):
        return "QEMU is not installed"
    return trials.kvm(probe, cache, progress)


def _gvisor(platforms: Sequence[str], cache: Cache, progress: Progress, reason: str) -> Choice:
    """Return gVisor on the first platform that works.

    Raises:
        EngineUnavailableError: None does; the cause is that of the last one, which needs least.
    """
    why_not = ""
    for platform in platforms:
        why_not = trials.gvisor(platform, cache, progress)
        if not why_not:
            return Choice(Gvisor(platform), reason)
    raise EngineUnavailableError(
        "gVisor was asked for and does not work here",
        cause=why_not,
        hint="see microsim doctor, or choose another engine",
    )


def matching(identity: Mapping[str, str], what: str) -> Engine:
    """Return the engine that a saved guest was made by.

    Args:
        identity: What :meth:`Engine.identity` was when it was saved.
        what: The saved guest, for the message.

    Raises:
        SnapshotMismatchError: There is none here; the message says what differs.
        EngineUnavailableError: This user cannot run it.
        MissingToolError: QEMU is not installed.
    """
    engine = of(identity)
    if isinstance(engine, Gvisor) and os.geteuid() != 0:
        raise EngineUnavailableError(f"{what} cannot run here", cause="runsc needs root")
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


def of(identity: Mapping[str, str]) -> Engine:
    """Return the engine of an identity, whatever differs of it here."""
    if identity.get("engine") == Gvisor.name:
        return Gvisor(identity.get("platform", ""))
    if "deterministic" in identity:
        return Icount()
    return qemu.Qemu("kvm" if identity.get("accelerator") == "kvm" else "tcg")


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
