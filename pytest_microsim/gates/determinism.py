"""The determinism gate: a seed that is run again gives the same, bit by bit.

No tolerance: floating point is deterministic, and what is only close has another cause than rounding: another order
of summing (threads), other instructions (another processor or version), or randomness and time that do not come from
the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .verdicts import Group, Outcome, Repeat, Verdict, listed

GATE = "determinism"
_MOST_SHOWN = 4


def judge_repeats(group: Group) -> Verdict:
    """Judge all seeds of one group that were run more than once.

    A difference fails whatever else is missing: nothing that a further run could give would undo it.

    Returns:
        FAILED if any gave another episode than the first time, PASSED if each gave the same each time; NOT_ASSESSED
        where that cannot be said: a run is missing or finished no episode, or two are not comparable.

    Raises:
        ValueError: No seed was to be run twice.
    """
    if not group.repeats and group.runs == 1:
        raise ValueError(f"no seed of {group.name} was run twice")
    n = _seeds(group.repeats)
    differ = [repeat for repeat in group.repeats if _differs(repeat)]
    if differ:
        more = list(dict.fromkeys(repeat.seed for repeat in differ[_MOST_SHOWN:]))
        return Verdict(
            GATE,
            group.name,
            Outcome.FAILED,
            f"{_seeds(differ)} of {n} repeated seeds of {group.name} gave another episode when they were run again: "
            + "; ".join(map(_told, differ[:_MOST_SHOWN]))
            + (f"; and seeds {listed(more)}" if more else ""),
            n=n,
            cause=_cause(differ) + _left_to_chance(differ),
            next_step="start at the named field: what does the world compute it from at that step?",
        )
    times = "twice" if group.runs <= 2 else f"{group.runs} times"
    message = f"{n} seeds run {times}, each time the same"
    outcome = Outcome.PASSED
    if len(group.repeats) < group.expected * (group.runs - 1):
        counts = Counter(repeat.seed for repeat in group.repeats)
        whole = sum(count == group.runs - 1 for count in counts.values())
        message = f"{whole} of {group.expected} seeds ran {times}"
        outcome = Outcome.NOT_ASSESSED
    elif apart := [repeat for repeat in group.repeats if _why_not(repeat)]:
        message = f"{_seeds(apart)} of {n} repeated seeds cannot be compared; {_which(apart[0])}: {_why_not(apart[0])}"
        outcome = Outcome.NOT_ASSESSED
    return Verdict(GATE, group.name, outcome, message, n=n)


def _seeds(repeats: Iterable[Repeat]) -> int:
    return len({repeat.seed for repeat in repeats})


def _differs(repeat: Repeat) -> bool:
    return not _why_not(repeat) and (_episodes_differ(repeat) or repeat.run_digests[0] != repeat.run_digests[1])


def _episodes_differ(repeat: Repeat) -> bool:
    return repeat.difference is not None or repeat.fingerprints[0] != repeat.fingerprints[1]


def _why_not(repeat: Repeat) -> str:
    if repeat.incomparable:
        return "; ".join(repeat.incomparable)
    # Of a deterministic machine, all of it can be compared.
    return "a run finished no episode" if None in repeat.fingerprints and not all(repeat.run_digests) else ""


def _told(repeat: Repeat) -> str:
    if not _episodes_differ(repeat):
        return f"{_which(repeat)}: the episodes are the same, and the rest of the deterministic machine is not"
    if repeat.difference is None:
        return f"{_which(repeat)}: the fingerprints differ, and no trajectory was kept to say where"
    return f"{_which(repeat)}: {repeat.difference.text}"


def _which(repeat: Repeat) -> str:
    return f"seed {repeat.seed}" if repeat.run == 2 else f"seed {repeat.seed} (run {repeat.run})"


def _left_to_chance(differ: list[Repeat]) -> str:
    names = sorted({name for repeat in differ for name in repeat.unpinned})
    return f"; not pinned: {', '.join(names)}" if names else ""


def _cause(differ: list[Repeat]) -> str:
    if not any(map(_episodes_differ, differ)):
        return "the test asks something else of the machine each time: a file with the time in it, a name of its own"
    found = [repeat.difference for repeat in differ if repeat.difference is not None]
    if found and all(difference.step == 0 for difference in found):
        return "the reset draws on something other than the seed: a generator that is not declared, the clock, a file"
    if found and all(difference.distance is not None and difference.distance <= 16 for difference in found):
        return "numbers are added in another order (threads), or by other instructions (another processor or version)"
    return "randomness or time that does not come from the seed: see what findings say, and what reads the clock"
