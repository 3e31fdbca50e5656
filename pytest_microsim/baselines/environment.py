"""What a group ran in, as a baseline keeps it."""

from __future__ import annotations

import platform
from importlib.metadata import version


def host_now() -> str:
    """Return what is said of the host where it differs, and is no reason not to compare.

    Guests have kernels of their own, and what of our version reaches them is in the world's digest.
    """
    return f"Linux {platform.release()}, pytest-microsim {version('pytest-microsim')}"
