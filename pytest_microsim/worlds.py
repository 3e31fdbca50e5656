"""The warm worlds of one pytest process: each is warmed (or found warm) once, on first use."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .state import Run

if TYPE_CHECKING:
    from microsim_vm.world import WarmWorld


class WorldPool:
    """Warm worlds by name. Between processes, the VM layer sees to it that a world is warmed once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._worlds: dict[tuple[str, bool], WarmWorld | Exception] = {}
        self._warm_ups: list[tuple[str, float, float]] = []

    def get(self, name: str, *, deterministic: bool) -> WarmWorld:
        """Return the warm world of that name; the first call may bake and boot, which can take minutes.

        Args:
            name: The world's.
            deterministic: Whether its machines are to be deterministic ones.

        Raises:
            MicrosimError: If it cannot be warmed. A second call raises the same error at once.
        """
        key = name, deterministic
        if key not in self._worlds:
            self._worlds[key] = self._warm(name, deterministic)
        found = self._worlds[key]
        if isinstance(found, Exception):
            raise found
        return found

    def facts(self) -> dict[str, dict[str, Any]]:
        """Describe the warm worlds in simple types, fit to travel in a report from a worker.

        A rollout's other machines have worlds of their own.
        """
        warm = [world for world in self._worlds.values() if not isinstance(world, Exception)]
        found: dict[str, dict[str, Any]] = {}
        for world in (*warm, *(other for each in warm for other in each.others.values())):
            facts = found.setdefault(
                label_of(world),
                {
                    "digest": world.digest,
                    "snapshot": world.snapshot.key,
                    "engine": world.engine_line,
                    "isolation": world.forker.engine.isolation,
                    "warm_ups": [],
                    "reused": True,
                    "findings": list(world.findings),
                },
            )
            facts["reused"] &= world.reused
        for name, began_s, took_s in self._warm_ups:
            if name in found:
                found[name]["warm_ups"].append([began_s, took_s])
        return found

    def close(self) -> None:
        """Close all worlds."""
        while self._worlds:
            _, world = self._worlds.popitem()
            if not isinstance(world, Exception):
                world.close()

    def _warm(self, name: str, deterministic: bool) -> WarmWorld | Exception:
        from microsim_vm.world import warm

        template = self._run.template(name)
        spoken = False

        def progress(line: str) -> None:
            nonlocal spoken
            # The terminal may be in the middle of a line of dots.
            self._run.progress(f"{'' if spoken else chr(10)}microsim: {name}: {line}\n")
            spoken = True

        began = time.time()
        try:
            options = self._run.settings.vm_options(self._run.session_id, deterministic=deterministic)
            return warm(template, options, progress)
        except Exception as error:  # kept, so that the next 63 rollouts fail at once
            return error
        finally:
            self._warm_ups.append((_label(template.name, deterministic), began, time.time() - began))


def label_of(world: WarmWorld) -> str:
    """Return what a run calls a world: its template's name, since it may have been asked for by a path."""
    return _label(world.template.name, world.deterministic)


def _label(name: str, deterministic: bool) -> str:
    return f"{name} (deterministic)" if deterministic else name
