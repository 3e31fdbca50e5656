"""A live microVM with its agent: what a rollout drives."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from microsim_guest import camera, codec, middleware

from microsim_vm import answers, apart, controllers, episode, film, reset_options
from microsim_vm.agent import Client
from microsim_vm.deterministic import History
from microsim_vm.engines.base import Vm
from microsim_vm.episode import EpisodeRecord
from microsim_vm.errors import ControllerLateError, ControllerTimeoutError, EngineError, SeedError
from microsim_vm.guest import Guest
from microsim_vm.islands.island import ALONE, Berth
from microsim_vm.outputs import ExecResult, TextTaker
from microsim_vm.templates.spec import ControllerLimits
from microsim_vm.wallclock import WallClock

GRACE_S = 60.0  # how much longer the host waits than the guest's own limits
WORLD_TIMEOUT_S = 300.0  # one reset or step of a world
MOST_SPANS = 1000


class Machine(Guest):
    """One microVM, forked from a snapshot; a context manager that kills it at the end.

    Attributes:
        id: Unique name; also the guest's host name.
        seed: The seed it adopted.
        timings: Milliseconds spent in "fork", "exec" and "episode", and the fork's phases as "fork.<phase>".
        spans: When each "exec" and "episode" began, in seconds since 1970, and how many seconds it took; the first
            1000 of them.
        probes: 64 bits (16 hex digits) of a copy of each declared generator, right after reseeding.
        findings: Generators that the snapshot carried over unreseeded.
        drawn: The first bytes that its kernel gave it, hex.
        filesystem: The guest's files.
        branches: How often it was forked.
        island: Its network; None where its template has none.
        machines: All machines of its rollout by their names; this one alone is "sim".
        wall_clock: Its wall clock; None where it was started at the present, or is counted in instructions.
        schedule: Of a deterministic machine, the number of its interleaving; else None.
        resources: What is released when it is closed.
    """

    def __init__(
        self,
        vm: Vm,
        client: Client,
        *,
        seed: int,
        limits: ControllerLimits,
        name: str = "",
        berth: Berth | None = None,
        branch: Callable[[int], list[Machine]] | None = None,
        score: Path | None = None,
    ) -> None:
        super().__init__(client)
        self.id = name or f"microsim-{uuid.uuid4().hex[:12]}"
        self.seed = seed
        self.timings: dict[str, float] = {}
        self.spans: list[tuple[str, float, float]] = []
        self.probes: dict[str, str] = {}
        self.findings: list[str] = []
        self.drawn = ""
        self.wall_clock: WallClock | None = None
        self.schedule: int | None = None
        self._history: History | None = None
        self.branches = 0
        self._vm = vm
        self._client = client
        self.island = None if berth is None else berth.island
        self.machines: dict[str, Machine] = {ALONE: self}
        self._limits = limits
        self._score = score
        self._berth = berth
        self._branch = branch
        self.resources = contextlib.ExitStack()

    def adopt(self, entropy: bytes, *, reseed: bool, wall_clock: float | None = None) -> None:
        """Make the copy a guest of its own: entropy, wall clock, host name, seed. Before any user code."""
        self.wall_clock = None if wall_clock is None else WallClock.starting(wall_clock)
        wall_ns = time.time_ns() if wall_clock is None else round(wall_clock * 1e9)
        answer, _ = self._client.call("adopt", self._adoption(wall_ns, reseed), [entropy], timeout_s=GRACE_S)
        self._adopted(answer)

    def begin(self, history: History, entropy: bytes, schedule: int, *, reseed: bool, wall_clock: float) -> None:
        """Let a deterministic machine adopt all that with the first thing that it is asked."""
        self._history, self.schedule = history, schedule
        args = {**self._adoption(round(wall_clock * 1e9), reseed), "schedule": schedule}
        history.begin("adopt", args, [entropy], timeout_s=GRACE_S, take=self._adopted)

    def _adoption(self, wall_ns: int, reseed: bool) -> dict[str, Any]:
        return {"seed": self.seed, "reseed": reseed, "hostname": self.id, "wall_ns": wall_ns,
                "network": self.network, "scope": self.scope}  # fmt: skip

    def _adopted(self, answer: dict[str, Any]) -> None:
        if self._history is not None:
            self.timings["fork"] = sum(self._history.phases_ms.values())
        with answers.read("adopt"):
            self.probes = msgspec.convert(answer["probes"], dict[str, str])
            self.findings = msgspec.convert(answer["findings"], list[str])
            self.drawn = msgspec.convert(answer["drawn"], str)

    def close_with(self, resources: contextlib.ExitStack) -> None:
        """Take over what :meth:`close` has to release: the guest, its channel, its promised memory."""
        self.resources = resources

    @property
    def network(self) -> dict[str, Any] | None:
        """What the guest is told of its network interface; None where it has none."""
        return None if self._berth is None else self._berth.settings()

    @property
    def scope(self) -> str:
        """Whom ROS 2 and DDS may find: "loopback", or "island" where there are several machines."""
        return middleware.LOOPBACK if self._berth is None else self._berth.scope

    @property
    def run_digest(self) -> str:
        """Of a deterministic machine, a digest of its whole memory and its devices after the last request, hex.

        "" before the first one, and for every other machine.
        """
        return "" if self._history is None else self._history.digest

    @property
    def guest(self) -> tuple[Vm, Client]:
        """The guest as its engine sees it, and the client of its agent."""
        return self._vm, self._client

    @property
    def limits(self) -> ControllerLimits:
        """What its controllers may use, by its template."""
        return self._limits

    @property
    def pid(self) -> int:
        """The engine's process on the host."""
        return self._vm.pid

    def reset(self, seed: int | None = None, *, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the world with a seed (its own where none is given); return observation and info.

        Args:
            seed: The episode's.
            options: What the world's ``reset`` is given as ``options``, where there are any.

        Raises:
            OptionsError: The options are none.
            WorldError: The world raised, or takes no options.
        """
        args = {"seed": self.seed if seed is None else checked(seed), "options": reset_options.checked(options)}
        answer = self._value("world.reset", args)
        with answers.read("world.reset"):
            observation, info = answer
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step; return observation, reward, terminated, truncated, info.

        Raises:
            ControllerError: The action is not one of this world.
            WorldError: The world raised.
        """
        blobs: list[bytes] = []
        packed = codec.pack(action, blobs)
        answer = self._value("world.step", {"action": packed}, blobs)
        with answers.read("world.step"):
            observation, reward, terminated, truncated, info = answer
        return observation, reward, terminated, truncated, info

    def sample_action(self) -> Any:
        """Draw from the world's action space, whose generator follows the seed.

        Raises:
            WorldError: The world has no action space.
        """
        return self._value("world.sample", {})

    def run_episode(
        self, source: bytes, *, filename: str, seed: int | None = None, max_steps: int = 1000,
        timeout_seconds: float | None = None, kind: controllers.Kind = "python", words: Sequence[str] = (),
        limits: ControllerLimits | None = None, options: Mapping[str, Any] | None = None,
        shots: film.Shots | None = None,
    ) -> EpisodeRecord:  # fmt: skip
        """Run a controller from reset to the end of an episode.

        Args:
            source: The controller's file.
            filename: Its name, for tracebacks.
            seed: The episode's seed; the machine's own by default.
            max_steps: The episode is truncated there.
            timeout_seconds: Wall-clock limit; that of ``limits`` by default.
            kind: Whether the file is Python source with ``act``, a program, or recorded actions.
            words: A program's arguments.
            limits: What the controller may use; what its template says by default.
            options: What the world's ``reset`` is given as ``options``, where there are any.
            shots: Which pictures of it are taken, where any are wanted; they are the record's ``film``.

        Returns:
            The record; a controller that failed, or whose machine did, or why the episode is invalid, is in its
            ``error``.

        Raises:
            LimitsError: ``max_steps`` or ``timeout_seconds`` is out of range.
            OptionsError: The options are none.
            WorldError: The world raised, or takes no options.
            ScoreError: The template's ``score`` cannot be run.
            AgentError: The guest died or hangs.
        """
        controllers.check_lengths(max_steps, timeout_seconds)
        given = reset_options.checked(options)
        chosen = self.seed if seed is None else checked(seed)
        most = self._limits if limits is None else limits
        timeout_s = most.wall_time_s if timeout_seconds is None else timeout_seconds
        names = ("memory_mib", "processes", "output_bytes", "workspace_mib", "workspace_files", "open_files", "cpu_s")
        args = {
            "kind": kind, "filename": filename, "words": list(words), "seed": chosen, "max_steps": max_steps,
            "timeout_s": timeout_s, "step_deadline_s": most.step_deadline_s, "late": most.late,
            "max_time_s": most.simulated_time_s, "limits": {name: getattr(most, name) for name in names},
            "options": given,
        }  # fmt: skip
        within_s, lost = timeout_s + WORLD_TIMEOUT_S, None
        if shots is not None:
            args["film"] = dataclasses.asdict(shots)
            within_s += camera.MAX_S
        with self._timed("episode"):
            if self._limits.machine is None or kind == "recording":  # which is no process anywhere
                result, blobs = self._client.call("world.episode", args, [source], timeout_s=within_s)
            else:
                place, name = self._place(self._limits.machine), self._limits.machine
                result, blobs, lost = apart.Episode(self._client, place, name, source, args, within_s).run()
        with answers.read("world.episode"):
            taken = None
            if shots is not None:
                taken, blobs = film.from_answer(result, blobs, shots)
            record = episode.from_answer(result, blobs, seed=chosen, options=given, score=self._score)
        record = dataclasses.replace(record, film=taken)
        if self._history is not None:
            record = dataclasses.replace(record, schedule=self.schedule, run_digest=self.run_digest)
        if lost is None or isinstance(record.error, ControllerTimeoutError | ControllerLateError):
            return record
        return dataclasses.replace(record, error=lost)

    def _place(self, name: str) -> Client:
        """Return the agent of the machine that controllers run in."""
        if name not in self.machines:
            raise EngineError(
                f"controllers are to run in the machine {name!r}, and this guest is alone",
                cause="only rollouts have several machines; a sandbox has its template's own",
                hint="fork it from the WarmWorld, or use a template without controller.machine",
            )
        return self.machines[name]._client

    def fork(self, n: int = 1) -> list[Machine]:
        """Fork this microVM as it is now: memory, files, processes, the episode under way.

        It pauses for the copy and runs on. With QEMU, only the pages that it has written are copied, once, and put
        into each child; all else the children share with the warm world, as every fork does. gVisor writes all of its
        memory, and reads it back into each.

        Args:
            n: How many children.

        Returns:
            The children, each with a seed of its own derived from this one's, its generators reseeded; close
            them, or use them as context managers.

        Raises:
            SnapshotError: It could not be copied.
            NoSpaceError: The copy would not fit into the cache.
            MemoryBudgetError: Other guests hold the memory.
            EngineError: This machine is no fork of a warm world, or not the only one of its rollout.
        """
        if self._branch is None:
            raise EngineError("only a fork of a warm world can be forked", hint="fork it from the WarmWorld")
        if len(self.machines) > 1:
            raise EngineError(
                "a machine of a rollout of several cannot be forked",
                cause="what the others have heard from it by then would not be forked with it",
                hint="fork the whole rollout anew, from its seed",
            )
        if n < 1:
            raise ValueError(f"n is the number of children, 1 or more, not {n}")
        children = self._branch(n)
        self.branches += 1
        return children

    def logs(self) -> dict[str, str]:
        """Return the kept output of the world's processes, by name."""
        result, blobs = self._client.call("world.logs", timeout_s=GRACE_S)
        with answers.read("world.logs"):
            names = msgspec.convert(result["names"], list[str])
            return {name: blob.decode("utf-8", "replace") for name, blob in zip(names, blobs, strict=True)}

    def console_tail(self, lines: int = 40) -> str:
        """Return the last lines of the guest's console."""
        return "\n".join(self._vm.console().splitlines()[-lines:])

    def close(self) -> None:
        """Kill the guest and free what it held; may be called again."""
        self.resources.close()

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _value(self, op: str, args: dict[str, Any], blobs: Sequence[bytes] = ()) -> Any:
        result, attached = self._client.call(op, args, blobs, timeout_s=WORLD_TIMEOUT_S)
        with answers.read(op):
            return codec.unpack(result["value"], attached)

    def _run(self, command: str | Sequence[str], takers: Mapping[str, TextTaker] | None, **how: Any) -> ExecResult:
        with self._timed("exec"):
            return super()._run(command, takers, **how)

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began, started = time.time(), time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - started
            self.timings[name] = self.timings.get(name, 0.0) + took * 1000.0
            if len(self.spans) < MOST_SPANS:
                self.spans.append((name, began, took))


def checked(seed: object) -> int:
    """Return a seed, or refuse it: a rollout without one would replay its parent's random state.

    Raises:
        SeedError: Missing, a bool, negative, or no whole number.
    """
    if type(seed) is int and seed >= 0:
        return seed
    raise SeedError(
        f"a rollout needs a seed that is a whole number, 0 or more, not {seed!r}",
        cause="without a seed every fork repeats its parent's random numbers",
        hint="pass seed=..., or mark the test with @pytest.mark.seeds(range(64))",
    )


def derived_seed(*parts: object) -> int:
    """Return a seed that follows from a machine's and from what tells its kin apart: the same in every run."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little")
