"""What a group ran in, as a baseline keeps it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from .updating import HOST, flat


def environment_now(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat environment of a group on this machine.

    The host's kernel and our own version are said where they differ, and are no reason not to compare: guests have
    kernels of their own, and what of our version reaches them is in the world's digest.

    Args:
        environment: The group's, as its results have it.
    """
    host = {"kernel": platform.release(), "pytest_microsim": version("pytest-microsim")}
    return {**flat(environment), **{f"{HOST}{name}": value for name, value in host.items()}}
