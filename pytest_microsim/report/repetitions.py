"""Seeds that were run several times: what the runs' reports say, put together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ..gates.comparability import compare, unpinned
from ..gates.differences import Difference
from ..gates.verdicts import Repeat


def repeats_of(members: Sequence[Mapping[str, Any]]) -> tuple[Repeat, ...]:
    """Compare each further run of each seed with the first.

    Args:
        members: One per run: its ``sample``, ``environment``, ``run``, and the ``differences`` that were found when it
            ended, as :meth:`pytest_microsim.repeats.Repeats.leave` returns them.

    Returns:
        In order of seeds and runs; without runs whose first one is missing.
    """
    by_seed: defaultdict[int, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for member in members:
        by_seed[member["sample"]["seed"]][member["run"]] = member
    return tuple(
        _repeat(seed, run, runs)
        for seed, runs in sorted(by_seed.items())
        for run in sorted(runs)
        if 1 in runs and run > 1
    )


def _repeat(seed: int, run: int, runs: Mapping[int, Mapping[str, Any]]) -> Repeat:
    first, second = runs[1], runs[run]
    fingerprints = first["sample"]["fingerprint"], second["sample"]["fingerprint"]
    # Either of the two found the difference, whichever ended later. That of a test that was rerun since is another.
    found = [
        each["difference"]
        for each in [*first["differences"], *second["differences"]]
        if each["run"] == run and tuple(each["fingerprints"]) == fingerprints and each["difference"] is not None
    ]
    return Repeat(
        seed,
        fingerprints,
        _difference(found[0]) if found else None,
        compare(first["environment"], second["environment"]).differences,
        run,
        unpinned(first["environment"]),
        (first["sample"]["run_digest"], second["sample"]["run_digest"]),
    )


def _difference(facts: Mapping[str, Any]) -> Difference:
    # A transport may have made lists of tuples.
    return Difference(**dict(facts) | {name: tuple(facts[name]) for name in ("index", "values")})
