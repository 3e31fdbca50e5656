"""Gate T3: numbers that tell copies where no trajectory does.

A world that uses only ``seed % 8`` gives every recorded number the same value within each residue class. The gate asks
of each candidate partition of the seeds (see :mod:`.partitions`) whether more of its parts are constant than a random
assignment of the very same values to the seeds would make constant (see :mod:`.purity`, exact).

If the seeds are independent, all assignments are equally likely whatever the distribution of the values is: that is
the permutation test's only assumption, and ties are covered by it. With C candidate partitions and M metrics, each
comparison has the level ``ALPHA / (C M)``, so that by the union bound the whole group fails by chance with a
probability of at most ``ALPHA``.

A partition whose pure parts exceed their expected number by less than three standard deviations is not looked at
further. That saves time, and can only make failures rarer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from . import partitions, purity
from .partitions import Partition
from .standing import effective_size, partial, severity, switched_off
from .verdicts import Group, Outcome, Sample, Verdict, listed

GATE = "T3 scalar"
ALPHA = 1e-6
"""Probability, at most, of failing a group of independent seeds; over all its metrics and all partitions."""

_DEVIATIONS = 3.0


def judge_scalars(group: Group, *, alpha: float = ALPHA) -> list[Verdict]:
    """Judge each recorded number of one group.

    Returns:
        One verdict per metric, in order of their names: FAILED if its values follow a partition of the seeds (WARNED
        if the marker says so), ERROR for values that cannot be compared, NOT_ASSESSED for one that some seeds lack.
        One whose values can tell nothing (they are constant, or too few differ) is PASSED if all seeds have an
        episode, which tells more; NOT_ASSESSED if only some have, and INCONCLUSIVE if none has. PASSED otherwise.
        None for a metric that only seeds without a finished episode lack: T2 says that they have none. Or a single
        one that says why none was looked at.
    """
    if off := switched_off(group):
        return [Verdict(GATE, group.name, Outcome.OFF, off)]
    missing = partial(group) or ("one seed has nothing to be compared with" if group.expected == 1 else "")
    if missing:
        return [Verdict(GATE, group.name, Outcome.NOT_ASSESSED, missing, n=len(group.samples))]
    samples = sorted(group.samples, key=lambda sample: sample.seed)
    seeds = tuple(sample.seed for sample in samples)
    metrics = sorted({name for sample in samples for name in sample.scalars})
    finished = sum(sample.fingerprint is not None for sample in group.samples)
    used = slice(partitions.MOST_SEEDS)
    found = partitions.candidates(seeds[used], tuple(sample.worker for sample in samples)[used])
    level = alpha / max(1, len(found) * len(metrics))
    verdicts = []
    for metric in metrics:
        values = [sample.scalars.get(metric, _ABSENT) for sample in samples]
        verdict = _unusable(group, metric, seeds, values)
        if verdict is None:
            verdict = _judge(group, metric, seeds[used], values[used], found, level, finished=finished)
        if verdict.outcome is not Outcome.NOT_ASSESSED or not _went_with_the_episode(samples, metric):
            verdicts.append(verdict)
    return verdicts


def _went_with_the_episode(samples: Sequence[Sample], metric: str) -> bool:
    """Tell whether a metric is missing only where an episode is that other seeds have finished."""
    without = {sample.fingerprint for sample in samples if metric not in sample.scalars}
    return without == {None} and any(sample.fingerprint is not None for sample in samples)


_ABSENT = object()


def _unusable(group: Group, metric: str, seeds: tuple[int, ...], values: Sequence[object]) -> Verdict | None:
    """Return a verdict if the values cannot be compared with each other."""
    n = len(seeds)
    without = [seed for seed, value in zip(seeds, values, strict=True) if value is _ABSENT]
    kinds = {_kind(value): seed for seed, value in reversed(list(zip(seeds, values, strict=True)))}
    kinds.pop("", None)
    for kind in ("NaN", "infinite"):
        if kind in kinds:
            bad = [seed for seed, value in zip(seeds, values, strict=True) if _kind(value) == kind]
            return Verdict(
                GATE, group.name, Outcome.ERROR,
                f"metric {metric!r} of {group.name} is {kind} in seeds {listed(bad)}, and compares with nothing",
                n=n, metric=metric, cause="a division by zero, a mean over nothing, or a diverged simulation",
                next_step="find where it comes from, or leave the metric out of those episodes",
            )  # fmt: skip
    if len(kinds) > 1 or kinds.keys() - {"a number", "a bool"}:
        said = ", ".join(f"{kind} in seed {seed}" for kind, seed in sorted(kinds.items(), key=lambda item: item[1]))
        return Verdict(
            GATE, group.name, Outcome.ERROR,
            f"metric {metric!r} of {group.name} is not one kind of number in all seeds: {said}",
            n=n, metric=metric, cause="a metric that has another type in some cases, such as None for 'never'",
            next_step="give it one type in all episodes: numbers, or bools",
        )  # fmt: skip
    if without:
        return Verdict(
            GATE, group.name, Outcome.NOT_ASSESSED,
            f"metric {metric!r}: {n - len(without)} of {n} seeds have it; it is missing in seeds {listed(without)}",
            n=n - len(without), metric=metric,
        )  # fmt: skip
    return None


def _kind(value: object) -> str:
    if value is _ABSENT:
        return ""
    if isinstance(value, bool):
        return "a bool"
    if isinstance(value, int):
        return "a number"
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else "infinite" if math.isinf(value) else "a number"
    return f"a {type(value).__name__}"


def _judge(
    group: Group, metric: str, seeds: tuple[int, ...], values: Sequence[object], found: Sequence[Partition],
    level: float, *, finished: int,
) -> Verdict:  # fmt: skip
    n = len(seeds)
    of = f" (the lowest {n} of {group.expected} seeds)" if n < group.expected else ""
    counts = tuple(sorted(Counter(values).values(), reverse=True))
    if counts[0] == 1 and n > 1:
        message = f"metric {metric!r}: {n} seeds, all different{of}"
        return Verdict(GATE, group.name, Outcome.PASSED, message, n=n, n_eff=n, metric=metric)
    silent = ""
    if len(counts) == 1:
        silent = f"is {values[0]!r} in all {n} seeds{of}"
    elif purity.arrangements_log(counts) < -math.log(level):
        silent = f"has {len(counts)} different values in {n} seeds{of}, too few to tell copies from chance"
    if silent:
        return _silent(group, metric, n, silent, finished=finished)
    best = _least_likely(values, found, counts)
    if best is None or best[0] > Fraction(level):
        message = f"metric {metric!r}: none of {len(found)} partitions of {n} seeds{of} explains its values"
        return Verdict(GATE, group.name, Outcome.PASSED, message, n=n, n_eff=n, metric=metric)
    p, partition, pure = best
    clusters = tuple(sorted(tuple(seeds[position] for position in part) for part in pure))
    copied = sum(map(len, clusters))
    n_eff = effective_size([*map(len, clusters), *[1] * (n - copied)])
    cause, step = _cause(group, partition.rule)
    return Verdict(
        GATE,
        group.name,
        severity(group),
        f"metric {metric!r} of {group.name} is constant within {len(pure)} of {len(partition.parts)} parts of "
        f"{partition.rule}, {partition.size} seeds each{of}: its {n} values amount to {n_eff:.1f} "
        f"(N_eff = {n_eff:.1f}; independent seeds do that with probability {_text(p)}, and at most {level:.1g} fails)",
        n=n,
        n_eff=n_eff,
        clusters=clusters,
        cause=cause,
        next_step=f"{step}; if the number is meant to be so, leave it out with "
        f"@pytest.mark.microsim(unchecked=[{metric!r}])",
        metric=metric,
    )


def _silent(group: Group, metric: str, n: int, what: str, *, finished: int) -> Verdict:
    """Judge values that say nothing by themselves.

    Probes do not help: they show that generators got their seeds, not that the test has used any.
    """
    if finished == group.expected:
        message = f"metric {metric!r} {what}; the episodes tell whether the seeds differ"
        return Verdict(GATE, group.name, Outcome.PASSED, message, n=n, metric=metric)
    if finished:
        message = f"metric {metric!r} {what}, and {finished} of {group.expected} seeds finished an episode"
        return Verdict(GATE, group.name, Outcome.NOT_ASSESSED, message, n=n, metric=metric)
    return Verdict(
        GATE, group.name, Outcome.INCONCLUSIVE,
        f"metric {metric!r} of {group.name} {what}, and there is no episode to tell more",
        n=n, metric=metric, cause="the test records nothing that depends on the seed, or the seed reaches nothing",
        next_step="run an episode, or record a number that the seed should change; if the number is meant to be so, "
        f"leave it out with @pytest.mark.microsim(unchecked=[{metric!r}])",
    )  # fmt: skip


def _least_likely(
    values: Sequence[object], found: Sequence[Partition], counts: tuple[int, ...]
) -> tuple[Fraction, Partition, list[tuple[int, ...]]] | None:
    """Return the partition whose number of pure parts is the least likely one, and those parts."""
    n = len(values)
    seats: dict[object, int] = {}
    for position, value in enumerate(values):
        seats[value] = seats.get(value, 0) | 1 << position
    masks = [seats[value] for value in values]
    best: tuple[Fraction, Partition] | None = None
    for partition in found:
        if counts[0] < partition.size:
            continue
        pure = sum(masks[first] & part == part for first, part in partition.masks)
        if pure == 0:
            continue
        mean, deviation = purity.expected(n, len(partition.parts), partition.size, counts)
        if pure <= mean + _DEVIATIONS * deviation:
            continue
        p = purity.at_least(pure, n, len(partition.parts), partition.size, counts)
        if best is None or p < best[0]:
            best = p, partition
    if best is None:
        return None
    pure_parts = [
        positions
        for positions, (first, part) in zip(best[1].parts, best[1].masks, strict=True)
        if masks[first] & part == part
    ]
    return *best, pure_parts


def _cause(group: Group, rule: str) -> tuple[str, str]:
    if not group.reseed:
        return "the marker switches reseeding off (reseed=False)", "leave reseed=False out: it exists to show this trap"
    if rule == "worker":
        return (
            "what the number comes from lives as long as the worker, and not as long as the rollout",
            "look for a state that the rollouts of one worker share: a server on the host, a file, a port",
        )
    return (
        f"the world uses only a part of the seed: equal {rule}, equal value",
        "let the world's reset(seed) use the whole seed that it is given",
    )


def _text(p: Fraction) -> str:
    number = float(p)
    return f"{number:.1e}" if number > 0 else "below 1e-300"
