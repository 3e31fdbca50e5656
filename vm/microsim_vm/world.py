"""A warmed world: what everything above this layer starts from."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from microsim_vm import controllers, deterministic, reaper, snapshots, together, warmup
from microsim_vm.ahead import Ahead
from microsim_vm.cache import Cache
from microsim_vm.engines import select
from microsim_vm.engines.base import Ability, Boot
from microsim_vm.engines.select import Choice
from microsim_vm.episode import EpisodeRecord
from microsim_vm.forks import Forker
from microsim_vm.machine import Machine, checked
from microsim_vm.options import Options
from microsim_vm.snapshots import Snapshot
from microsim_vm.templates import bake
from microsim_vm.templates import lock as locks
from microsim_vm.templates.bake import Image
from microsim_vm.templates.spec import Kernel, Template
from microsim_vm.tools import Progress


class WarmWorld:
    """A world that is loaded and can be forked. Made by :func:`warm`.

    Attributes:
        template: What it was made from.
        digest: The image's digest, hex.
        snapshot: What is forked.
        reused: The snapshot was there already; nothing was booted.
        engine_line: Engine, accelerator, isolation, and why.
        findings: Generators that every fork would repeat, found at the warm-up.
        forker: What starts the forks.
        others: The worlds of the rollout's other machines, by their names.
    """

    def __init__(
        self, template: Template, image: Image, choice: Choice, snapshot: Snapshot, forker: Forker, *, reused: bool,
        others: Mapping[str, WarmWorld] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.template = template
        self.digest = image.digest
        self.snapshot = snapshot
        self.reused = reused
        self.engine_line = choice.line()
        self.findings = snapshot.manifest.warmup.findings
        self.forker = forker
        self.others = others
        self._ahead = Ahead(forker, snapshot.directory)

    def fork(
        self, seed: int, *, reseed: bool = True, wall_clock: float | Literal["template", "now"] = "template",
        schedule: int | None = None,
    ) -> Machine:  # fmt: skip
        """Start a microVM from the snapshot, with randomness of its own.

        Args:
            seed: Decides every simulation generator of the fork; 0 or more, of any size.
            reseed: False leaves every generator, the kernel's too, as the snapshot had it: all forks then draw
                the same numbers. For showing that trap, and nothing else.
            wall_clock: Where the guest's wall clock starts: in seconds since 1970, or "now"; by default where the
                template says, see :attr:`wall_clock`.
            schedule: Of a deterministic machine, which interleaving of its threads; any number, 0 or more. By default
                it follows from the seed.

        Returns:
            The machine; close it, or use it as a context manager.

        Raises:
            SeedError: No usable seed, or schedule.
            DeterminismError: A schedule of a machine that is not deterministic, or "now" for one that is.
            MemoryBudgetError: Other guests hold the memory.
            NetworkError: The template has a network, and this machine can make none.
            SubnetsExhaustedError: Other islands hold the addresses.
            SnapshotError: Somebody emptied the cache.
            EngineError: The engine or the guest failed.
        """
        start = {"template": self.wall_clock, "now": None}[wall_clock] if isinstance(wall_clock, str) else wall_clock
        snapshots.use(self.snapshot)
        if self.deterministic or schedule is not None:
            return deterministic.fork(
                self.forker, self.snapshot.directory, seed, schedule=schedule, reseed=reseed, wall_clock=start
            )
        if self.others:
            members = {name: world.member for name, world in self.others.items()}
            return together.fork(self.member, members, seed, reseed=reseed, wall_clock=start)
        return self.forker.fork(self.snapshot.directory, seed, reseed=reseed, wall_clock=start, held=self._ahead.take())

    @property
    def deterministic(self) -> bool:
        """Whether every bit of its forks follows from the snapshot and their seeds."""
        return self.forker.engine.deterministic

    @property
    def wall_clock(self) -> float | None:
        """Where the wall clocks of its forks start, in seconds since 1970.

        None for the present: the template says so, or the engine's guests have the host's clock and no other.
        """
        forkers = [self.forker, *(world.forker for world in self.others.values())]
        if any("wall clock" in forker.engine.lacks for forker in forkers):
            return None
        return self.template.wall_clock_start

    @property
    def member(self) -> together.Member:
        """What one of its machines is forked from.

        Raises:
            SnapshotError: Somebody emptied the cache.
        """
        snapshots.use(self.snapshot)
        return together.Member(self.forker, self.snapshot.directory)

    def prepare(self) -> None:
        """Start the next fork now, in the background: the next :meth:`fork` then only has to give it its seed.

        At most one is held, and none of a world of several machines; it is given up where another guest of this
        process would have to wait for its memory.
        """
        if not self.others and not self.deterministic:
            self._ahead.start()

    def map(
        self, controller: str | os.PathLike[str], seeds: Iterable[int], *, workers: int | None = None,
        max_steps: int = 1000,
    ) -> list[EpisodeRecord]:  # fmt: skip
        """Run one episode per seed, each in a fork of its own, several at a time.

        Args:
            controller: Path of the controller's file.
            seeds: The seeds.
            workers: Forks at a time; the number of processors by default.
            max_steps: Steps after which an episode is truncated.

        Returns:
            One record per seed, in the order of the seeds.

        Raises:
            SeedError: A seed is unusable.
            LimitsError: ``max_steps`` is no number of steps.
            ControllerError: The controller cannot be read.
            MicrosimError: A fork or the world failed.
        """
        controllers.check_lengths(max_steps)
        given = controllers.read(Path(controller), controllers.kind_of(controller))
        chosen = [checked(seed) for seed in seeds]

        live: set[Machine] = set()
        stopped = threading.Event()

        def run(seed: int) -> EpisodeRecord:
            with self.fork(seed) as machine:
                live.add(machine)
                try:
                    if stopped.is_set():
                        raise CancelledError
                    return machine.run_episode(
                        given.data, filename=given.filename, kind=given.kind, max_steps=max_steps
                    )
                finally:
                    live.discard(machine)

        with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
            futures = [pool.submit(run, seed) for seed in chosen]
            try:
                return [future.result() for future in futures]
            except BaseException:  # Ctrl-C above all: the pool waits for its threads, and they for their guests
                stopped.set()
                for future in futures:
                    future.cancel()
                for machine in list(live):
                    machine.close()
                raise

    def close(self) -> None:
        """Release the world. The snapshot stays on disk for the next session."""
        self._ahead.close()
        for world in self.others.values():
            world.close()


def abilities_of(template: Template) -> list[Ability]:
    """Return what a template needs of the engine that runs it."""
    return [] if template.kernel == Kernel() else ["kernel"]


def known_engine(options: Options) -> str | None:
    """Return the line of the engine that these options lead to, as far as is known since the host's boot.

    Nothing is probed, started or written for it.
    """
    return select.recall(options.asked, Cache.of(options))


def warm(template: Template, options: Options, progress: Progress, *, needs: Sequence[Ability] = ()) -> WarmWorld:
    """Return the template's warmed world, baking and booting only what is not there yet.

    Args:
        template: The world's template.
        options: How.
        progress: Takes one-line texts; a first bake takes a minute or more.
        needs: What the engine must be able to do.

    Raises:
        DeterminismError: A deterministic machine was asked for, and something else with it that cannot be.
        BakeError: The image cannot be built.
        LockDriftError: ``options.locked`` and an input has changed.
        EngineUnavailableError: The engine or isolation asked for does not work here.
        UnsupportedByEngineError: The engine asked for cannot do what is needed.
        WarmUpError: The world cannot be loaded.
        MissingToolError: A program is not installed; the hint is the install command.
    """
    select.check(options.engine, options.accel, options.isolation)
    exactly = options.deterministic or template.deterministic
    if exactly:
        select.check_deterministic(options.engine, options.accel)
        deterministic.check_template(template)
    cache = Cache.of(options)
    for line in reaper.reap(cache):
        progress(f"removed what a dead process had left: {line}")
    image = bake.bake(template, cache, locked=options.locked, progress=progress)
    probe = Boot(image.kernel, image.initramfs, {}, 1, 128)
    needed = [*abilities_of(template), *needs]
    choice = select.choose(
        options.engine, options.accel, options.isolation, probe=probe, cache=cache, progress=progress,
        needs=needed, deterministic=exactly,
    )  # fmt: skip
    if not needed and not exactly:  # else a world of the same options may have another engine
        select.remember(choice, options.asked, cache)
    if choice.engine.name == "gvisor" and locks.pin_gvisor(
        template.path.parent, template.name, choice.engine.identity()["version"], locked=options.locked
    ):
        progress(f"wrote {template.path.parent / locks.FILENAME}: the kernel of gVisor's guests")
    snapshot, reused = warmup.ensure(
        template,
        image,
        choice.engine,
        cache,
        session_id=options.session_id,
        progress=progress,
        subnets=options.subnets,
    )
    forker = Forker(
        template.name, template.controller, choice.engine, snapshots.boot_of(image, template), cache, options.subnets,
        options.capture, template.score,
    )  # fmt: skip
    others = {
        name: warm(other, options, lambda line, name=name: progress(f"{name}: {line}"))  # type: ignore[misc]
        for name, other in template.others.items()
    }
    return WarmWorld(template, image, choice, snapshot, forker, reused=reused, others=others)
