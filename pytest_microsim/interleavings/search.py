"""How far a search has come: which schedules have failed, for all processes of one session."""

from __future__ import annotations

import contextlib
import hashlib
import os

from ..sessionfolder import SessionFolder


class Search(SessionFolder):
    """The folder in which the processes of one session note the schedules that failed.

    A schedule's place is where it stands among those of its test, from 1. The first one that fails is the same
    whatever the workers: none before it is left out, however many after it have failed already.
    """

    KIND = "search"

    def failed(self, key: str, place: int) -> None:
        """Note that a schedule has failed.

        Args:
            key: Names test and seed.
            place: The schedule's.
        """
        # Without the note, more schedules are run than need be.
        with contextlib.suppress(OSError):
            self._make()
            (self._folder / f"{_named(key)}-{place}.failed").touch()

    def first(self, key: str) -> int | None:
        """Return the place of the first schedule that has failed so far, or None."""
        begin = f"{_named(key)}-"
        try:
            names = os.listdir(self._folder)
        except OSError:  # none has, yet
            return None
        return min(
            (int(name[len(begin) :].removesuffix(".failed")) for name in names if name.startswith(begin)), default=None
        )


def _named(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
