"""Gate T2: a group whose episodes are copies of each other says less than its number of seeds promises.

``N_eff = N**2 / sum(c_i**2)`` over the clusters of equal fingerprints: N when all differ, 1 when all are
equal, 8 when a world uses only ``seed % 8``.

A world with only K different episodes repeats some by chance. For it the exact test of
:mod:`~pytest_microsim.gates.occupancy` takes the place of the threshold.
"""

from __future__ import annotations

from collections.abc import Iterable

from . import causes, occupancy
from .standing import ESCAPE, clustered, copies_among, effective_size, partial, severity, switched_off
from .verdicts import Group, Outcome, Sample, Verdict

GATE = "T2 fingerprint"
EFFECTIVE = "effective seeds"
ALPHA = 1e-6
"""Probability of failing a world that has the K equally likely episodes it is said to have."""

_MOST_NAMED = 4


def clusters_of(samples: Iterable[Sample]) -> list[tuple[int, ...]]:
    """Group seeds by equal fingerprint, largest cluster first; samples without one are left out."""
    return clustered((sample.seed, sample.fingerprint) for sample in samples if sample.fingerprint is not None)


def judge_fingerprints(group: Group) -> Verdict:
    """Judge the episodes of one group.

    Returns:
        FAILED if ``N_eff <= 0.75 N`` (WARNED if the test's marker says so), WARNED for any other copy, PASSED
        if all differ; with ``support``, FAILED if so few different episodes have a probability below ``ALPHA``,
        else PASSED. NOT_ASSESSED for one seed, or if any seed of the group has no finished episode.
    """
    if off := switched_off(group):
        return Verdict(GATE, group.name, Outcome.OFF, off)
    if missing := _why_not(group):
        return Verdict(GATE, group.name, Outcome.NOT_ASSESSED, missing, n=len(group.samples))

    clusters = clusters_of(group.samples)
    n = group.expected
    n_eff = effective_size(map(len, clusters))
    copies = copies_among(clusters)
    if not copies:
        return Verdict(GATE, group.name, Outcome.PASSED, f"{n} seeds, all different", n=n, n_eff=n_eff)
    if group.support is None:
        # 4 N <= 3 sum(c_i**2) is N_eff <= 0.75 N without rounding.
        too_few = 4 * n <= 3 * sum(len(cluster) ** 2 for cluster in clusters)
        outcome = severity(group) if too_few else Outcome.WARNED
        rule = f"at most {0.75 * n:g} of {n} fails"
    else:
        different, draws = _different(group)
        p = occupancy.at_most(different, draws=draws, outcomes=group.support)
        outcome = severity(group) if p < ALPHA else Outcome.PASSED
        rule = (
            f"{different} different ones in {draws}: of {group.support} equally likely episodes so few come with "
            f"probability {p:.2g}, and below {ALPHA:g} fails"
        )
    cause, step = causes.of_episodes(group, clusters) if outcome is not Outcome.PASSED else ("", "")
    return Verdict(
        GATE,
        group.name,
        outcome,
        f"{n} seeds of {group.name} amount to {n_eff:.1f} independent episodes (N_eff = {n_eff:.1f}, and {rule})"
        + (_constants(group) if len(clusters) == 1 else ""),
        n=n,
        n_eff=n_eff,
        clusters=copies,
        cause=cause,
        next_step=f"{step}; if copies are right here, say so with {ESCAPE}" if step else "",
    )


def judge_effective_seeds(group: Group) -> Verdict:
    """Hold one group to the number of independent episodes that its test demands.

    The demand stands whatever ``variance`` says; only ``deterministic`` contradicts it.

    Raises:
        ValueError: The group has no such demand.
    """
    wanted = group.min_effective_seeds
    if wanted is None:
        raise ValueError(f"{group.name} demands no number of effective seeds")
    n = len(group.samples)
    if group.deterministic:
        return Verdict(EFFECTIVE, group.name, Outcome.OFF, "switched off by the marker (deterministic=True)")
    if missing := partial(group):
        return Verdict(EFFECTIVE, group.name, Outcome.NOT_ASSESSED, missing, n=n)
    finished = sum(sample.fingerprint is not None for sample in group.samples)
    if finished == 0:
        return Verdict(
            EFFECTIVE,
            group.name,
            Outcome.INCONCLUSIVE,
            f"{group.name} asks for {wanted} independent episodes, and none of its {n} seeds finished one",
            n=n,
            next_step="use rollout.run, or reset and step, or leave min_effective_seeds out",
        )
    if missing := _why_not(group, alone=True):
        return Verdict(EFFECTIVE, group.name, Outcome.NOT_ASSESSED, missing, n=n)
    clusters = clusters_of(group.samples)
    n_eff = effective_size(map(len, clusters))
    if wanted * sum(len(cluster) ** 2 for cluster in clusters) <= n * n:
        message = f"{n} seeds amount to {n_eff:.1f} independent episodes, and {wanted} are asked for"
        return Verdict(EFFECTIVE, group.name, Outcome.PASSED, message, n=n, n_eff=n_eff)
    copies = copies_among(clusters)
    cause, step = causes.of_episodes(group, clusters) if copies else ("", "")
    if n < wanted:
        cause = f"the group has only {n} seeds" + (f"; and {cause}" if cause else "")
        step = f"run it over {wanted} seeds or more" + (f"; {step}" if step else "")
    return Verdict(
        EFFECTIVE,
        group.name,
        Outcome.FAILED,
        f"{n} seeds of {group.name} amount to {n_eff:.1f} independent episodes (N_eff = {n_eff:.1f}), and its test "
        f"asks for {wanted} (min_effective_seeds)",
        n=n,
        n_eff=n_eff,
        clusters=copies,
        cause=cause,
        next_step=step,
    )


def _constants(group: Group) -> str:
    """Name the numbers that are the same in all seeds: the results that look like many, and are one."""
    first, *others = (sample.scalars for sample in group.samples)
    same = [
        (name, value)
        for name, value in sorted(first.items())
        if all(name in other and other[name] == value for other in others)
    ]
    more = f", and {len(same) - _MOST_NAMED} more" if len(same) > _MOST_NAMED else ""
    listed = ", ".join(f"{name!r} is {value!r}" for name, value in same[:_MOST_NAMED])
    return f"; in all of them {listed}{more}" if same else ""


def _different(group: Group) -> tuple[int, int]:
    """Return how many different episodes the seeds have, and how many seeds were looked at: not all of many."""
    samples = sorted(group.samples, key=lambda sample: sample.seed)[: occupancy.MOST_DRAWS]
    return len({sample.fingerprint for sample in samples}), len(samples)


def _why_not(group: Group, *, alone: bool = False) -> str:
    """Say what keeps a group's episodes from being assessed; empty if nothing does."""
    if missing := partial(group):
        return missing
    finished = sum(sample.fingerprint is not None for sample in group.samples)
    if finished < group.expected:
        return f"{finished} of {group.expected} seeds finished an episode"
    return "one seed has nothing to be compared with" if group.expected == 1 and not alone else ""
