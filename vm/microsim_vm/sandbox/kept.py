"""Keep a rollout's microVM as it is at this moment: as a sandbox that hibernates, and wakes when somebody looks."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import msgspec

from microsim_vm import digests, owner
from microsim_vm.cache import need_space
from microsim_vm.engines import memory
from microsim_vm.errors import EngineError
from microsim_vm.forks import Forker
from microsim_vm.machine import Machine
from microsim_vm.sandbox import launch, saved
from microsim_vm.sandbox.origin import Origin
from microsim_vm.sandbox.store import HIBERNATED, Hibernation, Record, Store, new_id


def keep(forker: Forker, machine: Machine, digest: str, metadata: Mapping[str, str]) -> Record:
    """Leave a hibernated sandbox that is a copy of a machine as it is now; the machine runs on.

    Args:
        forker: What forked it.
        machine: The machine, the only one of its rollout.
        digest: Its image's.
        metadata: What is written on the sandbox.

    Raises:
        EngineError: The rollout has several machines.
        SnapshotError: It cannot be copied now.
        NoSpaceError: The copy would not fit into the cache.
    """
    if len(machine.machines) > 1:
        raise EngineError(
            "a rollout of several machines cannot be kept", cause="each would wake on a network of its own"
        )
    store = Store(forker.cache)
    need_space(store.cache.root, forker.saved_bytes, f"keeping a rollout of {forker.name}")
    record = Record(
        new_id(), Origin.of(forker, digest), "starting", time.time(), machine.seed, metadata=dict(metadata),
        persistent=True, detached=True, owner=owner.Process.current(),
    )  # fmt: skip
    with launch.founded(store, record.id) as origin:
        store.write(record)
        with store.cache.staging("hibernate") as staging:
            forker.copy(*machine.guest, staging)
            if forker.engine.memory_file is not None:  # another name, for copies of it once it is awake
                os.link(staging / memory.RAM, origin / memory.RAM)
            image = Hibernation(owner.boot_id(), saved.seal(staging))
            digests.write_atomically(staging / saved.MANIFEST, msgspec.json.encode(image))
            os.rename(staging, store.folder(record.id) / HIBERNATED)
            staging.mkdir()  # its owner removes it
        kept = record.asleep()
        store.write(kept)
        return kept
