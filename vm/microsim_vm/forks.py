"""Start microVMs from a snapshot, or from a running fork, and make each a guest of its own."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from microsim_vm import admission, deterministic, endings, runtime
from microsim_vm.agent import AgentClient, Client
from microsim_vm.cache import Cache, naming_full_disk, need_space
from microsim_vm.engines.base import Boot, Engine, Vm, need, saved_bytes
from microsim_vm.errors import AgentTimeoutError, ChannelClosedError, EngineError
from microsim_vm.islands.island import ALONE, Berth, Island, raised
from microsim_vm.islands.subnets import WAIT_S as SUBNET_WAIT_S
from microsim_vm.machine import Machine, checked, derived_seed
from microsim_vm.templates.spec import ControllerLimits

ENTROPY_BYTES = 64
PCAP = "island.pcap"
RUNTIME_HINT = "free some space there, or set XDG_RUNTIME_DIR to a folder of your own on another disk"


class Started(NamedTuple):
    """A guest that has been started.

    Attributes:
        vm: The guest.
        client: Of its agent.
        berth: Its place in a network, where it has one.
        phases_ms: How long each step took.
    """

    vm: Vm
    client: AgentClient
    berth: Berth | None
    phases_ms: dict[str, float]


class Held(NamedTuple):
    """One that was started before it was needed, what ends it, and how long each step took since it is, ms."""

    started: Started
    holding: contextlib.ExitStack
    phases_ms: Mapping[str, float]


@dataclass(frozen=True)
class Forker:
    """Forks of one template's snapshots.

    Attributes:
        name: The template's name.
        limits: What its controllers may use.
        engine: What runs the snapshots.
        boot: The machine they need.
        cache: Where the copy of a running fork lies for a moment.
        subnets: The range that islands take their addresses from; "" for what the machine's user says.
        capture: Keep what passes in islands in a file beside the cache.
        score: The template's scorer, where it has one.
        drawn: The first random bytes of each fork's kernel so far.
    """

    name: str
    limits: ControllerLimits
    engine: Engine
    boot: Boot
    cache: Cache
    subnets: str = ""
    capture: bool = False
    score: Path | None = None
    drawn: set[str] = field(default_factory=set, repr=False, compare=False)

    def fork(
        self, folder: Path, seed: int, *, reseed: bool = True, wall_clock: float | None = None, name: str = "",
        held: Held | None = None, berth: Berth | None = None,
    ) -> Machine:  # fmt: skip
        """Start a microVM from the snapshot in a folder. See :meth:`microsim_vm.world.WarmWorld.fork`.

        Args:
            folder: The snapshot.
            seed: As there.
            reseed: As there.
            wall_clock: As there.
            name: The machine's; a new one where it is empty.
            held: A guest of that snapshot that was started before, and is used up whatever happens.
            berth: Its place on an island that is there already, whose maker has been promised its memory; one of its
                own by default.
        """
        with contextlib.ExitStack() as stack:
            if held is not None:
                stack.enter_context(held.holding)
            seed = checked(seed)
            if wall_clock is not None:
                need(self.engine, "wall clock")
            if held is None:
                started = self.started(folder, f"{self.name} {name or f'seed {seed}'}", name=name, berth=berth)
                vm, client, berth, phases = stack.enter_context(started)
            else:
                vm, client, berth, _ = held.started
                phases = dict(held.phases_ms)
            machine = self.machine(vm, client, seed, name, berth)
            answered = time.monotonic()
            with _saying_what_did_not_start(f"{self.name} {name or f'seed {seed}'}"):
                machine.adopt(os.urandom(ENTROPY_BYTES), reseed=reseed, wall_clock=wall_clock)
            if reseed:
                self._refuse_copies(machine)
            phases["first answer"] = (time.monotonic() - answered) * 1000.0
            machine.timings["fork"] = sum(phases.values())
            machine.timings.update({f"fork.{phase}": ms for phase, ms in phases.items()})
            machine.close_with(stack.pop_all())
            return machine

    def _refuse_copies(self, machine: Machine) -> None:
        """Refuse a fork whose kernel gives what another one's has given: it was not reseeded, whatever it said."""
        if machine.drawn in self.drawn:
            raise EngineError(
                f"a fork of {self.name} repeats the random bytes of another one's kernel",
                cause=f"{self.engine.describe()} copies the kernel's random state, and reseeding it did nothing",
                hint="choose another engine; microsim doctor tries each",
            )
        self.drawn.add(machine.drawn)

    @contextlib.contextmanager
    def started(
        self, folder: Path, label: str, *, name: str = "", berth: Berth | None = None,
        about_to_run: Callable[[], None] = lambda: None, wait_s: float = admission.WAIT_S,
    ) -> Iterator[Started]:  # fmt: skip
        """Let a saved guest run: yield it and its client, and end it where the block does not take its holders over.

        Args:
            folder: Where it is saved.
            label: What it is for, one line.
            name: What its addresses are derived from; a new one where it is empty.
            berth: As for :meth:`fork`.
            about_to_run: Called when all is ready but the guest has done nothing yet.
            wait_s: How long it may wait for memory.
        """
        if self.engine.deterministic:
            raise deterministic.refused("no life between two requests", "it would be asked things at the host's times")
        phases: dict[str, float] = {}
        with contextlib.ExitStack() as stack:
            with naming_full_disk("the record of a guest", runtime.folder(), RUNTIME_HINT):
                image = self.boot.image
                if berth is None:
                    overhead_mib = self.engine.overhead_mib
                    file, record = stack.enter_context(
                        admission.admitted(
                            self.boot.memory_mib, label, overhead_mib=overhead_mib, image=image, wait_s=wait_s
                        )
                    )
                    began = time.monotonic()
                    alone = stack.enter_context(self.raised(name, wait_s=min(wait_s, SUBNET_WAIT_S)))
                    berth = alone.berth(ALONE) if alone else None
                    phases["island"] = (time.monotonic() - began) * 1000.0
                else:
                    file, record = stack.enter_context(admission.noted(label, image=image))
                with _saying_what_did_not_start(label):
                    vm = self.engine.fork(self.boot, folder, berth.plug if berth else None)
                    stack.callback(vm.kill)
                    about_to_run()
                    self.engine.resume(vm)
                runtime.started(file, record, vm.pid, berth.record() if berth else None)
                client = AgentClient(vm)
                stack.callback(client.close)
            yield Started(vm, client, berth, {**phases, **vm.phases_ms})

    @contextlib.contextmanager
    def raised(
        self, name: str = "", others: Mapping[str, Forker] = MappingProxyType({}), *, wait_s: float = SUBNET_WAIT_S
    ) -> Iterator[Island | None]:
        """Yield an island for a rollout; None where the template has no network.

        Args:
            name: What its addresses are derived from; a new one where it is empty.
            others: What forks the rollout's other machines, by their names.
            wait_s: How long it may wait for addresses.

        Raises:
            NetworkError: It cannot be made on this machine.
            SubnetsExhaustedError: There is no free subnet.
        """
        wires = {ALONE: self.engine.wire, **{each: forker.engine.wire for each, forker in others.items()}}
        with contextlib.ExitStack() as stack:
            named = name or uuid.uuid4().hex
            found = stack.enter_context(raised(self.boot.network, named, wires, pool=self.subnets, wait_s=wait_s))
            if found is not None and self.capture:
                found.capture(stack.enter_context(self.cache.staging("capture")) / PCAP)
            yield found

    @property
    def saved_bytes(self) -> int:
        """What a copy of a guest may take on the disk."""
        return saved_bytes(self.engine, self.boot.memory_mib)

    def machine(
        self, vm: Vm, client: Client, seed: int, name: str = "", berth: Berth | None = None
    ) -> Machine:  # fmt: skip
        """Return a running guest as a machine that can be forked."""
        machine = Machine(
            vm, client, seed=seed, limits=self.limits, name=name, berth=berth,
            branch=lambda n: self._branch(machine, n), score=self.score,
        )  # fmt: skip
        return machine

    def copy(self, vm: Vm, client: Client, folder: Path) -> None:
        """Write a running fork into an empty folder, to be forked from there; it runs on.

        Raises:
            SnapshotError: It cannot be copied now.
            NoSpaceError: The pages that it has written might not fit.
        """
        need_space(folder, self.saved_bytes, f"a copy of {self.name}")
        with client.quiesced():
            try:
                self.engine.branch(vm, folder)
            finally:
                self.engine.resume(vm)

    def _branch(self, parent: Machine, count: int) -> list[Machine]:
        """Start ``count`` forks of a running fork, each with a seed derived from its parent's."""
        children: list[Machine] = []
        with self.cache.staging("branch") as folder, contextlib.ExitStack() as stack:
            self.copy(*parent.guest, folder)
            for number in range(count):
                # One that was started elsewhere goes on from there, as all that the copy remembers does.
                present = parent.wall_clock.present() if parent.wall_clock else None
                children.append(stack.enter_context(self.fork(folder, child_seed(parent, number), wall_clock=present)))
            # Those that share the files have them mapped, and the files outlive their names.
            stack.pop_all()
            return children


@contextlib.contextmanager
def _saying_what_did_not_start(label: str) -> Iterator[None]:
    """Let an error say which guest it was, and give it a cause and a next step where it has none."""
    try:
        yield
    except (EngineError, ChannelClosedError, AgentTimeoutError) as error:
        cause = "" if error.cause else "its engine crashed, or was killed, as by the host's kernel when memory runs out"
        hint = "try again; microsim doctor tries each engine" if error.cause else endings.ENGINE.hint
        raise type(error)(
            f"the guest for {label} did not start: {error.what}", cause=error.cause or cause, hint=error.hint or hint,
            details=error.details,
        ) from error  # fmt: skip


def child_seed(parent: Machine, number: int) -> int:
    """Return the seed of the next fork of a machine: derived from its own, so that a run repeats."""
    return derived_seed(parent.seed, parent.branches, number)
