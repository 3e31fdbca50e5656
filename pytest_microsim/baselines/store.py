"""A baseline on disk: one text file per group of seeds, and the episodes of its seeds in a folder of the same name.

``test_dock.py`` has ``baselines/test_dock.py/test_robot_docks.toml`` beside it, and ``test_robot_docks/3-1f0c….mcap``.
An episode's file has its fingerprint in its name and is never changed: a new one is written first, then the text file
is replaced, and what it names no more is removed last. So whatever interrupts that leaves a baseline that is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec

from ..errors import BaselineError
from . import toml

FOLDER = "baselines"
SUFFIX = ".toml"
FORMAT = 1
_HEADER = "# Recorded by pytest --microsim-baseline update; pytest --microsim-baseline check compares with it."
_LONGEST_NAME = 100
_UNSAFE = re.compile(r"[^A-Za-z0-9._=,+-]")


@dataclass(frozen=True)
class Entry:
    """What one seed gave.

    Attributes:
        outcome: "passed", "failed" or "missed".
        fingerprint: Of all its episodes; empty where one was not finished.
        metrics: By name; None for what was no finite number.
        environment: Under which name the file has what it ran in.
        recorded: When.
        host: The host's kernel and our version: said where they differ, and no reason not to compare.
        trajectories: The files of its episodes, in order.
        parameters: What a scenario set for it, as text by name.
    """

    outcome: str
    fingerprint: str
    metrics: Mapping[str, float | None]
    environment: str
    recorded: datetime
    host: str = ""
    trajectories: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)

    def same(self, other: Entry) -> bool:
        """Tell whether the seed gave the same both times, in the same environment."""
        return (self.outcome, self.fingerprint, self.metrics, self.environment, self.parameters) == (
            other.outcome, other.fingerprint, other.metrics, other.environment, other.parameters,
        )  # fmt: skip


@dataclass
class Baseline:
    """The baseline of one group.

    Attributes:
        test: The test, as its file names it.
        environments: Knobs and what they were set to, flat; by a name of its own for each environment.
        seeds: What each seed gave.
    """

    test: str
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: dict[int, Entry] = field(default_factory=dict)

    @property
    def recorded(self) -> datetime | None:
        """When the latest of its seeds was recorded."""
        return max((entry.recorded for entry in self.seeds.values()), default=None)


def place_of(test_file: Path, key: str) -> Path:
    """Return where the baseline of a group is.

    Args:
        test_file: The file of the test.
        key: The group's: the test file, ``::``, and what the group is called in it.
    """
    name = key.partition("::")[2]
    test, bracket, parameters = name.partition("[")
    parameters = parameters.removesuffix("]")
    plain = f"{test.replace('::', '.')}{'+' if bracket else ''}{parameters}"
    safe = _UNSAFE.sub("_", plain)
    # What is called so without more is nothing else's name: of parameters, dots and plus signs stand for themselves.
    if safe != plain or "+" in name or len(safe) > _LONGEST_NAME:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        safe = f"{safe[:_LONGEST_NAME]}-{digest}"
    return test_file.parent / FOLDER / test_file.name / f"{safe}{SUFFIX}"


def trajectories_of(path: Path) -> Path:
    """Return the folder of the episodes of a baseline."""
    return path.with_suffix("")


def trajectory_name(seed: int, number: int, fingerprint: str) -> str:
    """Return what the file of an episode is called.

    Args:
        seed: The rollout's.
        number: Which of its episodes, from 1.
        fingerprint: The episode's.
    """
    return f"{seed}{f'.{number}' if number > 1 else ''}-{fingerprint[:12]}.mcap"


def read(path: Path) -> Baseline | None:
    """Read a baseline; None where there is none.

    Raises:
        BaselineError: It is there and cannot be read.
    """
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BaselineError(f"{path} cannot be read: {error.strerror}") from None
    if re.search(rb"^(<{7}|>{7}) ", data, re.MULTILINE):
        raise BaselineError(
            f"{path} is not merged yet",
            hint="take one side for each seed that both have changed, then run the update of that test again",
        )
    try:
        return _decoded(tomllib.loads(data.decode()))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BaselineError(
            f"{path} is no baseline that can be read: {error}",
            cause="it was edited by hand, or by another version",
            hint="restore it, or delete it and run the update again",
        ) from None


def encoded(baseline: Baseline) -> bytes:
    """Return the text of a baseline, the same for the same content."""
    lines = [_HEADER, f"format = {FORMAT}", f"test = {toml.text(baseline.test)}"]
    used = {entry.environment for entry in baseline.seeds.values()}
    for name in sorted(used):
        lines += ["", f"[environments.{toml.key(name)}]", *toml.lines(baseline.environments[name])]
    for seed, entry in sorted(baseline.seeds.items()):
        metrics = {name: float("nan") if number is None else number for name, number in entry.metrics.items()}
        lines += [
            "",
            f"[seeds.{seed}]",
            f"recorded = {entry.recorded.isoformat()}",
            f"host = {toml.text(entry.host)}",
            f"environment = {toml.text(entry.environment)}",
            f"outcome = {toml.text(entry.outcome)}",
            f"fingerprint = {toml.text(entry.fingerprint)}",
            f"trajectories = {toml.value(list(entry.trajectories))}",
            *toml.lines(entry.parameters, "parameters."),
            *toml.lines(metrics, "metrics."),
        ]
    return ("\n".join(lines) + "\n").encode()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes that update baselines of the same test file waiting; nothing is left of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


class _Seed(msgspec.Struct, forbid_unknown_fields=True):
    recorded: Annotated[datetime, msgspec.Meta(tz=True)]
    environment: str
    outcome: str
    fingerprint: str
    host: str = ""
    trajectories: list[str] = []
    parameters: dict[str, str] = {}
    metrics: dict[str, float] = {}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    test: str
    environments: dict[str, dict[str, str | int | float | bool]] = {}
    seeds: dict[str, _Seed] = {}


def _decoded(document: dict[str, Any]) -> Baseline:
    if document.get("format") != FORMAT:
        raise ValueError(f"its format is {document.get('format')!r}, and this version reads {FORMAT}")
    file = msgspec.convert(document, _File)
    seeds = {}
    for seed, each in file.seeds.items():
        if each.environment not in file.environments:
            raise ValueError(f"seed {seed} is from the environment {each.environment!r}, which it does not have")
        if any(_UNSAFE.search(name) or name.startswith(".") for name in each.trajectories):
            raise ValueError(f"seed {seed} has the file {each.trajectories!r}")
        metrics = {name: None if number != number else number for name, number in each.metrics.items()}
        seeds[int(seed)] = Entry(
            each.outcome, each.fingerprint, metrics, each.environment, each.recorded, each.host,
            tuple(each.trajectories), each.parameters,
        )  # fmt: skip
    return Baseline(file.test, cast("dict[str, dict[str, Any]]", file.environments), seeds)
