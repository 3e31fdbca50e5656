"""What the schedules of a seed come to: the first that fails, or how rare a fault would have to be to be missed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ..gates.verdicts import Outcome, Verdict
from ..results.gathering import LOST
from ..results.model import GroupResult, RolloutResult

GATE = "interleavings"
CONFIDENCE = 0.95


class Schedules:
    """Judges each seed of the groups whose seeds are run under several schedules."""

    def judge(self, groups: Sequence[GroupResult]) -> Mapping[str, Sequence[Verdict]]:
        """Judge them; see :class:`~pytest_microsim.report.judges.GroupJudge`.

        Returns:
            One verdict per seed, whose metric it is: FAILED, with the first schedule that failed; PASSED if all were
            run and none failed; NOT_ASSESSED if none failed, and some were not run.
        """
        return {group.key: _of_group(group) for group in groups if group.schedules}


def _of_group(group: GroupResult) -> list[Verdict]:
    by_seed: defaultdict[str, list[RolloutResult]] = defaultdict(list)
    for rollout in group.rollouts:
        by_seed[rollout.seed].append(rollout)
    return [_of_seed(group, seed, rollouts) for seed, rollouts in by_seed.items()]


def _of_seed(group: GroupResult, seed: str, rollouts: Sequence[RolloutResult]) -> Verdict:
    tried = [rollout for rollout in rollouts if rollout.outcome != "skipped"]
    lost = [rollout for rollout in tried if rollout.outcome in LOST]
    metric, n = f"seed {seed}", len(tried)
    if lost:
        first = min(lost, key=lambda rollout: rollout.run)
        return Verdict(
            GATE, group.name, Outcome.FAILED,
            f"schedule {first.schedule} is the first of {group.schedules} of seed {seed} that fails "
            f"({_told(first, tried)})",
            n=n, metric=metric, reported=True, next_step=f"replay it: {first.replay}",
            cause="what the test expects depends on which thread runs when; other schedules of this seed have passed"
            if first.outcome != "error" and n > len(lost) else "",
        )  # fmt: skip
    if n < group.schedules:
        message = f"{n} of {_counted(group.schedules)} of seed {seed} were run, and none has failed"
        return Verdict(GATE, group.name, Outcome.NOT_ASSESSED, message, n=n, metric=metric)
    different = len({rollout.fingerprint for rollout in tried if rollout.fingerprint})
    seen = ("", ", all with the same episode", f", with {different} different episodes")[min(different, 2)]
    return Verdict(
        GATE, group.name, Outcome.PASSED,
        f"{_counted(n)} of seed {seed} passed{seen}; a fault in {100 * overlooked(n):.2g} % of all schedules, or in "
        f"more, would have been found with {100 * CONFIDENCE:.0f} % confidence",
        n=n, metric=metric,
    )  # fmt: skip


def overlooked(passed: int, confidence: float = CONFIDENCE) -> float:
    """Return the share of failing schedules from which on a search in which all passed would have met one.

    The one-sided Clopper-Pearson bound where nothing failed: ``(1 - share) ** passed == 1 - confidence``.

    Args:
        passed: How many passed, 1 or more.
        confidence: How likely it would have met one, between 0 and 1.
    """
    share: float = 1.0 - (1.0 - confidence) ** (1.0 / passed)
    return share


def _told(first: RolloutResult, tried: Sequence[RolloutResult]) -> str:
    if len(tried) == 1:
        return "no other was run"
    before, passed = first.run - 1, sum(rollout.run < first.run for rollout in tried)
    which = f"all {before}" if passed == before else f"{passed} of {before}"
    return f"{which} before it passed, {len(tried)} were run"


def _counted(number: int) -> str:
    return "1 schedule" if number == 1 else f"{number} schedules"
