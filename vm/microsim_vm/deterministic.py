"""Machines whose every bit follows from a snapshot and a seed, and what they refuse because it would not.

Nothing reaches such a machine while it runs. All that it is asked lies in its memory before its first instruction, and
it stops itself when it has answered. Asking it one thing more means to let it live its whole life again, from the
snapshot on, with that in addition; it has to give the earlier answers again, byte for byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from microsim_guest import mailbox, wire

from microsim_vm import admission, endings, runtime
from microsim_vm.agent import FLUSH_S, result_of
from microsim_vm.endings import Ending
from microsim_vm.engines import boxes
from microsim_vm.engines.icount import Icount
from microsim_vm.engines.qemu import QemuVm, save_devices
from microsim_vm.errors import (
    AgentError,
    AgentTimeoutError,
    ChannelClosedError,
    DeterminismError,
    DivergedError,
    EngineError,
    SnapshotError,
)

if TYPE_CHECKING:
    from microsim_vm.forks import Forker
    from microsim_vm.machine import Machine
    from microsim_vm.templates.spec import Template

SLOWER = 10.0  # how much slower than its own clock it may run before it is given up
LOOK_S = 1.0
SETTLE_S = 0.5  # from its last word until it is saved
# Said to a guest that waits for it, and this one does not.
NEEDLESS = ("exec.confirm", "exec.cancel")
REFUSED = {
    "world.reset": "an episode driven by hand hears from the host between its steps",
    "world.step": "an episode driven by hand hears from the host between its steps",
    "world.sample": "an episode driven by hand hears from the host between its steps",
    "terminal": "what is typed comes at the host's times",
    "relay": "a controller in another machine answers at the host's times",
    "controller": "a controller in another machine answers at the host's times",
}
HINT = "leave --microsim-deterministic and the template's deterministic: true out for this, or do without it"
Taker = Callable[[dict[str, Any]], None]


def refused(what: str, why: str) -> DeterminismError:
    """Return the error for what a deterministic machine does not do."""
    return DeterminismError(f"a deterministic machine has {what}", cause=why, hint=HINT)


def check_template(template: Template) -> None:
    """Refuse a template whose machines cannot be deterministic.

    Raises:
        DeterminismError: One of its settings is in the way; the cause says how.
    """
    if template.machine.vcpus != 1:
        raise refused(
            f"one processor, and {template.name} asks for {template.machine.vcpus} (machine.vcpus)",
            "the host decides how far each of several processors comes",
        )
    if template.machines:
        raise refused(
            f"no others beside it, and {template.name} names some (machines)",
            "what they say to each other arrives at the host's times",
        )
    if template.network != "none":
        raise refused(
            f"no network, and that of {template.name} is {template.network!r}",
            "packets arrive at the host's times; the guest's own loopback works without",
        )
    if template.wall_clock == "now":
        raise refused(
            f"a wall clock that starts where its template says, and {template.name} says 'now'",
            "the present is another one each time",
        )


def number(*parts: object, bits: int = 63) -> int:
    """Return a number that follows from a seed and a purpose: SHA-256, never ``seed + i``."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest, "little") & ((1 << bits) - 1)


class Life(NamedTuple):
    """What a machine is given before its first instruction, besides requests.

    Attributes:
        seed: The rollout's seed.
        schedule: The number of the interleaving.
        name: The machine's name.
    """

    seed: int
    schedule: int
    name: str

    @classmethod
    def of(cls, seed: int, schedule: int | None) -> Life:
        """Return what follows from a seed, and from a schedule where one is asked for."""
        chosen = number("schedule", seed) if schedule is None else schedule
        return cls(seed, chosen, f"microsim-{number('name', seed, chosen, bits=48):012x}")

    @property
    def entropy(self) -> bytes:
        """What its kernel's generator is seeded with."""
        return hashlib.sha512(f"entropy:{self.seed}".encode()).digest()


class History:
    """A deterministic machine: what it was asked so far. Both the guest and the client of its agent, for a Machine.

    Args:
        forker: What forks it.
        folder: The snapshot.
        life: What decides its life besides.

    Attributes:
        digest: Of its memory and devices at its end, hex; "" before it has run.
        runs: How often it has lived.
        phases_ms: How long each step of its last life took.
    """

    def __init__(self, forker: Forker, folder: Path, life: Life) -> None:
        self.digest = ""
        self.runs = 0
        self.phases_ms: dict[str, float] = {}
        self._forker = forker
        self._folder = folder
        self._life = life
        self._requests = b""
        self._answers = b""
        self._count = 0
        self._limit_s = 0.0
        self._begun: dict[str, tuple[str, Taker]] = {}
        self._turn = threading.RLock()
        self._vm: QemuVm | None = None
        self._pid = 0
        self._console = ""
        self._closed = False
        self._lost: Ending | None = None

    def begin(self, op: str, args: dict[str, Any], blobs: Sequence[bytes], *, timeout_s: float, take: Taker) -> None:
        """Note a request that comes before all others, and is made with the first of them.

        Args:
            op: The operation.
            args: Its arguments.
            blobs: Binary attachments.
            timeout_s: How long it may take, by the machine's clock.
            take: Takes its result, once there is one.
        """
        identity, frame = self._framed(op, args, blobs)
        self._requests += frame
        self._limit_s += timeout_s
        self._count += 1
        self._begun[identity] = op, take

    def call(
        self, op: str, args: dict[str, Any] | None = None, blobs: Sequence[bytes] = (), *, timeout_s: float,
        on_event: Callable[[str, bytes], None] | None = None,
    ) -> tuple[dict[str, Any], tuple[bytes, ...]]:  # fmt: skip
        """Let the machine live again, with one request more. See :meth:`microsim_vm.agent.AgentClient.call`.

        Raises:
            DeterminismError: The request is one that a deterministic machine refuses.
            DivergedError: It did not repeat its earlier answers.
            AgentTimeoutError: It did not come to its end within ten times what the requests may take.
            ChannelClosedError: The guest or the engine died, now or before.
        """
        if op in NEEDLESS:
            return {}, ()
        self._refuse(op)
        with self._turn:
            identity, frame = self._framed(op, args or {}, blobs)
            requests, limit_s = self._requests + frame, self._limit_s + timeout_s
            if len(requests) > boxes.MOST_INPUT:
                raise DeterminismError(
                    f"a deterministic machine takes {mailbox.OUT >> 20} MiB of requests in its life at most",
                    cause="all of them lie in its memory before it runs, and this one would be too much",
                    hint="put large files into the template",
                )
            answers, digest = self._live(op, requests, limit_s)
            if not answers.startswith(self._answers):
                raise DivergedError(
                    f"{self._life.name} did not repeat its {len(self._answers)} bytes of answers during {op!r}",
                    cause="something of the host has reached it",
                    hint="report it, with the template, the seed and the schedule",
                )
            fresh = answers[len(self._answers) :]
            self._requests, self._answers, self._limit_s, self.digest = requests, answers, limit_s, digest
            self._count += 1
            for found in _frames(fresh):
                if found.header["id"] in self._begun:
                    begun, take = self._begun.pop(found.header["id"])
                    take(result_of(begun, found)[0])
                elif found.header["id"] != identity:
                    continue
                elif "event" not in found.header:
                    return result_of(op, found)
                elif on_event is not None and found.blobs:
                    on_event(str(found.header["event"]), found.blobs[0])
            raise AgentError(f"{op}: the guest did not answer", cause="something in it has stopped the machine")

    def tell(self, op: str, args: dict[str, Any], blobs: Sequence[bytes] = (), *, timeout_s: float) -> None:
        """Refuse: nothing is said to it while it runs."""
        self._refuse("relay")

    @contextlib.contextmanager
    def quiesced(self, *, flush_s: float = FLUSH_S) -> Iterator[None]:
        """Refuse: there is no running machine to copy."""
        raise refused("no running forks, and no hibernation", "it only lives while it answers, and is gone afterwards")
        yield

    @property
    def channel(self) -> socket.socket:
        """Refuse: there is none."""
        raise refused("no channel", "nothing is said to it while it runs")

    @property
    def pid(self) -> int:
        """The engine's process of its last life."""
        return self._pid

    def console(self) -> str:
        """Return the tail of the console of its last life."""
        return self._console

    def alive(self) -> bool:
        """Tell whether it can be asked more."""
        return not self._closed and self._lost is None

    @property
    def closed(self) -> bool:
        """It was closed."""
        return self._closed

    def close(self) -> None:
        """End it, also in the middle of its life; may be called again."""
        self._closed = True
        vm = self._vm
        if vm is not None:
            vm.kill()

    kill = close

    def _refuse(self, op: str) -> None:
        why = REFUSED.get(op) or REFUSED.get(op.partition(".")[0])
        if why is not None:
            raise refused(f"no {op.replace('.', ' ')}", why)
        if self._closed:
            raise ChannelClosedError(f"{self._life.name} was closed before {op!r}", cause=endings.CLOSED.cause)
        if self._lost is not None:
            cause, hint = self._lost
            raise ChannelClosedError(f"{self._life.name} was lost before {op!r}", cause=cause, hint=hint)

    def _framed(self, op: str, args: dict[str, Any], blobs: Sequence[bytes]) -> tuple[str, bytes]:
        """Return a request's number and frame; no name in it may be one that was drawn for it alone."""
        identity = f"{number('call', self._life.seed, bits=32):08x}-{self._count}"
        pinned = {
            key: f"{number(key, identity, bits=128):032x}" if key in ("token", "part") else value
            for key, value in args.items()
        }
        return identity, wire.encode({"id": identity, "op": op, "args": pinned}, blobs)

    def _live(self, op: str, requests: bytes, limit_s: float) -> tuple[bytes, str]:
        """Fork, run to the end, and return the answers and the digest."""
        forker, started = self._forker, time.monotonic()
        boot, engine = forker.boot, forker.engine
        assert isinstance(engine, Icount)
        label = f"{forker.name} seed {self._life.seed}, schedule {self._life.schedule}"
        with contextlib.ExitStack() as stack:
            promised = admission.admitted(boot.memory_mib, label, overhead_mib=engine.overhead_mib, image=boot.image)
            file, record = stack.enter_context(promised)
            scratch = stack.enter_context(forker.cache.staging("deterministic"))
            vm = engine.fork(boot, self._folder, seed=number("processor", self._life.seed))
            stack.callback(vm.kill)
            self._vm, self._pid = vm, vm.pid
            stack.callback(self._forget)
            runtime.started(file, record, vm.pid, None)
            self.phases_ms = {**vm.phases_ms, "wait": (time.monotonic() - started) * 1e3 - sum(vm.phases_ms.values())}
            try:
                boxes.fill(vm.pid, self._folder, requests)
                if self._closed:  # before there was anything to end
                    raise self._gone(op, vm)
                with self._phase("run"):
                    self._run(op, vm, limit_s)
                with self._phase("digest"):
                    return self._result(op, vm, scratch)
            except (OSError, EngineError, SnapshotError):
                if vm.alive():
                    raise
                raise self._gone(op, vm) from None

    def _result(self, op: str, vm: QemuVm, scratch: Path) -> tuple[bytes, str]:
        """Return the answers and the digest of a machine that has stopped."""
        self.runs += 1
        self._console = vm.console()
        status, answers = boxes.answers(vm.pid, self._folder)
        if status == mailbox.FULL:
            raise AgentError(
                f"{op}: a deterministic machine's answers are {mailbox.SIZE - mailbox.OUT >> 20} MiB at most",
                cause="they lie in its memory until its end", hint="print or record less, or take fewer steps",
            )  # fmt: skip
        if status != mailbox.ANSWERED:
            raise self._gone(op, vm)
        save_devices(vm, scratch)
        return answers, boxes.digest(vm.pid, self._folder, scratch)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.phases_ms[name] = (time.monotonic() - started) * 1e3

    def _forget(self) -> None:
        self._vm = None

    def _run(self, op: str, vm: QemuVm, limit_s: float) -> None:
        """Let the machine run until it has stopped itself."""
        self._forker.engine.resume(vm)
        deadline, dead = time.monotonic() + SLOWER * limit_s, False
        while True:
            try:
                event = vm.qmp.wait_event("STOP", "SHUTDOWN", timeout_s=LOOK_S)["event"]
            except EngineError:
                if not vm.alive() and not dead:
                    dead = True  # what it said last may be waiting to be read
                    continue
                if dead:
                    raise self._gone(op, vm) from None
                if time.monotonic() > deadline:
                    self._console = vm.console()
                    raise AgentTimeoutError(
                        f"{op!r} did not come to its end within {SLOWER * limit_s:.0f} s",
                        cause="the machine is overloaded, or the guest hangs in a way that its own limits do not end",
                        hint="see the end of the guest's console, and how busy the machine is",
                        details=_tail(self._console),
                    ) from None
                continue
            if event == "STOP":
                return
            raise self._gone(op, vm)

    def _gone(self, op: str, vm: QemuVm) -> ChannelClosedError:
        """Return the error for a machine that will not answer any more, and say so from here on."""
        self._console = vm.console()
        ending = endings.CLOSED
        if not self._closed:
            ending = self._lost = endings.told(self._console, vm, agent_died=endings.FAREWELL in self._console)
        return ChannelClosedError(
            f"the guest was {'closed' if self._closed else 'lost'} during {op!r}", cause=ending.cause,
            hint=endings.hinted(ending, op), details=_tail(self._console),
        )  # fmt: skip


def fork(
    forker: Forker, folder: Path, seed: int, *, schedule: int | None, reseed: bool, wall_clock: float | None
) -> Machine:
    """Return a machine that lives from a snapshot on whenever it is asked something.

    Args:
        forker: What forks it.
        folder: The snapshot.
        seed: The rollout's.
        schedule: The interleaving; None for the one that follows from the seed.
        reseed: False leaves every generator as the snapshot had it.
        wall_clock: Where its wall clock starts, in seconds since 1970.

    Raises:
        SeedError: The seed or the schedule is no whole number, 0 or more.
        DeterminismError: The snapshot is no deterministic machine's, or its clock is to start at the present.
    """
    from microsim_vm.machine import checked

    seed = checked(seed)
    if not forker.engine.deterministic:
        raise DeterminismError(
            "only a deterministic machine has a schedule",
            cause="what other machines' threads do depends on the host", hint="Options(deterministic=True)",
        )  # fmt: skip
    if wall_clock is None:
        raise refused("a wall clock that starts where its template says", "the present is another one each time")
    life = Life.of(seed, None if schedule is None else checked(schedule))
    history = History(forker, folder, life)
    machine = forker.machine(history, history, seed, life.name)
    machine.begin(history, life.entropy, life.schedule, reseed=reseed, wall_clock=wall_clock)
    machine.resources.callback(history.close)
    return machine


def settle(client: Any) -> None:
    """Let a warmed guest look into its memory for what comes next, for good.

    Raises:
        MicrosimError: It cannot.
    """
    client.call("await", timeout_s=60.0)
    time.sleep(SETTLE_S)


def _frames(data: bytes) -> Iterator[wire.Frame]:
    """Yield the frames that a guest left.

    Raises:
        AgentError: They are none.
    """
    at = 0
    try:
        while at < len(data):
            header, blobs = wire.parse_prefix(data[at : at + wire.PREFIX.size])
            at += wire.PREFIX.size
            yield wire.decode(data[at : at + header], data[at + header : at + header + blobs])
            at += header + blobs
    except (wire.ProtocolError, ValueError, KeyError) as error:
        raise AgentError("the guest left something that is no answer", cause=str(error)) from None


def _tail(console: str) -> str:
    return "\n".join(console.splitlines()[-40:])
