"""The settings that everything which bakes, warms, forks or finds microVMs shares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """How worlds are baked, warmed and forked.

    Attributes:
        engine: "auto" or an engine's name.
        accel: "auto", "kvm" or "tcg".
        isolation: The weakest acceptable boundary: "hardware", "sandbox" or "emulated".
        locked: Refuse any difference from the template's lock.
        cache_dir: Where images and snapshots are kept; None for the user's cache directory.
        session_id: Shared by the workers of one test session, so that a failed warm-up fails once.
    """

    engine: str = "auto"
    accel: str = "auto"
    isolation: str = "emulated"
    locked: bool = False
    cache_dir: Path | None = None
    session_id: str = ""

    @property
    def asked(self) -> tuple[str, str, str]:
        """What the engine is chosen by."""
        return self.engine, self.accel, self.isolation
