"""What a gate looks at, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """How a gate answered."""

    PASSED = "passed"
    WARNED = "warned"
    FAILED = "failed"
    NOT_ASSESSED = "not assessed"
    OFF = "off"


@dataclass(frozen=True)
class Sample:
    """One rollout of a group.

    Attributes:
        seed: The rollout's seed.
        fingerprint: Hex digest of all its episodes, or None if none was finished without an error.
        episode_seeds: The seeds its episodes were reset with, in order; None where the test asked for none.
    """

    seed: int
    fingerprint: str | None
    episode_seeds: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Group:
    """All rollouts of one test that differ by nothing but the seed.

    Attributes:
        name: The test, as a reader knows it.
        expected: How many seeds the group has; fewer samples than that are a partial group.
        samples: Those that reported.
        variance: ``"fail"``, ``"warn"`` or ``"off"``: what copies amount to.
        deterministic: The test says that its world has no randomness, so that copies are right.
        reseed: False if the test switched reseeding off.
    """

    name: str
    expected: int
    samples: tuple[Sample, ...]
    variance: str = "fail"
    deterministic: bool = False
    reseed: bool = True


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
    lines = []
    for cluster in clusters[:most_clusters]:
        seeds = ", ".join(map(str, cluster[:most_seeds]))
        more = f", ... ({len(cluster)} seeds)" if len(cluster) > most_seeds else ""
        lines.append(f"seeds {seeds}{more}")
    if len(clusters) > most_clusters:
        lines.append(f"... and {len(clusters) - most_clusters} more clusters")
    return lines
