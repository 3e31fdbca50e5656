"""Several machines of one rollout: each forked from its own snapshot, all on one island, gone together."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from microsim_vm import admission
from microsim_vm.errors import EngineError
from microsim_vm.forks import Forker
from microsim_vm.islands.island import ALONE
from microsim_vm.machine import Machine, derived_seed


class Member(NamedTuple):
    """What one machine is forked from.

    Attributes:
        forker: What forks it.
        folder: Its snapshot.
    """

    forker: Forker
    folder: Path


def fork(
    first: Member, others: Mapping[str, Member], seed: int, *, reseed: bool, wall_clock: float | None
) -> Machine:  # fmt: skip
    """Fork all machines of a rollout, and return the first; the others end with it, and are in its ``machines``.

    Args:
        first: The template's own.
        others: The further ones by name.
        seed: The first one's; each other one's is derived from it and its name.
        reseed: See :meth:`microsim_vm.world.WarmWorld.fork`.
        wall_clock: Likewise.

    Raises:
        NetworkError: No island can be made on this machine.
        MicrosimError: As forking one does.
    """
    forkers = [first.forker, *(member.forker for member in others.values())]
    label = f"{first.forker.name} seed {seed}, {len(forkers)} machines"
    with contextlib.ExitStack() as stack:
        # Promised together: rollouts that held some of their machines, and waited for the rest, would wait for ever.
        promised = admission.admitted(
            sum(forker.boot.memory_mib for forker in forkers), label,
            overhead_mib=sum(forker.engine.overhead_mib for forker in forkers), image=first.forker.boot.image,
        )  # fmt: skip
        stack.enter_context(promised)
        others_forkers = {name: member.forker for name, member in others.items()}
        island = stack.enter_context(first.forker.raised(others=others_forkers))
        if island is None:
            raise EngineError(f"the machines of {first.forker.name} have no network", hint="write network: island")
        machine = first.forker.fork(first.folder, seed, reseed=reseed, wall_clock=wall_clock, berth=island.berth(ALONE))
        stack.enter_context(machine.resources)
        machines = {ALONE: machine}
        clock = machine.wall_clock
        for name, member in others.items():
            other = member.forker.fork(
                member.folder,
                seed_of(seed, name),
                reseed=reseed,
                wall_clock=clock.present() if clock else None,  # that of the first, which has run on meanwhile
                berth=island.berth(name),
            )
            machines[name] = stack.enter_context(other)
        for each in machines.values():
            each.machines = machines
        machine.close_with(stack.pop_all())
        return machine


def seed_of(seed: int, name: str) -> int:
    """Return the seed of a rollout's other machine: derived, so that no two of one rollout draw the same numbers."""
    return derived_seed(seed, name)
