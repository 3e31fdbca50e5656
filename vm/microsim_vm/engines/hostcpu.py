"""The host's processor, as far as a saved guest depends on it."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def _fields() -> dict[str, str]:
    """Return the first processor's fields of /proc/cpuinfo."""
    first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def model() -> str:
    """Return the processor's model."""
    return _fields().get("model name", "")


def features() -> str:
    """Return all that a guest which runs on the processor itself can tell of it."""
    return "|".join(_fields().get(key, "") for key in ("model name", "stepping", "microcode", "flags"))
