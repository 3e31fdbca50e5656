"""Start sandboxes: from a snapshot, from hibernation, or cold; in this process, or in a keeper of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from microsim_vm import owner, snapshots, volumes, warmup
from microsim_vm.agent import AgentClient
from microsim_vm.engines import memory
from microsim_vm.errors import AgentError, SandboxGoneError, SnapshotError, VolumeError
from microsim_vm.forks import ENTROPY_BYTES, Forker
from microsim_vm.machine import Machine
from microsim_vm.sandbox import door, idle, keeper, saved
from microsim_vm.sandbox.live import Live
from microsim_vm.sandbox.store import HIBERNATED, ORIGIN, Hibernation, Record, Store
from microsim_vm.templates import load_template
from microsim_vm.tools import Progress

WAKE_TIMEOUT_S = 60.0


@contextlib.contextmanager
def founded(store: Store, sandbox: str) -> Iterator[Path]:
    """Found a sandbox: yield the empty folder for what it is forked from; all goes again if the block fails."""
    folder = store.folder(sandbox)
    folder.mkdir()
    try:
        owner.write(folder, owner.Process.current())
        (folder / ORIGIN).mkdir()
        yield folder / ORIGIN
    except BaseException:
        store.remove(sandbox)
        raise


def started(store: Store, record: Record, progress: Progress) -> Record:
    """Start a founded sandbox where its record says: in a keeper, or in this process. See :func:`start`."""
    return keeper.start(store, record, progress) if record.detached else start(store, record, progress).record


def woken(store: Store, sandbox: str, progress: Progress) -> Record | None:
    """Wake a sandbox, unless somebody else has meanwhile; return its record, None where it was killed.

    It wakes in the process that made it, if that is this one, and in a keeper otherwise: it would end with us.

    Raises:
        MicrosimError: As :func:`start` does; it stays hibernated.
    """
    with store.locked(sandbox):
        record = store.read(sandbox)
        if record is None or record.status != "hibernated":
            return record
        here = owner.Process.current()
        waking = msgspec.structs.replace(
            record, status="waking", owner=here, detached=record.detached or record.maker != here
        )
        store.write(waking)
        try:
            return started(store, waking, progress)
        except BaseException:
            known = store.read(sandbox)
            if known is not None and known.owner == waking.owner:  # else its keeper has it up already
                if known.spoiled:
                    store.remove(sandbox)
                else:
                    store.write(known.asleep())
            raise


def start(store: Store, record: Record, progress: Progress) -> Live:
    """Start a sandbox in this process, as its record says: fork it, boot it, or wake it.

    Raises:
        SnapshotMismatchError: It was saved on another engine or processor.
        SnapshotError: Its files are gone or damaged.
        MemoryBudgetError: Other guests hold the memory.
        EngineError: The engine or the guest failed.
    """
    forker = record.origin.forker(store.cache, f"sandbox {record.id}")
    if record.volumes:
        forker = replace(forker, boot=replace(forker.boot, disks=volumes.disks(store.cache, record.volumes)))
    socket_path = door.path()
    started = time.monotonic()
    if record.status == "waking":
        machine = _woken(store, record, forker)
    elif record.boot_mode == "cold":
        machine = _booted(store, record, forker, progress)
    else:
        machine = forker.fork(store.folder(record.id) / ORIGIN, record.seed, name=record.id)
    running = msgspec.structs.replace(
        record, status="running", owner=owner.Process.current(), door=socket_path, pid=machine.pid,
        boot_ms=(time.monotonic() - started) * 1000.0, ran=False,
    )  # fmt: skip
    live = Live(store, running, forker, machine)  # before its record says so: who reads that looks for it here
    try:
        if store.read(record.id) is None:
            raise SandboxGoneError(f"sandbox {record.id} was killed while it was starting")
        store.write(running)
        _leave_memory_only(store.folder(record.id) / ORIGIN)
    except BaseException:
        live.end()
        raise
    if record.status == "waking":
        shutil.rmtree(store.folder(record.id) / HIBERNATED, ignore_errors=True)
    idle.watch(live)
    return live


def _leave_memory_only(folder: Path) -> None:
    """Remove what was needed to start; the memory file keeps a name, so that the sandbox can be copied."""
    for path in folder.iterdir():
        if path.name != memory.RAM:
            path.unlink()


def _woken(store: Store, record: Record, forker: Forker) -> Machine:
    folder = store.folder(record.id) / HIBERNATED
    try:
        image = msgspec.json.decode((folder / saved.MANIFEST).read_bytes(), type=Hibernation)
        snapshots.checked_files(folder, image.files, image.boot)
    except (OSError, ValueError) as error:
        raise SnapshotError(
            f"sandbox {record.id} cannot be woken: {error}",
            cause="its files were damaged by a crash of the host, a full disk, or somebody",
            hint=f"microsim rm {record.id}",
        ) from None

    def about_to_run() -> None:
        store.write(msgspec.structs.replace(record, ran=True))

    label = f"{record.origin.template} {record.id}"
    with contextlib.ExitStack() as stack:
        started = forker.started(folder, label, name=record.id, about_to_run=about_to_run)
        vm, client, berth, _ = stack.enter_context(started)
        machine = forker.machine(vm, client, record.seed, record.id, berth)
        args = {"wall_ns": time.time_ns(), "network": machine.network}
        client.call("wake", args, [os.urandom(ENTROPY_BYTES)], timeout_s=WAKE_TIMEOUT_S)
        machine.close_with(stack.pop_all())
    return machine


def _booted(store: Store, record: Record, forker: Forker, progress: Progress) -> Machine:
    """Boot a guest cold, because its volumes are in no snapshot; its memory is private from the beginning."""
    template = load_template(Path(record.template_path))
    folder = store.folder(record.id) / ORIGIN
    with contextlib.ExitStack() as stack:
        label = f"{record.origin.template} {record.id}"
        vm, client, berth, _ = stack.enter_context(
            warmup.booted(
                forker.boot,
                forker.engine,
                folder,
                label,
                progress,
                name=record.id,
                network=forker.boot.network,
                private=True,
            )
        )
        _mount(record, client)
        warmup.load_world(template, vm, client, progress)
        machine = forker.machine(vm, client, record.seed, record.id, berth)
        machine.adopt(os.urandom(ENTROPY_BYTES), reseed=True)
        machine.close_with(stack.pop_all())
    return machine


def _mount(record: Record, client: AgentClient) -> None:
    mounts = [
        {"disk": f"disk{number}", "path": mount.path, "read_only": mount.read_only}
        for number, mount in enumerate(record.volumes)
    ]
    try:
        client.call("mount", {"mounts": mounts}, timeout_s=WAKE_TIMEOUT_S)
    except AgentError as error:
        raise VolumeError(
            f"a volume of sandbox {record.id} cannot be mounted: {error.what}",
            cause="its last writer was killed before it could unmount it, and what is read-only cannot be recovered",
            hint="mount it once for writing, which recovers it", details=error.details,
        ) from None  # fmt: skip
