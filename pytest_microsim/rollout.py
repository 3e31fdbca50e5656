"""What a test holds: a rollout, which is one microVM."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from microsim_vm.errors import MicrosimError, VideoError

from .calls import raises_at_the_call
from .episode import Episode
from .errors import RecordError
from .filming import PICTURES, Drive, Video, film
from .gates.fingerprints import Fingerprint, combined
from .lookup import Lookup
from .seeds import check_seed, seed_of_episode

if TYPE_CHECKING:
    from microsim_vm.episode import EpisodeRecord
    from microsim_vm.filesystem import Filesystem
    from microsim_vm.film import Shots
    from microsim_vm.machine import Machine
    from microsim_vm.outputs import ExecResult

    from .trajectories.playing import Playing
    from .trajectories.recordings import Recording


class Rollout:
    """One microVM, forked from a warm world for one seed of one test, thrown away at the end of the test.

    Attributes:
        seed: The rollout's seed, ``0 <= seed < 2**128``. Its first episode has this seed; each further one
            has a seed of its own, derived from this and the episode's number.
        world: The name of the world.
        machine: The microVM itself; where there are several, that of the template's own.
        episodes: Episodes run so far by ``run``, also those that failed.
        recorded: The numbers given to ``record``, by name.
        children: What ``fork`` has made.
        videos: The files that ``video`` has written.
        controllers: A digest of each controller that ``run`` was given, with its arguments, limits, ``max_steps``,
            ``timeout_seconds`` and ``options``; hex, in order.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        seed: int,
        world: str,
        controller_folders: Sequence[Path],
        reseed: bool = True,
        max_steps: int | None = None,
        limits: Mapping[str, object] = MappingProxyType({}),
        again: Callable[[], Machine] | None = None,
    ) -> None:
        self.machine = machine
        self.seed = seed
        self.world = world
        self.episodes: list[Episode] = []
        self.recorded: dict[str, float] = {}
        self.children: list[Rollout] = []
        self.controllers: list[str] = []
        self.videos: list[Path] = []
        self._lookup = Lookup(controller_folders)
        self._reseed = reseed
        self._max_steps = max_steps
        self._limits = limits
        self._episode_seeds: list[int | None] = []
        self._ran: list[str] = []
        self._by_hand: list[Fingerprint] = []
        self._lost_by_hand = 0
        self._again = again
        self._drives: list[Drive] = []

    def __repr__(self) -> str:
        return f"<Rollout seed={self.seed} world={self.world}>"

    @raises_at_the_call
    def run(
        self,
        controller: str | os.PathLike[str] | Sequence[str] | Recording,
        *,
        max_steps: int | None = None,
        timeout_seconds: float | None = None,
        seed: int | None = None,
        limits: Mapping[str, object] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Episode:
        """Reset the world, and let a controller drive it to the end of the episode.

        Args:
            controller: A Python file with ``act(observation)`` or a class ``Controller``; or any program that speaks
                the line protocol: a file whose name does not end with .py, or a list of that file and its arguments.
                A relative path is looked for in the test file's folder, then in pytest's rootdir, then in the working
                directory. Or a :class:`~pytest_microsim.trajectories.recordings.Recording`, whose actions are taken
                until its end.
            max_steps: Steps after which the episode is truncated. Default: the marker's, else 1000; for a recording
                the marker's, else none.
            timeout_seconds: Wall-clock limit of the episode, in seconds. Default: the template's.
            seed: Seed of this episode alone, in place of the rollout's.
            limits: What the controller may use, in place of what the marker and the template say, by the template's
                names: ``{"memory_mib": 64, "step_deadline_s": 0.1, "late": "hold"}``.
            options: What the world's ``reset`` is given as ``options`` beside the seed: values that JSON can hold, by
                name. Left out, or empty, ``reset`` is not given the argument.

        Raises:
            ControllerError: If the controller cannot be found or loaded, raises, or returns no usable action.
            ControllerTimeoutError: If the time limit passes.
            ControllerLateError: If a step's deadline passes, where one is set.
            ControllerLimitError: If it ends at a limit of memory, processes, processor time or files.
            ControllerMachineError: If the machine that it ran in, apart from the world's, was lost.
            InvalidEpisodeError: If the episode's score is no finite number.
            WorldError: If the world raises, or takes no options.
            ScoreError: If the template's ``score`` cannot be run.
            LimitsError: If ``limits`` are none, or ``max_steps`` or ``timeout_seconds`` is out of range.
            OptionsError: If ``options`` are none.
            RecordingError: If a recording has other actions than the world takes.
            SeedError: If the seed is none.
        """
        from microsim_vm import controllers, reset_options

        given, default, shown = self._lookup.driver(controller, self._max_steps)
        most = default if max_steps is None else max_steps
        controllers.check_lengths(most, timeout_seconds)
        chosen = controllers.limited(self.machine.limits, {**self._limits, **(limits or {})})
        world_options = reset_options.checked(options)
        episode_seed = self._next_seed(seed)
        self.controllers.append(given.digest(chosen, most, timeout_seconds, world_options))

        def drive(machine: Machine, max_steps: int, shots: Shots | None = None) -> EpisodeRecord:
            return machine.run_episode(
                given.data,
                filename=given.filename,
                kind=given.kind,
                words=given.words,
                seed=episode_seed,
                max_steps=max_steps,
                timeout_seconds=timeout_seconds,
                limits=chosen,
                options=world_options,
                shots=shots,
            )

        try:
            record = drive(self.machine, most)
        except MicrosimError as error:
            self._ran.append(_lost(episode_seed, error))
            raise
        episode = Episode(record, controller=shown)
        self.episodes.append(episode)
        self._drives.append(drive)
        self._ran.append(episode.fingerprint)
        if episode.error is not None:
            raise episode.error
        return episode

    @raises_at_the_call
    def reset(self, seed: int | None = None, *, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode to be driven by hand.

        Args:
            seed: Seed of this episode alone, in place of the rollout's.
            options: As for ``run``.

        Returns:
            The observation and the info dict, as the world's ``reset`` returns them.

        Raises:
            OptionsError: If ``options`` are none.
            WorldError: If the world raises, or takes no options.
        """
        from microsim_vm import reset_options

        world_options = reset_options.checked(options)
        chosen = self._next_seed(seed)
        self._by_hand.append(Fingerprint())
        try:
            observation, info = self.machine.reset(chosen, options=world_options)
        except MicrosimError as error:
            self._by_hand[-1].add(_lost(chosen, error))
            self._lost_by_hand += 1
            raise
        self._by_hand[-1].add(observation)
        return observation, info

    @raises_at_the_call
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step of an episode that ``reset`` began.

        Args:
            action: What the world's ``step`` takes: a number, list or array.

        Returns:
            ``(observation, reward, terminated, truncated, info)``.

        Raises:
            WorldError: If the world raises, or has not been reset.
        """
        try:
            observation, reward, terminated, truncated, info = self.machine.step(action)
        except MicrosimError as error:
            if self._by_hand:
                self._by_hand[-1].add(type(error).__name__)
            raise
        if self._by_hand:
            self._by_hand[-1].add([action, observation, reward, terminated, truncated])
        return observation, reward, terminated, truncated, info

    @raises_at_the_call
    def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_seconds: float = 60.0,
        check: bool = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
    ) -> ExecResult:
        """Run a command in the microVM: text goes through a shell, a list does not.

        It runs as root, or as another ``user`` of the guest. What it leaves in the background runs on.

        Raises:
            CommandFailedError: With ``check=True``, if it does not exit with 0.
        """
        return self.machine.exec(
            command, timeout_seconds=timeout_seconds, check=check, cwd=cwd, env=env, user=user, stdin=stdin
        )

    @raises_at_the_call
    def play(
        self,
        recording: str | os.PathLike[str],
        topics: Sequence[str] | Mapping[str, str],
        *,
        clock: str = "auto",
        timeout_seconds: float = 300.0,
    ) -> Playing:
        """Play recorded messages of ROS 2 to the world's nodes, as they were sent, while the test goes on.

        A node in the microVM publishes them, with the world's own rclpy. It begins once every topic has a listener.

        Args:
            recording: An MCAP file, or a rosbag2 (its folder, or its ``.db3``). A relative path is looked for as
                ``run`` does.
            topics: The recorded topics to play; as a dict, with the names under which the world has them.
            clock: What they follow, from the first time that is heard. "auto": ``/clock`` where a node publishes it,
                else "monotonic", the guest's own clock. Or a topic whose messages have a header with a stamp, such as
                "/odom"; a stamp that comes again is taken as a question that comes again, and each topic's last
                message is sent once more.
            timeout_seconds: How long it may take.

        Returns:
            What plays them: ``wait()`` for its end, or ``stop()`` it.

        Raises:
            RecordingError: If the recording cannot be read, the microVM has no rclpy, or no node listens.
        """
        from .trajectories.playing import Messages, Playing

        messages = Messages.open(self._lookup.recording(recording), topics, clock)
        self.controllers.append(hashlib.sha256(messages.packed).hexdigest())
        return Playing(self.machine, messages, timeout_seconds)

    @property
    def schedule(self) -> int | None:
        """Of a deterministic machine, the number of the order in which its threads take turns; else None."""
        return self.machine.schedule

    @property
    def run_digest(self) -> str:
        """Of a deterministic machine, a digest of all its memory and devices as the last call left them, hex.

        Two rollouts with the same digest were the same to the last bit. "" before the first call, and for every other
        machine.
        """
        return self.machine.run_digest

    @property
    def machines(self) -> Mapping[str, Machine]:
        """All machines of the rollout by their names; the template's own is "sim", and often the only one."""
        return MappingProxyType(self.machine.machines)

    @property
    def published(self) -> dict[int, tuple[str, int]]:
        """Where the host reaches the ports that the template publishes: ``{80: ("127.0.0.1", 40123)}``.

        Empty where it publishes none. The ports are those of "sim".
        """
        if self.machine.island is None:
            return {}
        from microsim_vm.islands.relays import LOOPBACK

        return {port: (LOOPBACK, ours) for port, ours in self.machine.island.published.items()}

    @property
    def filesystem(self) -> Filesystem:
        """The microVM's files: ``read``, ``write``, ``listdir``, ``upload`` and more; gone at the end of the test."""
        return self.machine.filesystem

    @raises_at_the_call
    def record(self, name: str, value: float) -> None:
        """Record a number of this rollout, for the report and for verdicts over the whole group of seeds.

        Args:
            name: Its name; recording a name again replaces its value.
            value: A finite number.

        Raises:
            RecordError: For NaN, an infinity, or anything that is not a number. A NaN compares as false with
                everything, so that it would pass many an assertion.
        """
        if not isinstance(name, str) or not name:
            raise RecordError(f"a recorded number needs a name, not {name!r}")
        self.recorded[name] = _finite(name, value)

    @raises_at_the_call
    def fork(self, n: int = 1) -> list[Rollout]:
        """Fork this microVM as it is now, in the middle of an episode or not, into more rollouts.

        Each child continues from this very moment, with a seed of its own that is derived from this one's. The
        children end with the test; what happens in them is not part of verdicts over the group of seeds.

        Args:
            n: How many, 1 or more. What this one has written is copied once for all of them.

        Raises:
            MemoryBudgetError: Other guests hold the memory.
            SnapshotError: The microVM could not be copied, or there is no space for it.
            EngineError: This rollout has several machines.
        """
        children = [
            Rollout(
                machine,
                seed=machine.seed,
                world=self.world,
                controller_folders=self._lookup.folders,
                max_steps=self._max_steps,
                limits=self._limits,
            )
            for machine in self.machine.fork(n)
        ]
        self.children += children
        return children

    @raises_at_the_call
    def video(self, path: str | os.PathLike[str], *, episode: int = -1, pictures: int = PICTURES) -> Video:
        """Write a video of an episode that ``run`` has run: its world is drawn by its own ``render()``.

        The episode is run again, with a camera on, in another microVM with the same start. The one in the video is the
        one that was, bit by bit, where :attr:`~pytest_microsim.filming.Video.same` says so: a world or controller that
        depends on more than its seed, or on what was done to this microVM before, has others.

        Args:
            path: An .mp4 or .gif, which is replaced; a relative one is in the working directory.
            episode: Which, as an index into ``episodes``.
            pictures: How many it may have, 2 to 2000, evenly over the episode.

        Raises:
            VideoError: There is no such episode, its world cannot be drawn, or the file not be written.
            MemoryBudgetError: Other guests hold the memory of another microVM.
        """
        if not -len(self._drives) <= episode < len(self._drives):
            raise VideoError(
                f"there is no episode {episode} to make a video of: run() has run {len(self._drives)}",
                hint="steps that are driven by hand have no video",
            )
        if self._again is None:
            raise VideoError("a fork of a rollout has no start that it could be run again from")
        made = film(Path(path), self.episodes[episode], self._again, self._drives[episode], pictures=pictures)
        self.videos.append(made.path)
        return made

    def close(self) -> None:
        """End the microVM and all that were forked from it; the fixture does this at the end of the test."""
        for child in self.children:
            child.close()
        self.machine.close()

    def logs(self) -> dict[str, str]:
        """Return what the processes of a world made of processes wrote, by their names (bounded)."""
        return self.machine.logs()

    def console(self, lines: int = 40) -> str:
        """Return the last lines of the guest's console."""
        return self.machine.console_tail(lines)

    @property
    def episode_seeds(self) -> tuple[int | None, ...]:
        """The seeds of all episodes begun so far; None under a marker with ``reseed=False``."""
        return tuple(self._episode_seeds)

    def fingerprint(self) -> str | None:
        """Return one fingerprint for all episodes, or None if there was none, or one was not finished."""
        finished = [episode for episode in self.episodes if episode.error is None]
        begun = len(self._episode_seeds)
        if begun == 0 or len(finished) + len(self._by_hand) - self._lost_by_hand < begun:
            return None
        prints = [episode.fingerprint for episode in finished]
        return combined([*prints, *(by_hand.hexdigest() for by_hand in self._by_hand)])

    def traces(self) -> list[str]:
        """Return what tells each episode apart: those of ``run``, then those driven by hand.

        It is the fingerprint of what was recorded, whether the episode was finished or not. Where nothing was recorded,
        because the world raised or the guest was lost, it follows from the episode's seed and the error's kind.
        """
        return [*self._ran, *(by_hand.hexdigest() for by_hand in self._by_hand)]

    def shell(self) -> None:
        """Open a shell in the microVM on this terminal, and return when it ends. For use at the prompt of ``--pdb``.

        Raises:
            AgentError: The guest was lost, or has no shell.
        """
        from microsim_vm import console

        console.attach(self.machine, None, user=None, env={})

    def _next_seed(self, explicit: int | None) -> int | None:
        number = len(self._episode_seeds)
        if explicit is not None:
            seed: int | None = check_seed(explicit)
        else:
            seed = seed_of_episode(self.seed, number) if self._reseed else None
        self._episode_seeds.append(seed)
        return seed


def _lost(seed: int | None, error: MicrosimError) -> str:
    return f"lost: seed {seed}, {type(error).__name__}"


def _finite(name: str, value: Any) -> float:
    if isinstance(value, str | bytes | complex):
        raise RecordError(f"{name!r}: {value!r} is not a number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise RecordError(f"{name!r}: a {type(value).__name__} is not a number that can be recorded") from None
    if math.isnan(number):
        raise RecordError(
            f"{name!r} is NaN",
            cause="a division by zero, a mean over nothing, or a diverged simulation",
            hint="a NaN passes `not value > limit`; find where it comes from, or leave it unrecorded",
        )
    if math.isinf(number):
        raise RecordError(f"{name!r} is infinite", hint="record a finite number, such as the limit that was reached")
    return number
