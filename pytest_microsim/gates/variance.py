"""Gate T2: a group whose episodes are copies of each other says less than its number of seeds promises.

``N_eff = N**2 / sum(c_i**2)`` over the clusters of equal fingerprints: N when all differ, 1 when all are
equal, 8 when a world uses only ``seed % 8``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from .verdicts import Group, Outcome, Sample, Verdict

GATE = "T2 fingerprint"

_ESCAPE = '@pytest.mark.microsim(deterministic=True) or variance="warn"'


def effective_size(cluster_sizes: Iterable[int]) -> float:
    """Return ``N_eff`` of clusters of those sizes, N being their sum."""
    sizes = list(cluster_sizes)
    return sum(sizes) ** 2 / sum(size * size for size in sizes)


def clusters_of(samples: Iterable[Sample]) -> list[tuple[int, ...]]:
    """Group seeds by equal fingerprint, largest cluster first; samples without one are left out."""
    by_fingerprint: defaultdict[str, list[int]] = defaultdict(list)
    for sample in samples:
        if sample.fingerprint is not None:
            by_fingerprint[sample.fingerprint].append(sample.seed)
    return sorted((tuple(sorted(seeds)) for seeds in by_fingerprint.values()), key=lambda c: (-len(c), c))


def judge_fingerprints(group: Group) -> Verdict:
    """Judge one group.

    Returns:
        FAILED if ``N_eff <= 0.75 N`` (WARNED if the test's marker says so), WARNED for any other copy, PASSED
        if all differ; NOT_ASSESSED for one seed, or if any seed of the group has no finished episode.
    """
    if group.variance == "off" or group.deterministic:
        setting = "deterministic=True" if group.deterministic else 'variance="off"'
        return Verdict(GATE, group.name, Outcome.OFF, f"switched off by the marker ({setting})")
    missing = _why_not(group)
    if missing:
        return Verdict(GATE, group.name, Outcome.NOT_ASSESSED, missing, n=len(group.samples))

    clusters = clusters_of(group.samples)
    n = group.expected
    n_eff = effective_size(map(len, clusters))
    copies = tuple(cluster for cluster in clusters if len(cluster) > 1)
    if not copies:
        return Verdict(GATE, group.name, Outcome.PASSED, f"{n} seeds, all different", n=n, n_eff=n_eff)
    cause, step = _diagnosis(group, clusters)
    # 4 N <= 3 sum(c_i**2) is N_eff <= 0.75 N without rounding.
    too_few = 4 * n <= 3 * sum(len(cluster) ** 2 for cluster in clusters)
    return Verdict(
        GATE,
        group.name,
        Outcome.FAILED if too_few and group.variance == "fail" else Outcome.WARNED,
        f"{n} seeds of {group.name} amount to {n_eff:.1f} independent episodes "
        f"(N_eff = {n_eff:.1f}, and at most {0.75 * n:g} of {n} fails)",
        n=n,
        n_eff=n_eff,
        clusters=copies,
        cause=cause,
        next_step=f"{step}; if copies are right here, say so with {_ESCAPE}",
    )


def _why_not(group: Group) -> str:
    """Say what keeps a group from being assessed; empty if nothing does."""
    finished = sum(sample.fingerprint is not None for sample in group.samples)
    if len(group.samples) < group.expected:
        return f"{len(group.samples)} of {group.expected} seeds ran"
    if finished < group.expected:
        return f"{finished} of {group.expected} seeds finished an episode"
    return "one seed has nothing to be compared with" if group.expected == 1 else ""


def _diagnosis(group: Group, clusters: Sequence[tuple[int, ...]]) -> tuple[str, str]:
    """Return the likely cause of copies, and what to do about it."""
    if not group.reseed:
        return (
            "the marker switches reseeding off (reseed=False), so every fork continues the random numbers "
            "frozen in the snapshot",
            "leave reseed=False out: it exists to show this trap",
        )
    episode_seeds = {sample.seed: sample.episode_seeds for sample in group.samples}
    if all(len({episode_seeds[seed] for seed in cluster}) == 1 for cluster in clusters if len(cluster) > 1):
        return (
            "the test gives several rollouts the same seed in run(seed=...) or reset(seed=...)",
            "leave the seed out: each rollout has its own",
        )
    step = "let the world's reset(seed) use the whole seed that it is given"
    if len(clusters) == 1:
        return "the seed never reached the world: all episodes are one and the same", step
    seeds = [sample.seed for sample in group.samples]
    for divisor in range(2, min(len(seeds), 256)):
        for text, part in (
            (f"seed % {divisor}", lambda seed, by=divisor: seed % by),
            (f"seed // {divisor}", lambda seed, by=divisor: seed // by),
        ):
            if _partition(seeds, part) == set(clusters):
                return f"the world uses only a part of the seed: equal {text}, equal episode", step
    return "some of the world's randomness does not come from the seed, or only few different outcomes exist", step


def _partition(seeds: Iterable[int], part: Callable[[int], int]) -> set[tuple[int, ...]]:
    parts: defaultdict[int, list[int]] = defaultdict(list)
    for seed in seeds:
        parts[part(seed)].append(seed)
    return {tuple(sorted(members)) for members in parts.values()}
