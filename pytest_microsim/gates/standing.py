"""Whether a group can be judged at all, and how loudly its copies are to be reported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable

from .verdicts import Group, Outcome

ESCAPE = '@pytest.mark.microsim(deterministic=True) or variance="warn"'


def switched_off(group: Group) -> str:
    """Say by which setting of the marker, or of the ini file, the gates are off; empty if they are on."""
    if group.variance == "off" or group.deterministic:
        setting = "deterministic=True" if group.deterministic else 'variance="off"'
        return f"switched off ({setting})"
    return ""


def partial(group: Group) -> str:
    """Say what keeps a whole group from being assessed; empty if nothing does."""
    if len(group.samples) < group.expected:
        return f"{len(group.samples)} of {group.expected} seeds ran"
    return ""


def severity(group: Group) -> Outcome:
    """Return what copies amount to in a group whose gates are on."""
    return Outcome.FAILED if group.variance == "fail" else Outcome.WARNED


def effective_size(cluster_sizes: Iterable[int]) -> float:
    """Return ``N_eff = N**2 / sum(c_i**2)`` of clusters of those sizes, N being their sum."""
    sizes = list(cluster_sizes)
    return sum(sizes) ** 2 / sum(size * size for size in sizes)


def clustered(names: Iterable[tuple[int, Hashable]]) -> list[tuple[int, ...]]:
    """Group seeds by equal name, largest cluster first."""
    by_name: defaultdict[Hashable, list[int]] = defaultdict(list)
    for seed, name in names:
        by_name[name].append(seed)
    return sorted((tuple(sorted(seeds)) for seeds in by_name.values()), key=lambda c: (-len(c), c))


def copies_among(clusters: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Return the clusters that hold copies: those of more than one seed."""
    return tuple(cluster for cluster in clusters if len(cluster) > 1)
