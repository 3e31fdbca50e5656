"""The sandbox: a microVM to run things in, by name, from any process of its user."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from microsim_vm import deterministic, owner, reaper
from microsim_vm import volumes as volume_store
from microsim_vm.cache import Cache
from microsim_vm.engines import memory
from microsim_vm.errors import ArgumentError, MicrosimError, SandboxGoneError, SandboxNotFoundError, SandboxStateError
from microsim_vm.guest import Guest
from microsim_vm.machine import checked
from microsim_vm.options import Options
from microsim_vm.sandbox import arguments, launch, live, saved
from microsim_vm.sandbox.arguments import Volumes
from microsim_vm.sandbox.facts import Facts
from microsim_vm.sandbox.live import Live
from microsim_vm.sandbox.origin import Origin
from microsim_vm.sandbox.saved import SavedSnapshot
from microsim_vm.sandbox.store import Record, Store, new_id
from microsim_vm.sandbox.visitor import Visitor
from microsim_vm.snapshots import FileRecord
from microsim_vm.templates import find_template, search_path
from microsim_vm.tools import Progress
from microsim_vm.world import warm

TTL_S = 3600.0
SETTLE_S = 900.0  # for somebody else to start or wake it: longer than the queue for memory
ATTEMPTS = 6  # a sandbox may be hibernated or woken by somebody else between two looks
Result = TypeVar("Result")


@dataclass(frozen=True)
class ForkResult:
    """One child of :meth:`Sandbox.fork_tree`: a sandbox, or why there is none.

    Attributes:
        index: Which child, from 0.
        sandbox: The child.
        error: Why it could not be started.
    """

    index: int
    sandbox: Sandbox | None
    error: MicrosimError | None


class Sandbox(Guest, Facts):
    """A microVM with a name; a context manager that kills it at the end unless it is persistent.

    It ends with the process that made it, and when nobody has used it for ``ttl_seconds``. One that is persistent
    does neither: it has a small process of its own. Any process of the same user finds it with :meth:`get`.
    One that hibernates wakes by itself at the next request.

    Attributes:
        filesystem: The guest's files.
    """

    def __init__(self, store: Store, record: Record) -> None:
        Guest.__init__(self, _Caller(self))
        Facts.__init__(self, store, record)
        self._changes = threading.RLock()
        self._visitor: Visitor | None = None

    @classmethod
    def create(
        cls,
        template: str | os.PathLike[str] | None = None,
        *,
        ttl_seconds: float | None = TTL_S,
        metadata: Mapping[str, str] | None = None,
        persistent: bool = False,
        from_snapshot: str | SavedSnapshot | None = None,
        volumes: Volumes | None = None,
        vcpus: int | None = None,
        memory_mib: int | None = None,
        seed: int | None = None,
        detached: bool = False,
        hibernate_after: float | None = None,
        templates: Sequence[Path] = (),
        options: Options | None = None,
        progress: Progress | None = None,
    ) -> Sandbox:
        """Make a sandbox: fork it from its template's snapshot, which is baked and warmed where it is not there yet.

        Args:
            template: A template's name, or the path of its folder; "base" where there is no ``from_snapshot``.
            ttl_seconds: Idle seconds after which it is killed; None for never.
            metadata: Words of your own.
            persistent: It outlives this process and the context manager, and is never killed for being idle.
            from_snapshot: A saved snapshot, or its id, to fork in place of a template.
            volumes: Where to mount which volume: ``{"/data": "results"}``, or ``Mount(volume, path, read_only)`` as
                the value. Such a sandbox boots cold, because a snapshot knows no volumes.
            vcpus: Processors, in place of the template's.
            memory_mib: Memory in MiB, in place of the template's.
            seed: Decides every simulation generator; a random one by default.
            detached: It outlives this process, and still has its time to live.
            hibernate_after: Idle seconds after which it hibernates; None for never.
            templates: Folders to look for templates in, before ``templates/`` and those that are shipped.
            options: Engine, isolation, cache.
            progress: Takes one-line texts while something takes long.

        Raises:
            ArgumentError: An argument is none that it takes; a ValueError too.
            TemplateError: The template is unusable.
            BakeError: Its image cannot be built.
            WarmUpError: Its world cannot be loaded.
            SnapshotError: There is no such snapshot.
            SnapshotMismatchError: The snapshot is another machine's.
            VolumeError: A volume cannot be mounted.
            CapacityError: Other guests hold the memory.
            IsolationError: What works here is weaker than what ``options`` ask for.
            EngineError: The engine or the guest failed.
        """
        options = options or Options()
        progress = progress or _silent
        store = Store(Cache.of(options))
        mounts = arguments.mounts(volumes)
        shape = arguments.shape(vcpus=vcpus, memory_mib=memory_mib)
        settings = arguments.life(
            metadata=metadata, persistent=persistent, detached=detached, ttl_seconds=ttl_seconds,
            hibernate_after=hibernate_after,
        )  # fmt: skip
        if from_snapshot is not None:
            if template or mounts or shape:
                raise ArgumentError("a snapshot has its template, machine and volumes in it: give from_snapshot alone")
            name = from_snapshot.id if isinstance(from_snapshot, SavedSnapshot) else from_snapshot
            reaper.reap(store.cache)
            snapshot = saved.get(store.cache, name)
            record = _record(snapshot.origin, seed, from_snapshot=name, base=snapshot.files.get(memory.RAM), **settings)
            source = saved.folder_of(store.cache, name)
            return cls._start(store, record, lambda folder: _link(source, folder), progress)
        found = find_template(str(template or "base"), search_path(templates, Path.cwd()))
        found = msgspec.structs.replace(found, machine=msgspec.structs.replace(found.machine, **shape))
        if options.deterministic or found.deterministic:
            raise deterministic.refused("no sandboxes", "what lives on its own is asked things at the host's times")
        volume_store.need_slots(len(mounts), network=found.network != "none")
        world = warm(found, options, progress, needs=["volumes"] if mounts else [])
        origin = Origin.of(world.forker, world.digest)
        if mounts:
            record = _record(origin, seed, boot_mode="cold", volumes=mounts, template_path=str(found.path), **settings)
            return cls._start(store, record, lambda _: None, progress)
        record = _record(origin, seed, base=world.snapshot.manifest.files.get(memory.RAM), **settings)
        return cls._start(store, record, lambda folder: _link(world.snapshot.directory, folder), progress)

    @classmethod
    def list(cls, options: Options | None = None) -> Sandboxes:
        """Return all sandboxes of this user's cache, oldest first; what dead processes left is removed first."""
        store = Store(Cache.of(options))
        reaper.reap(store.cache)
        return [cls(store, record) for record in store.records()]

    @classmethod
    def get(cls, id: str, options: Options | None = None) -> Sandbox:
        """Return the sandbox of this id, or the only one whose id begins so.

        Raises:
            SandboxNotFoundError: There is none; the message lists those that there are.
        """
        store = Store(Cache.of(options))
        reaper.reap(store.cache)
        return cls(store, store.find(id))

    def kill(self) -> None:
        """End it and remove all that is its, hibernated or not; volumes stay. May be called again."""
        while self._store.read(self.id) is not None:
            here = live.find(self._store, self.id)
            record = self._store.read(self.id)
            try:
                if here is not None:
                    here.kill()
                elif record is not None and record.status in ("starting", "waking"):
                    self._store.remove(self.id)  # who is about to start it finds no record, and gives up
                elif record is not None and record.owner is not None and record.owner.alive():
                    self._visit(record).kill()
                else:
                    with self._store.locked(self.id):
                        if self._store.read(self.id) == record:  # nobody woke it meanwhile
                            self._store.remove(self.id)
            except SandboxNotFoundError:
                continue  # hibernated, woken or killed in this very moment: look again
        self._leave()

    def pause(self) -> None:
        """Stop its processors until :meth:`resume`; requests are refused meanwhile. May be called again.

        Raises:
            SandboxNotFoundError: It was killed.
        """
        self._retried(lambda seat: seat.pause())

    def resume(self) -> None:
        """Let it run on after :meth:`pause`.

        Raises:
            SandboxNotFoundError: It was killed.
        """
        self._retried(lambda seat: seat.resume())

    def hibernate(self) -> None:
        """Write it to the disk and free its memory; contents and running processes stay as they are.

        The guest flushes its files first. A command that runs at this moment goes on when the sandbox wakes, and
        whoever waits for it gets a CommandInterruptedError. Volumes stay claimed. May be called again.

        Raises:
            SnapshotError: The guest cannot flush, or there is no space; it stays up.
            SandboxStateError: It is paused.
            SandboxNotFoundError: It was killed.
        """
        for _ in range(ATTEMPTS):
            if self.status == "hibernated":
                return
            with contextlib.suppress(SandboxGoneError):  # somebody else hibernated it, or woke it: look again
                self._seat().hibernate()
            self._leave()
        raise SandboxGoneError(f"sandbox {self.id} is handed from process to process", hint="use it in one of them")

    def wake(self, progress: Progress | None = None) -> Sandbox:
        """Let it go on where it was hibernated; does nothing where it runs. Every request does it by itself.

        Raises:
            SnapshotMismatchError: It was hibernated on another engine or processor.
            SnapshotError: Its files are damaged.
            CapacityError: Other guests hold the memory.
            SandboxNotFoundError: It was killed.
        """
        self._seat(progress or _silent)
        return self.refresh()

    def snapshot(self, name: str | None = None, metadata: Mapping[str, str] | None = None) -> SavedSnapshot:
        """Save the present moment, memory, files and processes, for :meth:`create` with ``from_snapshot``.

        It is also what :meth:`fork` starts from, until something else is asked of this sandbox.

        Args:
            name: The snapshot's id; one that sorts by time by default.
            metadata: Words of your own.

        Raises:
            SnapshotError: The guest cannot be copied now, there is no space, or the name is taken.
            SandboxStateError: It is paused, or writes to a volume.
            SandboxNotFoundError: It was killed.
        """
        return self._retried(lambda seat: seat.snapshot(name, metadata or {}))

    def fork(
        self,
        seed: int | None = None,
        *,
        ttl_seconds: float | None = TTL_S,
        metadata: Mapping[str, str] | None = None,
        persistent: bool = False,
        detached: bool = False,
        hibernate_after: float | None = None,
        progress: Progress | None = None,
    ) -> Sandbox:
        """Start another sandbox from this one as it is now: memory, files, processes, an episode under way.

        The present moment is copied once, and again when something was asked of this sandbox since, so that many
        forks of a sandbox at rest cost one copy. The copy holds the pages that it has written; all else is shared.

        Args:
            seed: Decides every simulation generator of the child; a random one by default.
            ttl_seconds: Idle seconds after which the child is killed; None for never.
            metadata: Words of your own; this sandbox's by default.
            persistent: The child outlives this process, and is never killed for being idle.
            detached: The child outlives this process, and still has its time to live.
            hibernate_after: Idle seconds after which the child hibernates; None for never.
            progress: Takes one-line texts.

        Raises:
            SnapshotError: The guest cannot be copied now.
            SandboxStateError: It is paused, or writes to a volume.
            CapacityError: Other guests hold the memory.
            SandboxNotFoundError: It was killed.
            EngineError: The engine or the guest failed.
        """
        parent = self._record
        settings = arguments.life(
            metadata=parent.metadata if metadata is None else metadata, persistent=persistent, detached=detached,
            ttl_seconds=ttl_seconds, hibernate_after=hibernate_after,
        )  # fmt: skip
        record = _record(parent.origin, seed, from_snapshot=self.id, volumes=parent.volumes, **settings)
        return self._start(
            self._store, record,
            lambda folder: self._retried(lambda seat: seat.link_fork_point(folder)), progress or _silent,
        )  # fmt: skip

    def fork_tree(
        self, n: int, *, seeds: Iterable[int] | None = None, workers: int | None = None, **settings: Any
    ) -> ForkResults:
        """Fork this sandbox ``n`` times, several at a time.

        Args:
            n: How many.
            seeds: One for each child; random ones by default.
            workers: Forks at a time; the number of processors by default.
            settings: As for :meth:`fork`.

        Returns:
            One result per child, in order: a sandbox, or the error for which there is none.

        Raises:
            ArgumentError: ``n`` is less than 1, or there are not as many seeds.
        """
        wanted: Sequence[int | None] = [None] * n if seeds is None else [*seeds]
        if n < 1 or len(wanted) != n:
            raise ArgumentError(f"{n} children with {len(wanted)} seeds: n is 1 or more, and each child has a seed")

        made: Sandboxes = []

        def child(index: int) -> ForkResult:
            try:
                sandbox = self.fork(wanted[index], **settings)
                made.append(sandbox)
                return ForkResult(index, sandbox, None)
            except MicrosimError as error:
                return ForkResult(index, None, error)

        try:
            with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
                return [*pool.map(child, range(n))]
        except BaseException:  # Ctrl-C above all: nobody would know of these children
            for sandbox in made:
                sandbox.kill()
            raise

    def logs(self) -> str:
        """Return the tail of the guest's console.

        Raises:
            SandboxNotFoundError: It was killed.
        """
        return self._retried(lambda seat: seat.console())

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.persistent:
            self._leave()
        else:
            self.kill()

    def __repr__(self) -> str:
        return f"<Sandbox {self.id} of {self.template}>"

    @classmethod
    def _start(
        cls, store: Store, record: Record, link: Callable[[Path], FileRecord | None], progress: Progress
    ) -> Sandbox:
        """Found a sandbox, put what it starts from into its folder, and start it."""
        with launch.founded(store, record.id) as folder:
            base = link(folder) or record.base
            here = owner.Process.current()
            record = msgspec.structs.replace(record, owner=here, maker=here, base=base)
            store.write(record)
            volume_store.claim(store.cache, record.volumes, record.id, store.exists)
            return cls(store, launch.started(store, record, progress))

    def _seat(self, progress: Progress = lambda _: None) -> Live | Visitor:
        """Return where the sandbox lives, having woken it where it hibernates."""
        here = live.find(self._store, self.id)
        if here is not None:
            return here
        record = self._settled()
        if record is not None and record.status == "hibernated":
            record = launch.woken(self._store, self.id, progress)
        here = live.find(self._store, self.id)
        if here is not None:
            return here
        if record is None or not self._store.exists(self.id):
            self._store.find(self.id)  # raises
            raise SandboxNotFoundError(f"sandbox {self.id} ended with its process", hint="see microsim ls")
        return self._visit(record)

    def _settled(self) -> Record | None:
        """Return what is known of it, once nobody is about to start or wake it.

        Raises:
            SandboxStateError: That takes too long.
        """
        deadline = time.monotonic() + SETTLE_S
        record = self._store.read(self.id)
        while record is not None and record.status in ("starting", "waking"):
            if not self._store.exists(self.id):
                self._store.reap()  # whoever was about to has died
            if time.monotonic() > deadline:
                raise SandboxStateError(
                    f"sandbox {self.id} has been {record.status} for {SETTLE_S:.0f} s",
                    cause="it waits for memory, or the process that starts it hangs", hint=f"microsim rm {self.id}",
                )  # fmt: skip
            time.sleep(0.01)
            record = self._store.read(self.id)
        return record

    def _visit(self, record: Record) -> Visitor:
        if record.owner == owner.Process.current():
            raise SandboxGoneError(f"sandbox {self.id} ends in this very moment")
        with self._changes:
            if self._visitor is None or self._visitor.record.owner != record.owner:
                self._leave()
                self._visitor = Visitor(self._store, record)
            return self._visitor

    def _leave(self) -> None:
        with self._changes:
            if self._visitor is not None:
                self._visitor.close()
                self._visitor = None

    def _retried(self, request: Callable[[Live | Visitor], Result]) -> Result:
        for attempt in range(ATTEMPTS):
            try:
                return request(self._seat())
            except SandboxGoneError:
                self._leave()
                time.sleep(0.01 * 2**attempt)
        raise SandboxGoneError(f"sandbox {self.id} is handed from process to process", hint="use it in one of them")


class _Caller:
    """The way to a sandbox's agent, wherever the sandbox lives at the moment of each request."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def call(
        self,
        op: str,
        args: dict[str, Any] | None = None,
        blobs: Sequence[bytes] = (),
        *,
        timeout_s: float,
        on_event: Callable[[str, bytes], None] | None = None,
    ) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        """Make one request; a sandbox that hibernates wakes for it."""
        return self._sandbox._retried(lambda seat: seat.call(op, args, blobs, timeout_s=timeout_s, on_event=on_event))


def _record(origin: Origin, seed: int | None, **settings: Any) -> Record:
    chosen = int.from_bytes(os.urandom(8), "little") if seed is None else checked(seed)
    return Record(new_id(), origin, "starting", time.time(), chosen, **settings)


def _link(source: Path, folder: Path) -> None:
    """Give a snapshot's files second names, which keep them when the snapshot is deleted."""
    for path in source.iterdir():
        if path.name != saved.MANIFEST:
            os.link(path, folder / path.name)


def _silent(_: str) -> None:
    """Say nothing."""


# Inside the class ``list`` is the method.
Sandboxes = list[Sandbox]
ForkResults = list[ForkResult]
