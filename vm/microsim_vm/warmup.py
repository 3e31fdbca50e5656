"""Warm-up: boot a guest, load the world once, and leave a snapshot at step zero."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from microsim_vm import admission, deterministic, digests, errors, owner, runtime, snapshots, tools
from microsim_vm.agent import AgentClient
from microsim_vm.cache import Cache, need_space
from microsim_vm.engines.base import Boot, Engine, Vm, saved_bytes
from microsim_vm.errors import AgentError, AgentTimeoutError, BootError, MicrosimError, WarmUpError, WorldError
from microsim_vm.islands.island import ALONE, Berth, raised
from microsim_vm.islands.policy import Network
from microsim_vm.snapshots import Manifest, Snapshot, WarmUp
from microsim_vm.templates.bake import Image
from microsim_vm.templates.spec import Template
from microsim_vm.tools import Progress

BOOT_TIMEOUT_S = 180.0
GRACE_S = 15.0  # the guest's own limit counts from when its interpreter is up
SPARE_BYTES = 64 << 20


def ensure(
    template: Template, image: Image, engine: Engine, cache: Cache, *, session_id: str, progress: Progress,
    subnets: str = "",
) -> tuple[Snapshot, bool]:  # fmt: skip
    """Return the template's snapshot and whether it was there already.

    One process per host and key warms up; others wait for it, and in the same session fail as it failed.

    Raises:
        WarmUpError: The world cannot be loaded, or not in time.
        BootError: The guest does not come up.
        NoSpaceError: The memory file would not fit.
        MemoryBudgetError: The guest would not fit into memory.
    """
    key = snapshots.key_of(image, engine, template.machine)
    failure = cache.folder("failures") / f"{session_id or os.getpid()}-{key}.json"
    wait_s = BOOT_TIMEOUT_S + template.warmup_timeout_s * _slower(engine) + admission.WAIT_S
    with cache.lock(f"snapshot-{key}", what=f"the warm-up of {template.name}", progress=progress, timeout_s=wait_s):
        found = snapshots.load(cache, key)
        if found is not None:
            return found, True
        if session_id:
            _raise_recorded(failure)
        try:
            return _warm_up(key, template, image, engine, cache, progress, subnets), False
        except MicrosimError as error:
            if session_id:
                digests.write_json(failure, {"kind": type(error).__name__, **vars(error)})
            raise


def _raise_recorded(failure: Path) -> None:
    """Raise what another worker of this session ran into, rather than run into it once more."""
    recorded = digests.read_json(failure)
    if recorded is not None:
        kind = getattr(errors, recorded.pop("kind"))
        raise kind(recorded.pop("what"), **recorded)


def _warm_up(
    key: str, template: Template, image: Image, engine: Engine, cache: Cache, progress: Progress,
    subnets: str,
) -> Snapshot:  # fmt: skip
    saved = saved_bytes(engine, template.machine.memory_mib)
    if engine.deterministic:  # its layers lie in its memory
        saved += sum(path.stat().st_size for path in image.layers.values())
    # A file that is written anew is there twice for a moment.
    more = saved if engine.memory_file is None else SPARE_BYTES
    need_space(cache.root, saved + more, f"the snapshot of {template.name}")
    started = time.monotonic()
    with cache.staging("snapshot") as staging:
        with loaded(template, image, engine, staging, progress, subnets=subnets) as (vm, _, warmup):
            engine.save(vm, staging)
        share = f", of which the world took {warmup.load_ms / 1000:.1f} s" if template.has_world else ""
        progress(f"warmed up in {(time.monotonic() - started):.1f} s{share}; writing the snapshot")
        manifest = Manifest(key, template.name, image.digest, engine.identity(), owner.boot_id(), {}, warmup)
        return snapshots.seal(cache, staging, manifest, engine.snapshot_files)


@contextlib.contextmanager
def loaded(
    template: Template,
    image: Image,
    engine: Engine,
    folder: Path,
    progress: Progress,
    *,
    subnets: str = "",
) -> Iterator[tuple[Vm, AgentClient, WarmUp]]:
    """Boot a guest, load the world, and leave the guest at rest: what each rollout would pay without snapshots.

    Args:
        template: The world's template.
        image: Its image.
        engine: What boots it.
        folder: Where the guest's memory file goes.
        progress: Takes one-line texts.
        subnets: Where its addresses are taken from.

    Yields:
        The guest, killed at the end; the client of its agent; and what the warm-up found.

    Raises:
        WarmUpError: The world cannot be loaded, or not in time.
        BootError: The guest does not come up.
        MemoryBudgetError: The guest would not fit into memory.
    """
    boot = snapshots.boot_of(image, template)
    with booted(boot, engine, folder, f"warm-up of {template.name}", progress, subnets=subnets) as (
        vm,
        client,
        _,
        boot_ms,
    ):
        answer = load_world(template, vm, client, progress, slower=_slower(engine))
        warmup = WarmUp(boot_ms, answer["load_ms"], answer["findings"], answer["sources"], answer["versions"])
        if engine.deterministic:
            deterministic.settle(client)
            yield vm, client, warmup
            return
        with client.quiesced():
            yield vm, client, warmup


@contextlib.contextmanager
def booted(
    boot: Boot, engine: Engine, folder: Path, label: str, progress: Progress, *, name: str = "",
    network: Network | None = None, subnets: str = "", private: bool = False,
) -> Iterator[tuple[Vm, AgentClient, Berth | None, float]]:  # fmt: skip
    """Boot a guest up to its agent, with its memory in ``folder``.

    Args:
        boot: The machine.
        engine: What boots it.
        folder: Where the guest's memory file goes.
        label: What it is for, one line.
        progress: Takes one-line texts.
        name: What its addresses are derived from.
        network: What it may reach; by default nothing but a gateway, if it is to have a network later.
        subnets: Where its addresses are taken from.
        private: What it writes is kept to itself.

    Yields:
        The guest, killed at the end; the client of its agent; its place in a network, where it has one; and how long
        it took in milliseconds.

    Raises:
        BootError: The guest does not come up.
        MemoryBudgetError: The guest would not fit into memory.
    """
    wires = {ALONE: engine.wire}
    if network is None:  # nobody is to meet the guest yet; and a veth is taken up at a fork
        linked = boot.network.policy != "none" and engine.wire == "tap"
        network = Network("island" if linked else "none")
    promised = admission.admitted(boot.memory_mib, label, overhead_mib=engine.overhead_mib, image=boot.image)
    with (
        promised as (file, record),
        raised(network, name or label, wires, pool=subnets) as island,
    ):
        started = time.monotonic()
        berth = island.berth(ALONE) if island else None
        vm = engine.boot(boot, folder, plug=berth.plug if berth else None, private=private)
        client = AgentClient(vm)
        try:
            runtime.started(file, record, vm.pid, berth.record() if berth else None)
            with tools.ticking(f"booting {engine.describe()}", progress):
                _wait_for_agent(vm, client)
            yield vm, client, berth, (time.monotonic() - started) * 1000.0
        finally:
            client.close()
            vm.kill()


def _wait_for_agent(vm: Vm, client: AgentClient) -> None:
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    while True:
        try:
            client.call("ping", timeout_s=2.0)
            return
        except AgentTimeoutError:
            if not vm.alive() or time.monotonic() > deadline or "Kernel panic" in vm.console():
                raise BootError(
                    "the guest did not reach its agent", cause="the kernel panicked or init failed: see its console",
                    hint="raise machine.memory_mib if it ran out of memory", details=_tail(vm),
                ) from None  # fmt: skip
        except AgentError as error:
            raise BootError(
                "the guest died while booting", cause=error.cause or error.what, hint=error.hint, details=_tail(vm)
            ) from None


def _slower(engine: Engine) -> float:
    """Return how much slower than its own clock, by which the guest keeps the limit itself, a guest may be."""
    return deterministic.SLOWER if engine.deterministic else 1.0


def load_world(
    template: Template, vm: Vm, client: AgentClient, progress: Progress, *, slower: float = 1.0
) -> dict[str, Any]:
    """Load a booted guest's world and return what the guest says of it.

    Args:
        template: The world's template.
        vm: The guest.
        client: Of its agent.
        progress: Takes one-line texts.
        slower: How many seconds of ours one of the template's limit may take.

    Raises:
        WarmUpError: It cannot be loaded, or not in time.
    """
    limit = template.warmup_timeout_s
    # Without a world there is nothing to load; the guest still takes stock of its generators.
    loading = tools.ticking(f"loading {template.name}", progress) if template.has_world else contextlib.nullcontext()
    try:
        with loading:
            # The guest knows which process is late, and what it printed, so it gets to speak first.
            return client.call("world.load", {"timeout_s": limit}, timeout_s=(limit + GRACE_S) * slower)[0]
    except AgentTimeoutError:
        raise WarmUpError(
            f"world {template.name} was not ready within {limit:g} s",
            cause="it hangs, or the limit is too low for emulation, which is tens of times slower than native",
            hint="raise warmup_timeout_s in the template", details=_tail(vm),
        ) from None  # fmt: skip
    except WorldError as error:
        raise WarmUpError(
            f"world {template.name} cannot be loaded: {error.what.partition(': ')[2]}",
            hint="the guest's traceback follows; the world code is in the template's folder",
            details=error.details or _tail(vm),
        ) from None
    except AgentError as error:
        raise WarmUpError(
            f"the guest died while loading {template.name}", cause=error.cause or error.what,
            hint=error.hint or "raise machine.memory_mib if it ran out of memory", details=_tail(vm),
        ) from None  # fmt: skip


def _tail(vm: Vm) -> str:
    return "\n".join(vm.console().splitlines()[-40:])
