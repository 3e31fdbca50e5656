"""A folder that the processes of one session share."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import msgspec
from microsim_vm import owner
from microsim_vm.cache import Cache


class SessionFolder:
    """A folder that belongs to the session's controlling process, and lies where the reaper removes dead ones' things.

    It is made by the first process that needs it.

    Args:
        folder: Where.
        process: The controlling process.
    """

    KIND = "session"

    def __init__(self, folder: Path, process: owner.Process) -> None:
        self._folder = folder
        self._owner = process

    @classmethod
    def of_session(cls, cache_dir: Path | None) -> Self:
        """Return that of a session which this process controls; nothing is written yet."""
        return cls(Cache(cache_dir).root / "staging" / f"{cls.KIND}-{uuid.uuid4().hex}", owner.Process.current())

    @classmethod
    def at(cls, address: Mapping[str, Any]) -> Self:
        """Return that of the session whose :attr:`address` this is."""
        return cls(Path(address["folder"]), msgspec.convert(address["owner"], owner.Process))

    @property
    def address(self) -> dict[str, Any]:
        """Simple types from which a worker finds the folder."""
        return {"folder": str(self._folder), "owner": msgspec.to_builtins(self._owner)}

    def close(self) -> None:
        """Remove the folder; only the controlling process does."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _make(self) -> None:
        if self._folder.exists():
            return
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        # Another process may be making it too, and the reaper must find an owner in it from the first moment on.
        made = Path(tempfile.mkdtemp(prefix=f"{self.KIND}-", dir=self._folder.parent))
        try:
            owner.write(made, self._owner)
            with contextlib.suppress(FileExistsError):
                _rename(made, self._folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _rename(source: Path, target: Path) -> None:
    try:
        os.rename(source, target)
    except OSError:
        if target.is_dir():
            raise FileExistsError(target) from None
        raise
