"""Start microVMs from a snapshot, or from a running fork, and make each a guest of its own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from microsim_vm import admission, runtime
from microsim_vm.agent import AgentClient
from microsim_vm.cache import Cache, need_space
from microsim_vm.engines.base import Boot, Engine, Vm
from microsim_vm.machine import Machine, checked
from microsim_vm.templates.spec import Template

ENTROPY_BYTES = 64


@dataclass(frozen=True)
class Forker:
    """Forks of one template's snapshots.

    Attributes:
        template: What the snapshots were made from.
        engine: What runs them.
        boot: The machine they need.
        cache: Where the copy of a running fork lies for a moment.
    """

    template: Template
    engine: Engine
    boot: Boot
    cache: Cache

    def fork(self, folder: Path, seed: int, *, reseed: bool = True) -> Machine:
        """Start a microVM from the snapshot in a folder. See :meth:`microsim_vm.world.WarmWorld.fork`."""
        seed = checked(seed)
        with contextlib.ExitStack() as stack:
            label = f"{self.template.name} seed {seed}"
            file, record = stack.enter_context(admission.admitted(self.template.machine.memory_mib, label))
            started = time.monotonic()
            vm = self.engine.fork(self.boot, folder)
            stack.callback(vm.kill)
            runtime.started(file, record, vm.pid)
            client = AgentClient(vm)
            stack.callback(client.close)
            machine = Machine(
                vm, client, seed=seed, limits=self.template.controller, branch=lambda n: self._branch(vm, machine, n)
            )
            answered = time.monotonic()
            machine.adopt(os.urandom(ENTROPY_BYTES), reseed=reseed)
            now = time.monotonic()
            machine.timings["fork"] = (now - started) * 1000.0
            machine.timings.update({f"fork.{phase}": ms for phase, ms in vm.phases_ms.items()})
            machine.timings["fork.first answer"] = (now - answered) * 1000.0
            machine.close_with(stack.pop_all())
            return machine

    def _branch(self, vm: Vm, parent: Machine, count: int) -> list[Machine]:
        """Start ``count`` forks of a running fork, each with a seed derived from its parent's."""
        memory = self.template.machine.memory_mib
        # The stream and the memory file that it becomes exist side by side for a moment.
        need_space(self.cache.root, 2 * memory << 20, f"a fork of {parent.id}")
        with self.cache.staging("branch") as folder, contextlib.ExitStack() as stack:
            self.engine.branch(vm, self.boot, folder)
            children = [stack.enter_context(self.fork(folder, _child_seed(parent, number))) for number in range(count)]
            # The children have the files mapped, which outlive their names.
            stack.pop_all()
            return children


def _child_seed(parent: Machine, number: int) -> int:
    digest = hashlib.sha256(f"{parent.seed}:{parent.branches}:{number}".encode()).digest()
    return int.from_bytes(digest[:8], "little")
