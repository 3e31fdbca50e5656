"""How many different outcomes N draws from K have: the occupancy distribution, and its lower tail.

With ``P(n, j)`` the probability that n draws from K equally likely outcomes gave j different ones,

    P(1, 1) = 1,    P(n, j) = P(n - 1, j) * j / K  +  P(n - 1, j - 1) * (K - j + 1) / K

(the classical occupancy problem; Feller, An Introduction to Probability Theory and Its Applications I, IV.2). All
terms are positive, so that floating point loses no more than about N rounding errors, relatively: nothing cancels,
which the closed form by inclusion and exclusion does.

**Outcomes that are not equally likely.** If no outcome is likelier than 1/K, then the number of different ones is
stochastically at least that of K equally likely ones (Wong and Yue, A majorization theorem for the number of distinct
outcomes in N independent trials, Discrete Mathematics 6, 1973). So the test stays valid with

    K = floor(1 / probability of the likeliest outcome)

and not with the number of outcomes, nor with ``1 / sum(p_i**2)``: of 31 outcomes, one of which has probability 0.7, 40
draws give the same 40 times with probability 0.7**40 = 6e-7, which K = 2 takes for 2e-12.
"""

from __future__ import annotations

import math
from functools import lru_cache

MOST_DRAWS = 10_000
"""Larger groups are judged by so many of their seeds, the lowest: the time grows with N to the power 1.5."""

_NEGLIGIBLE = 1e-40


@lru_cache(maxsize=1024)
def at_most(distinct: int, draws: int, outcomes: int) -> float:
    """Return ``P(different outcomes <= distinct)``.

    States less likely than 1e-40 are not followed further; their probability is added to the result. So it never is
    below the true value, and above it by at most 1e-35 for 10,000 draws, for which it takes about a second.

    Args:
        distinct: How many different outcomes, at most.
        draws: N, 1 or more.
        outcomes: K, 1 or more, equally likely.

    Raises:
        ValueError: No draws, or no outcomes.
    """
    if draws < 1 or outcomes < 1:
        raise ValueError(f"{draws} draws of {outcomes} outcomes: both are 1 or more")
    if distinct < 1:
        return 0.0
    if distinct >= min(draws, outcomes):
        return 1.0
    old = [j / outcomes for j in range(distinct + 2)]  # the next draw is one of the j seen so far
    new = [(outcomes - j + 1) / outcomes for j in range(distinct + 2)]  # it is the j-th different one
    fewest, masses, dropped = 1, [1.0], 0.0  # masses[i] is the probability of fewest + i different ones
    for _ in range(draws - 1):
        end = fewest + len(masses) + 1
        masses = [
            stay * same + come * fresh
            for stay, come, same, fresh in zip(
                [*masses, 0.0], [0.0, *masses], old[fewest:end], new[fewest:end], strict=True
            )
        ]
        if end - 1 > distinct:  # more than asked for, and there is no way back
            masses.pop()
        while masses and masses[0] < _NEGLIGIBLE:
            dropped += masses.pop(0)
            fewest += 1
        while masses and masses[-1] < _NEGLIGIBLE:
            dropped += masses.pop()
        if not masses:
            break
    return min(1.0, math.fsum(masses) + dropped)
