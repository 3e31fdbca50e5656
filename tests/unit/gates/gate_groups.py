"""Groups for the tests of the gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_microsim.gates.verdicts import Group, Sample


def group(samples: Sequence[Sample], **changes: Any) -> Group:
    return replace(Group("test_docks", len(samples), tuple(samples)), **changes)


def of_scalars(values: Sequence[object], *, workers: Sequence[str] = (), **changes: Any) -> Group:
    """Make a group that has nothing but one recorded number per seed."""
    named = workers or [""] * len(values)
    samples = [Sample(seed, None, scalars={"distance": value}, worker=named[seed]) for seed, value in enumerate(values)]
    return group(samples, **changes)


def of_probes(bits: Sequence[int], *, source: str = "world.wind", **changes: Any) -> Group:
    """Make a group whose rollouts have one probe and nothing else."""
    return group([Sample(seed, None, probes={source: f"{drawn:016x}"}) for seed, drawn in enumerate(bits)], **changes)


def of_episodes(prints: Sequence[str | None], **changes: Any) -> Group:
    """Make a group whose rollouts have fingerprints and nothing else."""
    return group([Sample(seed, text, (seed,)) for seed, text in enumerate(prints)], **changes)
