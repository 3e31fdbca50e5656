"""What a gate looks at, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from .differences import Difference


class Outcome(Enum):
    """How a gate answered.

    INCONCLUSIVE is a complete group that holds nothing to tell copies by. ERROR is a group with values that no gate
    can judge, such as NaN; it counts as a failure.
    """

    PASSED = "passed"
    WARNED = "warned"
    FAILED = "failed"
    ERROR = "error"
    INCONCLUSIVE = "inconclusive"
    NOT_ASSESSED = "not assessed"
    OFF = "off"


@dataclass(frozen=True)
class Sample:
    """One rollout of a group.

    Attributes:
        seed: The rollout's seed.
        fingerprint: Hex digest of all its episodes, or None if none was finished without an error.
        episode_seeds: The seeds its episodes were reset with, in order; None where the test asked for none.
        probes: 64 bits (16 hex digits) of each declared generator right after reseeding, by the source's name.
        scalars: What the test recorded and the episodes' metrics, by name.
        worker: The process that ran it, such as ``"gw0"``; empty where there was only one.
        run_digest: Of all that was in its deterministic machine at the end; empty for every other machine.
    """

    seed: int
    fingerprint: str | None
    episode_seeds: tuple[int | None, ...] = ()
    probes: Mapping[str, str] = field(default_factory=dict)
    scalars: Mapping[str, object] = field(default_factory=dict)
    worker: str = ""
    run_digest: str = ""


@dataclass(frozen=True)
class Repeat:
    """A seed that was run twice, to see whether it gives the same.

    Attributes:
        seed: The seed.
        fingerprints: Those of the two runs; None where one finished no episode.
        difference: Where they first differ, if both left trajectories and those differ.
        incomparable: Why the two are not to be compared, as
            :attr:`~pytest_microsim.gates.comparability.Comparability.differences` says it; empty if they are.
        run: Which run it was that is compared with the first, from 2.
        unpinned: Knobs that were left to chance in the first run, as
            :func:`~pytest_microsim.gates.comparability.unpinned` lists them.
        run_digests: Of all that was in the deterministic machines of the two at the end; empty for other machines.
    """

    seed: int
    fingerprints: tuple[str | None, str | None]
    difference: Difference | None = None
    incomparable: tuple[str, ...] = ()
    run: int = 2
    unpinned: tuple[str, ...] = ()
    run_digests: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Group:
    """All rollouts of one test that differ by nothing but the seed.

    Attributes:
        name: The test, as a reader knows it.
        expected: How many seeds the group has; fewer samples than that are a partial group.
        samples: Those that reported, each seed once.
        variance: ``"fail"``, ``"warn"`` or ``"off"``: what copies amount to.
        deterministic: The test says that its world has no randomness, so that copies are right.
        reseed: False if the test switched reseeding off.
        support: How many different episodes the world has, 1 or more, where they are few; None where they are not.
        min_effective_seeds: The group fails below so many independent episodes; None for no such demand.
        strict: What is inconclusive fails.
        over_seeds: False for a test that is run for one seed of its own, and has nothing to compare between seeds.
        runs: How often each seed was to be run.
        repeats: Seeds that were run again, once per further run.
    """

    name: str
    expected: int
    samples: tuple[Sample, ...]
    variance: str = "fail"
    deterministic: bool = False
    reseed: bool = True
    support: int | None = None
    min_effective_seeds: int | None = None
    strict: bool = False
    over_seeds: bool = True
    runs: int = 1
    repeats: tuple[Repeat, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What one gate says about one group.

    Attributes:
        gate: The gate's name, such as ``"T2 fingerprint"``.
        group: The group's name.
        outcome: How it ended.
        message: One sentence.
        n: Samples looked at.
        n_eff: How many independent samples they amount to.
        clusters: Seeds that are copies of each other, largest cluster first, without those of one.
        cause: The likely cause, where there is one to name.
        next_step: What to do about it.
        metric: What of the rollouts was looked at, where a gate looks at several things: the name of a scalar, or
            those of generators. At most one verdict of a group has the same gate and metric.
        reported: Where it fails, a test has failed for it already, so that no report of its own is due.
    """

    gate: str
    group: str
    outcome: Outcome
    message: str
    n: int = 0
    n_eff: float = 0.0
    clusters: tuple[tuple[int, ...], ...] = ()
    cause: str = ""
    next_step: str = ""
    metric: str = ""
    reported: bool = False

    @property
    def failed(self) -> bool:
        """True if the run has to fail for it."""
        return self.outcome in (Outcome.FAILED, Outcome.ERROR)

    def __str__(self) -> str:
        lines = [f"{self.gate}: {self.message}"]
        lines += [f"  copies of each other: {line}" for line in describe_clusters(self.clusters)]
        if self.cause:
            lines.append(f"  likely cause: {self.cause}")
        if self.next_step:
            lines.append(f"  next step: {self.next_step}")
        return "\n".join(lines)


def describe_clusters(
    clusters: tuple[tuple[int, ...], ...], *, most_clusters: int = 8, most_seeds: int = 12
) -> list[str]:
    """List clusters of seeds, one line each, bounded in both directions."""
    lines = [f"seeds {listed(cluster, most=most_seeds)}" for cluster in clusters[:most_clusters]]
    if len(clusters) > most_clusters:
        lines.append(f"... and {len(clusters) - most_clusters} more clusters")
    return lines


def listed(seeds: tuple[int, ...] | list[int], *, most: int = 12) -> str:
    """List seeds, bounded."""
    more = f", ... ({len(seeds)} seeds)" if len(seeds) > most else ""
    return ", ".join(map(str, seeds[:most])) + more
