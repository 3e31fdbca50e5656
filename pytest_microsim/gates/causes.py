"""Why seeds are copies of each other, told by which of them are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

from .standing import copies_among
from .verdicts import Group, Sample, listed

_MOST_DIVISORS = 256

NOT_RESEEDED = (
    "the marker switches reseeding off (reseed=False), so every fork continues the random numbers "
    "frozen in the snapshot",
    "leave reseed=False out: it exists to show this trap",
)


def part_of_seed(seeds: Sequence[int], clusters: Sequence[tuple[int, ...]]) -> str:
    """Return the part of the seed that two seeds share if and only if they are copies; empty if there is none.

    Args:
        seeds: All seeds of the group.
        clusters: All of them, by equality; those of one seed too.
    """
    for divisor in range(2, min(len(seeds), _MOST_DIVISORS)):
        if _explains(lambda seed, by=divisor: seed % by, clusters):  # type: ignore[misc]
            return f"seed % {divisor}"
        if _explains(lambda seed, by=divisor: seed // by, clusters):  # type: ignore[misc]
            return f"seed // {divisor}"
    return ""


def cloned_workers(samples: Iterable[Sample], clusters: Iterable[tuple[int, ...]]) -> str:
    """Name the workers each of whose rollouts are all copies of each other.

    Returns:
        ``"gw0, gw1"`` if the copies are exactly those, and some other worker ran rollouts too; else empty.
    """
    by_worker: defaultdict[str, list[int]] = defaultdict(list)
    for sample in samples:
        by_worker[sample.worker].append(sample.seed)
    if len(by_worker) < 2:
        return ""
    worker_of = {tuple(sorted(seeds)): worker for worker, seeds in by_worker.items()}
    found = [worker_of.get(cluster, "") for cluster in copies_among(clusters)]
    return ", ".join(sorted(found)) if found and all(found) else ""


def of_episodes(group: Group, clusters: Sequence[tuple[int, ...]]) -> tuple[str, str]:
    """Return the likely cause of copied episodes, and what to do about it."""
    if not group.reseed:
        return NOT_RESEEDED
    episode_seeds = {sample.seed: sample.episode_seeds for sample in group.samples}
    if all(len({episode_seeds[seed] for seed in cluster}) == 1 for cluster in copies_among(clusters)):
        return (
            "the test gives several rollouts the same seed in run(seed=...) or reset(seed=...)",
            "leave the seed out: each rollout has its own",
        )
    step = "let the world's reset(seed) use the whole seed that it is given"
    if len(clusters) == 1:
        return "the seed never reached the world: all episodes are one and the same", step
    if workers := cloned_workers(group.samples, clusters):
        return (
            f"the rollouts of one worker are all one episode ({workers}): the world keeps a state per process",
            "look for what lives as long as the worker: a server on the host, a file, a port they all use",
        )
    if part := part_of_seed([sample.seed for sample in group.samples], clusters):
        return f"the world uses only a part of the seed: equal {part}, equal episode", step
    return "some of the world's randomness does not come from the seed, or only few different outcomes exist", step


def of_probes(group: Group, sources: Sequence[str], clusters: Sequence[tuple[int, ...]]) -> tuple[str, str]:
    """Return the likely cause of generators that repeat, and what to do about it."""
    if not group.reseed:
        return NOT_RESEEDED
    step = f"look at how {sources[0]!r} is declared: a function that seeds must use the whole number it is given, and "
    step += "generators() must return the object that the world draws from"
    if len(clusters) == 1:
        return "the seed never reached the generator: all forks continue the snapshot's random numbers", step
    if workers := cloned_workers(group.samples, clusters):
        return (
            f"all forks of one worker draw the same ({workers}): there the seed never reached the generator",
            "compare the workers' warm worlds: same template, same image, same versions?",
        )
    if part := part_of_seed([seed for cluster in clusters for seed in cluster], clusters):
        return f"the generator is seeded with a part of the seed only: equal {part}, equal numbers", step
    pairs = copies_among(clusters)
    return f"the seed never reached the generator in some forks (such as those of seeds {listed(pairs[0])})", step


def _explains(part: Callable[[int], Hashable], clusters: Iterable[tuple[int, ...]]) -> bool:
    """Tell whether a part of the seed is one and the same within each cluster, and differs between them."""
    seen: set[Hashable] = set()
    for cluster in clusters:
        label = part(cluster[0])
        if label in seen or any(part(seed) != label for seed in cluster):
            return False
        seen.add(label)
    return True
