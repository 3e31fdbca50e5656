"""New results put into a baseline. Seeds that were not run keep what they have."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from microsim_vm import digests

from ..errors import BaselineError
from . import store
from .store import Baseline, Entry


@dataclass(frozen=True)
class New:
    """What a seed gave now.

    Attributes:
        entry: What is to be kept; its environment is that of :func:`updated`'s caller.
        spooled: The files of its episodes, where they are not in the baseline yet: each with the name it is to have.
            None where it gave none, or they are there already.
    """

    entry: Entry
    spooled: tuple[tuple[Path, str], ...] | None = None


@dataclass(frozen=True)
class Updated:
    """What came of an update.

    Attributes:
        changed: Seeds that were written anew.
        same: Seeds that gave what they had given.
        dropped: Seeds that the test has no more.
        baseline: The baseline now.
    """

    changed: tuple[int, ...]
    same: tuple[int, ...]
    dropped: tuple[int, ...]
    baseline: Baseline


def flat(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment as a baseline keeps it: knobs by their dotted names, with values that TOML knows."""
    return dict(_flat(environment, ""))


def name_of(environment: Mapping[str, Any]) -> str:
    """Return a short name for a flat environment, another one for each."""
    return hashlib.sha256(json.dumps(environment, sort_keys=True).encode("utf-8", "replace")).hexdigest()[:8]


def update(
    path: Path, test: str, environment: Mapping[str, Any], new: Mapping[int, New], *, seeds: frozenset[int] | None
) -> Updated:
    """Put what seeds gave into a baseline, and write it if that changes anything.

    Args:
        path: The baseline's file.
        test: What the test is called in its own file.
        environment: What they ran in, flat.
        new: What each seed gave that was run to its end.
        seeds: All seeds that the test has, where that is known: others are dropped. None keeps them.

    Raises:
        BaselineError: The baseline cannot be read, or not be written.
    """
    try:
        with store.locked(path):
            before = store.read(path) or Baseline(test)
            after = Baseline(test, dict(before.environments), dict(before.seeds))
            changed = [seed for seed, each in new.items() if not _kept(before, seed, each)]
            dropped = sorted(set() if seeds is None else set(before.seeds) - seeds)
            for seed in dropped:
                del after.seeds[seed]
            for seed, each in new.items():
                names = _placed(path, each)
                if seed in changed:
                    entry = each.entry
                    after.environments[entry.environment] = dict(environment)
                    kept = names if names is not None else _still(before, seed, entry)
                    after.seeds[seed] = dataclasses.replace(entry, trajectories=kept)
            data = store.encoded(after)
            if after.seeds and (not path.exists() or path.read_bytes() != data):
                digests.write_atomically(path, data)
            _tidy(path, after)
    except OSError as error:
        raise BaselineError(f"{error.filename or path} cannot be written: {error.strerror}") from None
    same = tuple(sorted(set(new) - set(changed)))
    return Updated(tuple(sorted(changed)), same, tuple(dropped), after)


def _kept(before: Baseline, seed: int, new: New) -> bool:
    """Tell whether a seed gave what it had given, in the same environment."""
    entry = before.seeds.get(seed)
    return entry is not None and entry.same(new.entry)


def _placed(path: Path, new: New) -> tuple[str, ...] | None:
    """Put a seed's episodes beside those that are there already."""
    if new.spooled is None:
        return None
    folder = store.trajectories_of(path)
    folder.mkdir(parents=True, exist_ok=True)
    for spooled, name in new.spooled:
        if not (folder / name).exists():
            partial = folder / f".{name}.partial"
            shutil.copyfile(spooled, partial)
            partial.replace(folder / name)
    return tuple(name for _, name in new.spooled)


def _still(before: Baseline, seed: int, entry: Entry) -> tuple[str, ...]:
    """Return the episodes that a seed has already, where they are those of the same fingerprint."""
    old = before.seeds.get(seed)
    return old.trajectories if old is not None and old.fingerprint == entry.fingerprint else ()


def _tidy(path: Path, baseline: Baseline) -> None:
    """Remove episodes that the baseline names no more, and what an interrupted update has left."""
    folder = store.trajectories_of(path)
    if not folder.is_dir():
        return
    named = {name for entry in baseline.seeds.values() for name in entry.trajectories}
    for file in folder.iterdir():
        if file.name not in named and file.suffix in (".mcap", ".partial"):
            file.unlink(missing_ok=True)


def _flat(knobs: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in knobs.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is None:
            yield f"{prefix}{name}", "not pinned"
        elif isinstance(value, str | int | float | bool):
            yield f"{prefix}{name}", value
        else:
            yield f"{prefix}{name}", json.dumps(value, sort_keys=True, default=str)
