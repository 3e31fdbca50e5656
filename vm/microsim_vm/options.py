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
        subnets: The range that the islands of rollouts take their addresses from; "" for the variable MICROSIM_SUBNETS,
            which holds for sandboxes too, else 198.18.0.0/16.
        capture: Keep what passes in islands, so that it can be written to a file.
        deterministic: Every bit of a fork follows from the snapshot and its seed; also where no template says so.
        session_id: Shared by the workers of one test session, so that a failed warm-up fails once.
    """

    engine: str = "auto"
    accel: str = "auto"
    isolation: str = "emulated"
    locked: bool = False
    cache_dir: Path | None = None
    subnets: str = ""
    capture: bool = False
    deterministic: bool = False
    session_id: str = ""

    @property
    def asked(self) -> tuple[str, str, str]:
        """What the engine is chosen by."""
        return self.engine, self.accel, self.isolation
