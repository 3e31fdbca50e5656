"""One rollout again: its id, which a failure prints, and whether it came out as it did then.

An id is complete in itself. It needs no file of the run that printed it, so that a failure of a build server can be
replayed elsewhere; what it cannot say, the flags beside it do.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .gates.fingerprints import combined

if TYPE_CHECKING:
    from microsim_vm.world import WarmWorld

    from .rollout import Rollout

DIGITS = 8
NOTHING = "none"

_PART = rf"[0-9a-f]{{{DIGITS}}}"
_FORM = re.compile(
    rf"(?P<test>{_PART})\.(?P<seed>[0-9]{{1,40}})\.(?P<image>{_PART})\.(?P<snapshot>{_PART})"
    rf"\.(?P<controllers>{_PART}|{NOTHING})\.(?P<episodes>{_PART}|{NOTHING})\.(?P<clock>now|[0-9]{{1,10}}(\.[0-9]{{1,6}})?)"
    rf"(\.s(?P<schedule>[0-9]{{1,40}})\.(?P<run>{_PART}|{NOTHING}))?"
)


@dataclass(frozen=True)
class ReplayId:
    """What a rollout was: each part but seed and clock is the beginning of a digest, in hex.

    Attributes:
        test: Of the test's node id.
        seed: The rollout's seed.
        image: Of the worlds' images.
        snapshot: Of the snapshots' keys: engine, processor, machine size. Of a deterministic machine's, of all that is
            in it: another warm-up leaves another one.
        controllers: Of the controllers that were run, in order, and of what each was given: arguments, limits, numbers
            of steps and seconds; "none" where none was.
        episodes: Of all that was recorded of its episodes, also of those that were not finished, and of which error
            left nothing to record; "none" where no episode was begun.
        wall_clock: Where its wall clock started, in seconds since 1970; None for the present.
        schedule: In which order the threads of its deterministic machine took turns; None for every other machine.
        run: Of all that was in that machine at the end; "none" where it was asked nothing, and for every other machine.
    """

    test: str
    seed: int
    image: str
    snapshot: str
    controllers: str = NOTHING
    episodes: str = NOTHING
    wall_clock: float | None = None
    schedule: int | None = None
    run: str = NOTHING

    @classmethod
    def parse(cls, text: str) -> ReplayId:
        """Read what :meth:`__str__` has written.

        Raises:
            ValueError: It is none.
        """
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is not what a failed rollout printed after --microsim-replay")
        test, seed, image, snapshot, controllers, episodes, clock, schedule, run = found.group(*found.re.groupindex)
        start = None if clock == "now" else float(clock)
        order = None if schedule is None else int(schedule)
        return cls(test, int(seed), image, snapshot, controllers, episodes, start, order, run or NOTHING)

    @classmethod
    def of(cls, test: str, seed: int, world: WarmWorld, wall_clock: float | None) -> ReplayId:
        """Return the id of a rollout that is about to begin.

        Args:
            test: The test's node id.
            seed: The rollout's seed.
            world: What it is forked from.
            wall_clock: Where its clock starts.
        """
        worlds = [world, *(world.others[name] for name in sorted(world.others))]
        images = [each.digest for each in worlds]
        # In which order threads take turns also depends on where the warm-up has left them.
        snapshots = [each.snapshot.contents if each.deterministic else each.snapshot.key for each in worlds]
        return cls(digest_of(test), seed, digest_of(*images), digest_of(*snapshots), wall_clock=wall_clock)

    def ended(self, rollout: Rollout) -> ReplayId:
        """Return this with what a rollout has done since."""
        episodes = rollout.traces()
        return replace(
            self,
            schedule=rollout.schedule,
            run=rollout.run_digest[:DIGITS] or NOTHING,
            controllers=digest_of(*rollout.controllers) if rollout.controllers else NOTHING,
            episodes=digest_of(combined(episodes)) if episodes else NOTHING,
        )

    def __str__(self) -> str:
        clock = "now" if self.wall_clock is None else f"{self.wall_clock:.6f}".rstrip("0").rstrip(".")
        parts = [self.test, self.seed, self.image, self.snapshot, self.controllers, self.episodes, clock]
        if self.schedule is not None:
            parts += [f"s{self.schedule}", self.run]
        return ".".join(map(str, parts))


def digest_of(*parts: str) -> str:
    """Return what an id calls a test, by its node id, or several things together."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:DIGITS]


def verdict(asked: ReplayId, came: ReplayId) -> tuple[bool, str]:
    """Say whether a replay gave what its id says.

    Args:
        asked: The id.
        came: That of the rollout which was to replay it.

    Returns:
        Whether it did, bit by bit; and a line on it.
    """
    parts = "engine, processor" if asked.schedule is None else "another warm-up, engine"
    changed = [
        what
        for what, same in (
            (f"the world's snapshot ({parts} or machine size)", asked.snapshot == came.snapshot),
            ("the controller, or what it was run with", asked.controllers == came.controllers),
            ("where the wall clock starts", asked.wall_clock == came.wall_clock),
            ("in which order threads take turns", asked.schedule == came.schedule),
        )
        if not same
    ]
    since = f"; not the same as then: {', '.join(changed)}" if changed else ""
    if asked.run == came.run != NOTHING:
        return True, f"to the last bit of the machine's memory the run of that rollout ({came.run}){since}"
    if asked.episodes == came.episodes == NOTHING and asked.run == came.run:
        return not changed, f"no episode to compare, then or now{since}"
    if asked.episodes == came.episodes and asked.run != came.run:
        since = since or "; the test asks something else of it"
        return False, f"another run of the whole machine than that rollout's ({came.run} now, {asked.run} then){since}"
    if asked.episodes == came.episodes:
        return True, f"bit by bit the episodes of that rollout ({came.episodes}){since}"
    if not changed:
        since = "; the test or something that the seed does not govern: --microsim-repeat 2 shows the first step"
    return False, f"other episodes than that rollout's ({came.episodes} now, {asked.episodes} then){since}"
