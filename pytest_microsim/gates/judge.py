"""All gates over one group."""

from __future__ import annotations

import dataclasses

from .determinism import judge_repeats
from .probes import judge_probes
from .scalars import judge_scalars
from .standing import partial, switched_off
from .variance import GATE, judge_effective_seeds, judge_fingerprints
from .verdicts import Group, Outcome, Verdict


def judge(group: Group) -> list[Verdict]:
    """Run every gate that has something to look at.

    Returns:
        In this order: T1 probe, T2 fingerprint (always, but for a test that is not run over seeds), effective seeds,
        T3 scalar, determinism; at most one for each gate and metric. Where nothing of the group can be judged by
        comparing seeds (it is partial, has one seed, or is switched off), T2 speaks for T1 and T3 as well.
    """
    verdicts = _between_seeds(group) if group.over_seeds else []
    if group.repeats or group.runs > 1:
        verdicts.append(judge_repeats(group))
    return [_strictly(verdict) for verdict in verdicts] if group.strict else verdicts


def _between_seeds(group: Group) -> list[Verdict]:
    verdicts = [judge_fingerprints(group)]
    if not (partial(group) or switched_off(group) or group.expected == 1):
        if any(sample.probes for sample in group.samples):
            verdicts[:0] = judge_probes(group)
        if any(sample.scalars for sample in group.samples):
            verdicts += judge_scalars(group)
    if group.min_effective_seeds is not None:
        place = 1 + [verdict.gate for verdict in verdicts].index(GATE)
        verdicts.insert(place, judge_effective_seeds(group))
    return verdicts


def _strictly(verdict: Verdict) -> Verdict:
    if verdict.outcome is not Outcome.INCONCLUSIVE:
        return verdict
    return dataclasses.replace(verdict, outcome=Outcome.FAILED, message=f"{verdict.message} (strict: this fails)")
