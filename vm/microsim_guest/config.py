"""What the bake wrote into the image for the guest to know, and the environment of every process."""

import json
import os
from typing import Any, Dict, Optional

from microsim_guest import middleware, streams

ROOT = "/opt/microsim"
CONFIG = ROOT + "/config.json"
WORLD_FOLDER = ROOT + "/world"
GUEST_FOLDER = ROOT + "/guest"
INTERFACE = "eth0"  # to the island, where there is one

# Pinned by default because each of them changes results; a template's `env` overrides them.
PINNED_ENV = {
    "PATH": "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def load() -> Dict[str, Any]:
    """Return the image's configuration."""
    with open(CONFIG, encoding="utf-8") as file:
        config: Dict[str, Any] = json.load(file)
    return config


def environment(config: Dict[str, Any], seed: Optional[int] = None, scope: str = middleware.LOOPBACK) -> Dict[str, str]:
    """Return the environment of a new process.

    With a seed it also carries EPISODE_SEED and a PYTHONHASHSEED derived from it, so that even the order of
    a set of strings repeats with the seed.

    Args:
        config: The image's configuration, whose own ``env`` wins.
        seed: The rollout's, once there is one.
        scope: Whom ROS 2 and DDS may find; see :mod:`microsim_guest.middleware`.
    """
    env = dict(PINNED_ENV)
    if seed is not None:
        env["EPISODE_SEED"] = str(seed)
        env["PYTHONHASHSEED"] = str(streams.hash_seed(seed))
    own = config.get("env", {})
    env.update(own)
    env.update(middleware.environment(scope, INTERFACE, own))
    return env


def scratch(path: str, owner: int) -> str:
    """Create a private folder for an unprivileged user and return its path."""
    os.makedirs(path, exist_ok=True)
    os.chown(path, owner, owner)
    os.chmod(path, 0o700)
    return path
