"""Gate T1: generators that draw the same numbers under different seeds, seen right after the fork.

Each source gives 64 bits per rollout. Two of N honest ones are equal with a probability below

    N (N - 1) / 2 * 2**-64  <  N**2 / 2**65

by the union bound over pairs (the birthday problem): 3e-10 for 100,000 seeds. So one pair is enough to fail, and no
trajectory is needed.
"""

from __future__ import annotations

from collections import defaultdict

from . import causes
from .standing import ESCAPE, clustered, copies_among, effective_size, partial, severity, switched_off
from .verdicts import Group, Outcome, Verdict, listed

GATE = "T1 probe"


def judge_probes(group: Group) -> list[Verdict]:
    """Judge each source of one group.

    Returns:
        One verdict for each set of sources with the same copies (FAILED, or WARNED if the marker says so), one for
        each set that the same seeds lack (INCONCLUSIVE), and one PASSED for all others; or a single one that says
        why none was looked at.
    """
    if off := switched_off(group):
        return [Verdict(GATE, group.name, Outcome.OFF, off)]
    if missing := _why_not(group):
        return [Verdict(GATE, group.name, Outcome.NOT_ASSESSED, missing, n=len(group.samples))]
    same: defaultdict[tuple[tuple[int, ...], ...], list[str]] = defaultdict(list)
    lacking: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
    fine: list[str] = []
    for source in sorted({source for sample in group.samples for source in sample.probes}):
        clusters = clustered(
            (sample.seed, sample.probes[source]) for sample in group.samples if source in sample.probes
        )
        without = tuple(sorted(sample.seed for sample in group.samples if source not in sample.probes))
        if copies_among(clusters):
            same[tuple(clusters)].append(source)
        elif without:
            lacking[without].append(source)
        else:
            fine.append(source)
    verdicts = [_copies(group, sources, clusters) for clusters, sources in same.items()]
    verdicts += [_lacking(group, sources, without) for without, sources in lacking.items()]
    if fine:
        n = group.expected
        message = f"{n} seeds, all different in {_named(fine)}"
        metric = ", ".join(fine) if verdicts else ""
        verdicts.append(Verdict(GATE, group.name, Outcome.PASSED, message, n=n, n_eff=n, metric=metric))
    return verdicts


def _why_not(group: Group) -> str:
    if missing := partial(group):
        return missing
    probed = sum(bool(sample.probes) for sample in group.samples)
    if probed < group.expected:
        return f"{probed} of {group.expected} seeds were probed"
    return "one seed has nothing to be compared with" if group.expected == 1 else ""


def _copies(group: Group, sources: list[str], clusters: tuple[tuple[int, ...], ...]) -> Verdict:
    n = sum(map(len, clusters))
    n_eff = effective_size(map(len, clusters))
    without = tuple(sorted({sample.seed for sample in group.samples} - {seed for seeds in clusters for seed in seeds}))
    lack = f"; seeds {listed(without)} do not have it" if without else ""
    cause, step = causes.of_probes(group, sources, clusters)
    return Verdict(
        GATE,
        group.name,
        severity(group),
        f"{_named(sources)} drew the same 64 bits under different seeds: {n} seeds of {group.name} amount to "
        f"{n_eff:.1f} (N_eff = {n_eff:.1f}; by chance any two are equal with a probability below "
        f"{n * n / 2**65:.0e}){lack}",
        n=n,
        n_eff=n_eff,
        clusters=copies_among(clusters),
        cause=cause,
        next_step=f"{step}; if copies are right here, say so with {ESCAPE}",
        metric=", ".join(sources),
    )


def _lacking(group: Group, sources: list[str], without: tuple[int, ...]) -> Verdict:
    return Verdict(
        GATE,
        group.name,
        Outcome.INCONCLUSIVE,
        f"{_named(sources)} is missing in seeds {listed(without)}: {group.expected - len(without)} of {group.expected} "
        f"seeds of {group.name} have it, and those differ",
        n=group.expected - len(without),
        n_eff=group.expected - len(without),
        cause="the forks do not come from one snapshot, or generators() returns other names at times",
        next_step="declare the same generators always, and before the warm-up ends",
        metric=", ".join(sources),
    )


def _named(sources: list[str]) -> str:
    names = ", ".join(map(repr, sources[:8])) + (f" and {len(sources) - 8} more" if len(sources) > 8 else "")
    return f"{'generator' if len(sources) == 1 else 'each of the generators'} {names}"
