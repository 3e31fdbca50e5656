"""A sandbox whose guest belongs to this process."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from microsim_vm import digests, owner
from microsim_vm.cache import need_space
from microsim_vm.engines import memory
from microsim_vm.errors import (
    AgentError,
    ChannelClosedError,
    MicrosimError,
    NoSpaceError,
    SandboxGoneError,
    SandboxStateError,
)
from microsim_vm.forks import Forker
from microsim_vm.machine import Machine
from microsim_vm.sandbox import saved
from microsim_vm.sandbox.saved import SavedSnapshot
from microsim_vm.sandbox.store import HIBERNATED, Hibernation, Record, Status, Store
from microsim_vm.snapshots import FileRecord

FORK_POINT = "forkpoint"
SPARE_BYTES = 64 << 20
UNMOUNT_S = 15.0
# Requests that leave the guest as it is: what was copied before them is still what a copy would give.
READ_ONLY = frozenset({"ping", "files.read", "files.list", "files.stat", "exec.confirm", "terminal.confirm"})
# Those that last as long as what they run; hibernation waits for all others.
COMMANDS = frozenset({"exec", "terminal.run"})
BRIEF_S = 10.0
WORTH_WHOLE = 3  # forks of a moment without a memory file, from which on it pays to make that cheap to read

_here: dict[tuple[Path, str], Live] = {}
_changes = threading.Lock()


class Live:
    """A running sandbox of this process; any number of threads may use it.

    Args:
        store: Where its record is.
        record: What it is.
        forker: What copies and forks it.
        machine: Its guest.
    """

    def __init__(self, store: Store, record: Record, forker: Forker, machine: Machine) -> None:
        self.store = store
        self.record = record
        self.ended = threading.Event()  # nothing of it is left to do in this process
        self._gone = False
        self._pid = os.getpid()
        self._forker = forker
        self._machine = machine
        self._lock = threading.RLock()  # one copy, pause or end at a time; requests go on meanwhile
        self._counters = threading.Condition()
        self._in_flight = 0
        self._brief = 0  # of those, the ones that are no commands
        self._leaving = False  # it is being hibernated: new requests wait until that is done, or is refused
        self._asked = 0  # requests so far that may have changed the guest
        self._last_used = time.monotonic()
        self._copied_at = -1  # ``_asked`` when the fork point was made
        self._copies = 0  # forks made from the fork point
        self._point_base: FileRecord | None = None  # its memory file, where that is known
        self._point_flat = False  # it is as cheap to fork as it gets
        with _changes:
            _here[store.cache.root, record.id] = self

    def call(
        self,
        op: str,
        args: dict[str, Any] | None = None,
        blobs: Sequence[bytes] = (),
        *,
        timeout_s: float,
        on_event: Callable[[str, bytes], None] | None = None,
    ) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        """Ask the guest's agent. See :meth:`microsim_vm.agent.AgentClient.call`.

        Raises:
            SandboxGoneError: The sandbox is not here any more.
            SandboxStateError: It is paused.
            AgentError: The guest says so, or died, or the sandbox was ended before the answer.
        """
        with self._in_use(op):
            try:
                return self._machine.guest[1].call(op, args, blobs, timeout_s=timeout_s, on_event=on_event)
            except ChannelClosedError as error:
                if not self._gone:
                    self.look()
                    raise
                how = "hibernated" if self.record.status == "hibernated" else "killed"
                raise ChannelClosedError(
                    f"the sandbox was {how} during {op!r}",
                    cause=f"somebody {how} it; in a hibernated one the command goes on when it wakes",
                    hint="hibernate between commands, or start long ones in the background",
                ) from error

    def look(self, *, deep: bool = True) -> None:
        """Note it where the guest has crashed; its console can be read, and it can be killed, and nothing else.

        Args:
            deep: Ask the engine too.
        """
        vm, client = self._machine.guest
        if not self._gone and self.record.status == "running" and (client.closed or (deep and not vm.alive())):
            self._write(status="crashed")

    def is_ours(self) -> bool:
        """Tell whether this very process has it: a forked child has our objects, and none of our threads."""
        return self._pid == os.getpid()

    def idle_s(self) -> float:
        """Return for how long nothing has been asked of it; 0 while something is."""
        with self._counters:
            return 0.0 if self._in_flight else time.monotonic() - self._last_used

    def pause(self) -> None:
        """Stop its processors; may be called again."""
        with self._lock:
            self._need_here()
            if self.record.status == "running":
                with self._telling_crashes():
                    self._forker.engine.pause(self._machine.guest[0])
                self._write(status="paused")

    def resume(self) -> None:
        """Let it run on after :meth:`pause`; may be called again."""
        with self._lock:
            self._need_here()
            if self.record.status == "paused":
                self._forker.engine.resume(self._machine.guest[0])
                self._write(status="running")

    def snapshot(self, name: str | None, metadata: Mapping[str, str]) -> SavedSnapshot:
        """Save the present moment; it is also what is forked until something else is asked of the sandbox.

        Raises:
            SnapshotError: It cannot be copied now, or the name is taken.
            SandboxStateError: It is paused, or writes to a volume.
        """
        cache = self.store.cache
        if name is not None:
            saved.check_name(cache, name)
        with self._lock, cache.staging("saved") as staging, self._telling_crashes():
            self._need_copyable("saved")
            need_space(cache.root, 2 * self._forker.saved_bytes + SPARE_BYTES, f"a snapshot of {self.record.id}")
            asked = self._copy(staging)
            self._forker.engine.flatten(staging)
            wanted = SavedSnapshot(
                name or saved.new_id(), self.record.origin, self.record.id, time.time(), owner.boot_id(), {},
                dict(metadata),
            )  # fmt: skip
            point = self._new_fork_point(asked)
            self._point_flat = True
            for path in staging.iterdir():  # before it has its name: from then on anybody may delete it
                os.link(path, point / path.name)
            snapshot = saved.keep(cache, staging, wanted)
            staging.mkdir()  # its owner removes it
            self._point_base = snapshot.files.get(memory.RAM)
            return snapshot

    def link_fork_point(self, folder: Path) -> FileRecord | None:
        """Put what a fork starts from into an empty folder, as links: no bytes are copied for it.

        Returns:
            The description of the memory file, where it is known.

        Raises:
            SnapshotError: It cannot be copied now.
            SandboxStateError: It is paused, or writes to a volume.
        """
        with self._lock, self._telling_crashes():
            self._need_copyable("forked")
            point = self.store.folder(self.record.id) / FORK_POINT
            if self._in_flight or self._copied_at != self._asked:
                with self.store.cache.staging("fork") as staging:
                    asked = self._copy(staging)
                    point = self._new_fork_point(asked)
                    self._point_base = self.record.base
                    for path in staging.iterdir():
                        os.rename(path, point / path.name)
            self._share(point)
            for path in point.iterdir():
                os.link(path, folder / path.name)
            return self._point_base

    def hibernate(self) -> None:
        """Write the sandbox to the disk and end its guest; see :meth:`microsim_vm.Sandbox.hibernate`.

        Raises:
            SnapshotError: Its files cannot be flushed, or it cannot be written; it runs on.
            SandboxStateError: It is paused.
        """
        vm, client = self._machine.guest
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._lock)
            stack.enter_context(self._left_alone())
            # Who wakes it waits for the end of this guest, which has its volumes open.
            stack.enter_context(self.store.locked(self.record.id))
            self._need_running()
            stack.enter_context(self._telling_crashes())
            staging = stack.enter_context(self.store.cache.staging("hibernate"))
            need_space(staging, self._forker.saved_bytes + SPARE_BYTES, f"hibernating {self.record.id}")
            with client.quiesced():
                try:
                    self._forker.engine.branch(vm, staging)
                    known = {memory.RAM: self.record.base} if self.record.base else {}
                    image = Hibernation(owner.boot_id(), saved.seal(staging, known))
                    digests.write_atomically(staging / saved.MANIFEST, msgspec.json.encode(image))
                    target = self.store.folder(self.record.id) / HIBERNATED
                    shutil.rmtree(target, ignore_errors=True)
                    os.rename(staging, target)
                    try:
                        self._put(self.record.asleep())
                    except BaseException:
                        os.rename(target, staging)  # where a guest that ended with the copy is started anew from
                        raise
                except BaseException:
                    self._forker.engine.resume(vm)
                    self._note_process()
                    raise
                self.end()
            staging.mkdir()  # its owner removes it
        shutil.rmtree(self.store.folder(self.record.id) / FORK_POINT, ignore_errors=True)
        self.ended.set()

    def kill(self) -> None:
        """End the guest and remove all that is the sandbox's; may be called again.

        Raises:
            SandboxGoneError: It hibernates, or has been woken since: this is not the one to kill.
        """
        if self.record.status == "hibernated":
            raise SandboxGoneError(f"sandbox {self.record.id} was hibernated in this very moment")
        if self.record.volumes and not self._gone and self.record.status == "running":
            with contextlib.suppress(AgentError):
                self._machine.guest[1].call("unmount", timeout_s=UNMOUNT_S)
        self.end()
        self.store.remove(self.record.id)
        self.ended.set()

    def end(self) -> None:
        """End the guest, and nothing else."""
        self._gone = True
        with _changes:
            if _here.get((self.store.cache.root, self.record.id)) is self:
                del _here[self.store.cache.root, self.record.id]
        self._machine.close()

    def console(self) -> str:
        """Return the tail of its console."""
        return self._machine.console_tail(200)

    def _copy(self, folder: Path) -> int:
        """Copy the guest into a folder and return how many requests it had had by then."""
        with self._counters:
            asked = self._asked
        self._forker.copy(*self._machine.guest, folder)
        self._note_process()
        return asked

    def _note_process(self) -> None:
        """Note the process of the guest, which an engine may have had to start anew after a copy."""
        if self._machine.pid != self.record.pid:
            self._put(msgspec.structs.replace(self.record, pid=self._machine.pid))

    @contextlib.contextmanager
    def _telling_crashes(self) -> Iterator[None]:
        """Say that the guest has crashed, or was killed meanwhile, rather than what failed because of that."""
        try:
            yield
        except NoSpaceError:
            with contextlib.suppress(OSError):  # it may be lost with that; noting so takes space too
                self.look()
            raise
        except (MicrosimError, OSError):
            self.look()
            self._need_running()
            raise

    def _new_fork_point(self, asked: int) -> Path:
        folder = self.store.folder(self.record.id) / FORK_POINT
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self._copied_at, self._copies, self._point_base, self._point_flat = asked, 0, None, False
        return folder

    def _share(self, point: Path) -> None:
        """Make the fork point cheap to fork once its forks would otherwise do more work than that costs."""
        self._copies += 1
        pages = point / memory.PAGES
        if self._forker.engine.memory_file is None:
            worth = self._copies >= WORTH_WHOLE
        else:
            worth = pages.exists() and (
                pages.stat().st_size * self._copies > (point / memory.RAM).stat().st_blocks * 512
            )
        # It is only for the sake of speed, so that it is no reason to refuse a fork.
        if worth and not self._point_flat and shutil.disk_usage(point).free > self._forker.saved_bytes:
            self._forker.engine.flatten(point)
            self._point_base, self._point_flat = None, True

    def _need_here(self) -> None:
        if self._gone:
            raise SandboxGoneError(f"sandbox {self.record.id} is not here any more")

    def _need_running(self) -> None:
        self._need_here()
        if self.record.status == "paused":
            raise SandboxStateError(f"sandbox {self.record.id} is paused", hint="call resume() first")
        if self.record.status == "crashed":
            raise SandboxStateError(
                f"the guest of sandbox {self.record.id} has crashed",
                cause="its kernel panicked, somebody in it killed the agent, or its engine was killed, as is "
                "a gVisor guest that takes more than its memory",
                hint=f"read its console (microsim logs {self.record.id}), and kill it (microsim rm {self.record.id})",
            )

    def _need_copyable(self, how: str) -> None:
        self._need_running()
        written = [mount.volume for mount in self.record.volumes if not mount.read_only]
        if written:
            raise SandboxStateError(
                f"sandbox {self.record.id} cannot be {how}: it writes to volume {', '.join(written)}",
                cause="a volume has one writer, and a copy of this guest would be a second one",
                hint="fork a sandbox without it, or mount it read-only",
            )

    @contextlib.contextmanager
    def _in_use(self, op: str) -> Iterator[None]:
        with self._counters:
            self._counters.wait_for(lambda: not self._leaving)
            self._need_running()
            self._in_flight += 1
            self._brief += op not in COMMANDS
            self._asked += op not in READ_ONLY
        try:
            yield
        finally:
            with self._counters:
                self._in_flight -= 1
                self._asked += op not in READ_ONLY  # a copy made meanwhile is of a moment before this one
                self._brief -= op not in COMMANDS
                self._last_used = time.monotonic()
                self._counters.notify_all()

    @contextlib.contextmanager
    def _left_alone(self) -> Iterator[None]:
        """Let requests under way have their answers, and new ones wait while the block runs."""
        try:
            with self._counters:
                self._leaving = True
                self._counters.wait_for(lambda: self._brief == 0, BRIEF_S)
            yield
        finally:
            with self._counters:
                self._leaving = False
                self._counters.notify_all()

    def _write(self, status: Status) -> None:
        self._put(msgspec.structs.replace(self.record, status=status))

    def _put(self, changed: Record) -> None:
        self.store.write(changed)
        self.record = changed


def find(store: Store, sandbox: str) -> Live | None:
    """Return a sandbox that lives in this process."""
    found = _here.get((store.cache.root, sandbox))
    return found if found is not None and found.is_ours() else None


def every() -> list[Live]:
    """Return all sandboxes that live in this process."""
    with _changes:
        return [live for live in _here.values() if live.is_ours()]


@atexit.register
def _kill_all() -> None:
    """A sandbox does not outlive its process; the kernel sees to its engine, this to its files."""
    for live in every():
        with contextlib.suppress(SandboxGoneError):
            live.kill()
