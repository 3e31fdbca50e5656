"""The determinism gate: a seed that is run twice gives the same, bit by bit.

No tolerance: floating point is deterministic, and what is only close has another cause than rounding: another order
of summing (threads), other instructions (another processor or version), or randomness and time that do not come from
the seed.
"""

from __future__ import annotations

from .verdicts import Group, Outcome, Repeat, Verdict, listed

GATE = "determinism"
_MOST_SHOWN = 4


def judge_repeats(group: Group) -> Verdict:
    """Judge all seeds of one group that were run twice.

    Returns:
        FAILED if any gave another episode the second time, PASSED if each gave the same; NOT_ASSESSED where that
        cannot be said: a run finished no episode, or the two are not comparable.

    Raises:
        ValueError: No seed was run twice.
    """
    if not group.repeats:
        raise ValueError(f"no seed of {group.name} was run twice")
    n = len(group.repeats)
    differ = [repeat for repeat in group.repeats if _differs(repeat)]
    comparable = [repeat for repeat in group.repeats if _why_not(repeat) == ""]
    if differ:
        more = listed([repeat.seed for repeat in differ[_MOST_SHOWN:]])
        return Verdict(
            GATE,
            group.name,
            Outcome.FAILED,
            f"{len(differ)} of {n} repeated seeds of {group.name} gave another episode the second time: "
            + "; ".join(map(_told, differ[:_MOST_SHOWN]))
            + (f"; and seeds {more}" if more else ""),
            n=n,
            cause=_cause(differ),
            next_step="start at the named field: what does the world compute it from at that step?",
        )
    if len(comparable) < n:
        why = next(repeat for repeat in group.repeats if _why_not(repeat))
        message = f"{n - len(comparable)} of {n} repeated seeds cannot be compared; seed {why.seed}: {_why_not(why)}"
        return Verdict(GATE, group.name, Outcome.NOT_ASSESSED, message, n=n)
    return Verdict(GATE, group.name, Outcome.PASSED, f"{n} seeds run twice, each time the same", n=n)


def _differs(repeat: Repeat) -> bool:
    return not _why_not(repeat) and (repeat.difference is not None or repeat.fingerprints[0] != repeat.fingerprints[1])


def _why_not(repeat: Repeat) -> str:
    if repeat.incomparable:
        return "; ".join(repeat.incomparable)
    return "a run finished no episode" if None in repeat.fingerprints else ""


def _told(repeat: Repeat) -> str:
    if repeat.difference is None:
        return f"seed {repeat.seed}: the fingerprints differ, and no trajectory was kept to say where"
    return f"seed {repeat.seed}: {repeat.difference.text}"


def _cause(differ: list[Repeat]) -> str:
    found = [repeat.difference for repeat in differ if repeat.difference is not None]
    if found and all(difference.step == 0 for difference in found):
        return "the reset draws on something other than the seed: a generator that is not declared, the clock, a file"
    if found and all(difference.distance is not None and difference.distance <= 16 for difference in found):
        return "numbers are added in another order (threads), or by other instructions (another processor or version)"
    return "randomness or time that does not come from the seed: see what findings say, and what reads the clock"
