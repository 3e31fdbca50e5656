"""How often independent seeds fail: never, in 50,000 groups per gate whose level is one in a million."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from gate_groups import of_episodes, of_probes, of_scalars

from pytest_microsim.gates.probes import judge_probes
from pytest_microsim.gates.scalars import judge_scalars
from pytest_microsim.gates.variance import judge_fingerprints
from pytest_microsim.gates.verdicts import Outcome

# How many groups of how many seeds: large ones are dear, and small ones are where ties are closest to copies.
GROUPS = {8: 20_000, 16: 16_000, 32: 10_000, 64: 3_200, 128: 800}
NULLS: dict[str, Callable[[random.Random], object]] = {
    "constant": lambda rng: 1.5,
    "yes or no, 0.5": lambda rng: rng.random() < 0.5,
    "yes or no, 0.1": lambda rng: rng.random() < 0.1,
    "yes or no, 0.01": lambda rng: rng.random() < 0.01,
    "one of 3": lambda rng: rng.randrange(3),
    "one of 10": lambda rng: rng.randrange(10),
    "a measurement": lambda rng: rng.gauss(0.0, 1.0),
}


def workers(seeds: int) -> list[str]:
    """Say who ran each of so many seeds: the same each time, and without a rule."""
    named = [f"gw{number % 4}" for number in range(seeds)]
    random.Random(seeds).shuffle(named)
    return named


WORKERS = {seeds: workers(seeds) for seeds in (*GROUPS, 24)}


def seeded(what: str) -> Iterator[tuple[random.Random, int]]:
    """Yield a generator and a number of seeds for each of 50,000 groups."""
    assert sum(GROUPS.values()) == 50_000
    rng = random.Random(what)
    for seeds, groups in GROUPS.items():
        for _ in range(groups):
            yield rng, seeds


def test_probes_never_fail() -> None:
    outcomes = Counter(
        verdict.outcome
        for rng, seeds in seeded("T1")
        for verdict in judge_probes(of_probes([rng.getrandbits(64) for _ in range(seeds)]))
    )
    assert outcomes == {Outcome.PASSED: 50_000}


def test_fingerprints_never_fail() -> None:
    outcomes = Counter(
        judge_fingerprints(of_episodes([f"{rng.getrandbits(128):x}" for _ in range(seeds)])).outcome
        for rng, seeds in seeded("T2")
    )
    assert outcomes == {Outcome.PASSED: 50_000}


def test_few_episodes_never_fail_with_their_support() -> None:
    # Equally likely ones; and 4 K more of at most 1/(2 K) each, beside one of 1/K, which is the likeliest.
    outcomes: Counter[Outcome] = Counter()
    for (rng, seeds), (support, equal) in zip(
        seeded("support"), itertools.cycle(itertools.product((1, 2, 5, 20, 100), (True, False))), strict=False
    ):
        if equal:
            drawn = [rng.randrange(support) for _ in range(seeds)]
        else:
            drawn = [
                0 if rng.random() * support < 1 else 1 + int(rng.random() ** 0.5 * 4 * support) for _ in range(seeds)
            ]
        outcomes[judge_fingerprints(of_episodes(list(map(str, drawn)), support=support)).outcome] += 1
    assert outcomes == {Outcome.PASSED: 50_000}


def test_scalars_never_fail() -> None:
    outcomes: Counter[Outcome] = Counter()
    for (rng, seeds), null in zip(seeded("T3"), itertools.cycle(NULLS.values()), strict=False):
        (verdict,) = judge_scalars(of_scalars([null(rng) for _ in range(seeds)], workers=WORKERS[seeds]))
        outcomes[verdict.outcome] += 1
    assert set(outcomes) == {Outcome.PASSED, Outcome.INCONCLUSIVE}
    assert sum(outcomes.values()) == 50_000


@pytest.mark.parametrize("null", NULLS)
def test_scalars_keep_a_level_that_can_be_seen(null: str) -> None:
    # At a level of one in ten the same code must fail at most one in ten: 1,500 groups tell 10 % from 13 %.
    rng = random.Random(null)
    groups = 1_500
    failed = sum(
        judge_scalars(of_scalars([NULLS[null](rng) for _ in range(seeds)], workers=WORKERS[seeds]), alpha=0.1)[0].failed
        for seeds in itertools.islice(itertools.cycle((8, 16, 24, 32)), groups)
    )
    assert failed < 0.13 * groups
