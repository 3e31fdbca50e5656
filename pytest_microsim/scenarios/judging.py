"""The judge of pass rates: whether enough seeds of a scenario passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ..gates.verdicts import Outcome, Verdict, listed
from ..results.gathering import complete
from ..results.model import AskedRate, GroupResult, RolloutResult
from .passrate import assess
from .spec import PassRate

GATE = "pass rate"


class PassRates:
    """Judges the groups of scenarios that ask for a pass rate."""

    def judge(self, groups: Sequence[GroupResult]) -> Mapping[str, Sequence[Verdict]]:
        """Judge all groups of a run, each on its own."""
        return {group.key: [_verdict(group, group.asked_rate)] for group in groups if group.asked_rate is not None}


def _verdict(group: GroupResult, asked: AskedRate) -> Verdict:
    rate = group.pass_rate
    total = 0 if rate is None else rate.total
    said = partial(Verdict, gate=GATE, group=group.name, n=total)
    if rate is None or not complete(group):
        return said(
            outcome=Outcome.NOT_ASSESSED,
            message=f"{total} of {group.expected} seeds have passed or missed; all of them have to for a pass rate",
        )
    failed = sum(rollout.outcome == "failed" for rollout in group.rollouts if rollout.run == 1)
    if failed:
        return said(
            outcome=Outcome.NOT_ASSESSED,
            message=f"{failed} of {total} seeds failed on their own",
            cause="another reason than what the scenario expects, or --runxfail",
        )
    found = assess(PassRate(at_least=asked.at_least, confidence=asked.confidence, by=asked.by), rate.passed, total)
    if found.met:
        return said(outcome=Outcome.PASSED, message=found.message)
    if not found.possible:
        return said(
            outcome=Outcome.INCONCLUSIVE,
            message=f"{found.message}; so few seeds cannot show it, even if all pass",
            cause="other seeds were chosen on the command line than the scenario has",
        )
    missed = [rollout for rollout in group.rollouts if rollout.run == 1 and rollout.outcome == "missed"]
    return said(
        outcome=Outcome.FAILED,
        message=found.message,
        cause=f"what the scenario expects was missed by {_seeds(missed)}",
        next_step=f"replay one of them: {missed[0].replay}",
    )


def _seeds(rollouts: Sequence[RolloutResult]) -> str:
    seeds = [int(rollout.seed) for rollout in rollouts]
    return ("seed " if len(seeds) == 1 else "seeds ") + listed(seeds)
