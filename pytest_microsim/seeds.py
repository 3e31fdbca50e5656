"""Seeds of a group of rollouts: what counts as a list of seeds, and how each one is named.

A seed decides what a rollout does, so a group of them must mean the same thing in every process that
collects the test. Sets and dicts (whose order may differ between processes), iterators (gone after one
reading) and values that two generators would understand differently (``-1``, ``True``, ``1.0``) are refused.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from microsim_vm.errors import SeedError

MAX_GROUP = 100_000
"""Most seeds in one group: above it a typing error (``0:10**9``) would eat the memory at collection."""

SEED_BITS = 128
"""Seeds must be below ``2**128``: numpy's SeedSequence pool is that wide, so that larger ones could alias."""

_SLICE = re.compile(r"(\d*):(\d+)(?::(\d+))?")
_LISTED = 8


def check_seed(value: Any) -> int:
    """Return one seed as a plain int.

    Args:
        value: An int, or anything that stands for one without loss (a numpy integer).

    Raises:
        SeedError: For bools, floats, text, negative numbers and numbers of more than 128 bits.
    """
    if isinstance(value, bool):
        raise SeedError(
            f"{value!r} is a bool, not a seed",
            cause="generators disagree about bools: some take True for 1, some refuse it",
            hint="write the number",
        )
    try:
        seed = operator.index(value)
    except TypeError:
        raise SeedError(f"{value!r} is a {type(value).__name__}, not a seed", hint="seeds are ints") from None
    if seed < 0:
        raise SeedError(
            f"{seed} is negative, and seeds start at 0",
            cause="generators disagree about negative seeds: some refuse them, `random` drops the sign",
        )
    if seed.bit_length() > SEED_BITS:
        raise SeedError(f"seed {seed} has {seed.bit_length()} bits, and at most {SEED_BITS} can be told apart")
    return seed


def check_seeds(values: Any) -> list[int]:
    """Return the seeds of a group as plain ints, in the order given.

    Args:
        values: A range, list, tuple or other sequence of ints, or a one-dimensional integer array.

    Raises:
        SeedError: For anything unordered, one-shot, empty, repeated, or not made of seeds.
    """
    seeds = [check_seed(value) for value in _ordered(values)]
    if not seeds:
        raise SeedError(f"{_short(values)} holds no seed", cause="an empty range or a filter that keeps nothing")
    repeated = sorted(_repeated(seeds))
    if repeated:
        listed = ", ".join(map(str, repeated[:_LISTED])) + (", ..." if len(repeated) > _LISTED else "")
        raise SeedError(
            f"repeated seeds: {listed}",
            cause="the same episode would be counted as several samples",
            hint="list each seed once",
        )
    return seeds


def parse_seeds(text: str) -> list[int]:
    """Read the value of ``--microsim-seeds``.

    Args:
        text: ``START:STOP``, ``START:STOP:STEP`` or ``:STOP`` as in a slice, or a comma list ``1,7,9``.

    Raises:
        SeedError: If it is neither, or not a usable list of seeds.
    """
    compact = text.replace(" ", "")
    found = _SLICE.fullmatch(compact)
    if found:
        start, stop, step = (int(part) if part else None for part in found.groups())
        if step == 0:
            raise SeedError(f"{text!r}: the step of a range of seeds is at least 1")
        return check_seeds(range(start or 0, stop or 0, step or 1))
    parts = compact.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise SeedError(
            f"{text!r} is not a list of seeds",
            hint="write a range such as 0:64 or 0:64:8 (the end is not included), or a list such as 1,7,9",
        )
    return check_seeds([int(part) for part in parts])


def seed_ids(seeds: Sequence[int]) -> list[str]:
    """Name each seed of a group: all names of a group have one width, so that ``-k`` can select one seed."""
    width = max(4, len(str(max(seeds))))
    return [f"seed-{seed:0{width}d}" for seed in seeds]


def run_id(name: str, run: int) -> str:
    """Name one run of a seed, or of a test without seeds, that is run several times.

    Args:
        name: What the first run is called; empty for a test without seeds.
        run: Which run, from 1.
    """
    return name if run == 1 else f"{name}-run{run}".lstrip("-")


def seed_of_test(test_id: str) -> int:
    """Return the seed of a test without the marker: the same in every run and on every machine.

    Args:
        test_id: The test's node id.

    Returns:
        ``0 <= seed < 2**32``, which every generator accepts.
    """
    return _digest32(f"pytest-microsim test\0{test_id}")


def seed_of_episode(seed: int, episode: int) -> int:
    """Return the seed of the k-th episode of one rollout.

    Args:
        seed: The rollout's seed.
        episode: 0 for the first episode, which has the rollout's own seed.

    Returns:
        The rollout's seed for the first episode, else ``0 <= seed < 2**32`` derived from both by SHA-256
        (never ``seed + episode``, which is another rollout's seed).
    """
    return seed if episode == 0 else _digest32(f"pytest-microsim episode\0{seed}\0{episode}")


def _digest32(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:4], "big")


def _ordered(values: Any) -> Sequence[Any]:
    """Return the elements of something that has a stable order and can be read again."""
    name = type(values).__name__
    if isinstance(values, str | bytes | bytearray):
        raise SeedError(f"{values!r} is text, not a list of seeds", hint="write seeds(range(8)) or seeds([1, 7, 9])")
    if isinstance(values, Set | Mapping):
        raise SeedError(
            f"a {name} is not a list of seeds",
            cause="its order is not part of what it means, and may differ between the processes of one run",
            hint="write seeds(sorted(...))",
        )
    if isinstance(values, Iterator):
        raise SeedError(
            f"a {name} is not a list of seeds",
            cause="it can be read only once, and collection may read it again",
            hint="write seeds(list(...)) of values that are the same in every process",
        )
    if isinstance(values, Sequence):
        if len(values) > MAX_GROUP:
            raise SeedError(f"{_short(values)} holds {len(values)} seeds; a group has at most {MAX_GROUP}")
        return values
    if getattr(values, "shape", ()) and hasattr(values, "tolist"):  # a numpy array, without importing numpy
        if values.dtype.kind not in "iu" or len(values.shape) != 1:
            raise SeedError(
                f"an array of {values.dtype} and shape {values.shape} is not a list of seeds",
                hint="use one dimension and an integer dtype",
            )
        return _ordered(values.tolist())
    try:
        number = check_seed(values)
    except SeedError:
        raise SeedError(f"a {name} is not a list of seeds", hint="use a range, list or tuple of ints") from None
    raise SeedError(
        f"seeds({number}) can be read in two ways",
        hint=f"write seeds(range({number})) for {number} seeds, or seeds([{number}]) for that one seed",
    )


def _repeated(seeds: Sequence[int]) -> set[int]:
    seen: set[int] = set()
    return {seed for seed in seeds if seed in seen or seen.add(seed)}  # type: ignore[func-returns-value]


def _short(values: Any) -> str:
    text = repr(values)
    return text if len(text) <= 60 else text[:57] + "..."
