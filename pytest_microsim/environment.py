"""What a rollout ran in: every knob that changes a trajectory beside the seed, and what it was set to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from microsim_vm.world import WarmWorld

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_LOCALE = ("LANG", "LC_ALL")
_NOT_THE_ENGINE = ("cpu", "arguments")  # of an engine's identity: a knob of its own, and what follows from the release
DIGITS = 16
FROM_SEED = "derived from the seed"
"""What is said of a knob that each seed sets for itself."""


def environment_of(world: WarmWorld, seed: int, schedule: int | None = None) -> dict[str, Any]:
    """Return the environment of one rollout, for :func:`pytest_microsim.gates.comparability.compare`.

    Args:
        world: What it was forked from.
        seed: The rollout's seed.
        schedule: Of a deterministic machine, in which order its threads take turns; None for that of the seed.

    Returns:
        Simple types, by knob; None for what was not pinned.
    """
    from microsim_guest import config
    from microsim_vm.engines import hostcpu

    env = config.environment({"env": dict(world.template.env)}, seed=seed)
    manifest = world.snapshot.manifest
    environment: dict[str, Any] = {
        "threads": {name: env.get(name) or None for name in _THREADS},
        "hash_seed": _unless_random(env.get("PYTHONHASHSEED", "")),
        "wall_clock": world.wall_clock,
        "timezone": env.get("TZ") or None,
        "locale": {name: env.get(name) or None for name in _LOCALE},
        # The model is the host's; what the guest sees of it is a long list of features.
        "cpu": {"model": hostcpu.model(), "seen": _short(manifest.engine["cpu"])},
        "engine": {name: value for name, value in manifest.engine.items() if name not in _NOT_THE_ENGINE},
        "digest": world.digest,
        "versions": dict(manifest.warmup.versions),
    }
    if world.deterministic:
        environment["schedule"] = FROM_SEED if schedule is None else schedule
        environment["snapshot"] = _short(world.snapshot.contents)
    if world.others:
        environment["machines"] = {
            name: {"digest": other.digest, "versions": dict(other.snapshot.manifest.warmup.versions)}
            for name, other in world.others.items()
        }
    return environment


def as_text(environment: Mapping[str, Any]) -> str:
    """Return an environment as JSON in one line, the same text for the same knobs."""
    return json.dumps(environment, sort_keys=True, separators=(",", ":"))


def digest_of(environment: Mapping[str, Any]) -> str:
    """Return a short digest: equal if and only if every knob is."""
    return _short(as_text(environment))


def _unless_random(hash_seed: str) -> str | None:
    return None if hash_seed in ("", "random") else hash_seed


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]
