"""What a saved guest needs to run again, wherever its template went: engine, machine, image files, limits."""

from __future__ import annotations

from pathlib import Path

import msgspec

from microsim_vm.cache import Cache
from microsim_vm.engines import select
from microsim_vm.engines.base import Boot
from microsim_vm.errors import SnapshotError
from microsim_vm.forks import Forker
from microsim_vm.islands.policy import Network
from microsim_vm.templates.spec import ControllerLimits, MachineShape


class Origin(msgspec.Struct, frozen=True):
    """Where a guest came from.

    Attributes:
        template: The template's name.
        digest: The image's digest.
        engine: The engine's identity.
        machine: Processors and memory.
        kernel: The kernel's file, relative to the cache.
        initramfs: Likewise.
        layers: Likewise, the read-only file systems by name.
        limits: What a controller may use.
        network: What it may reach.
    """

    template: str
    digest: str
    engine: dict[str, str]
    machine: MachineShape
    kernel: str
    initramfs: str
    layers: dict[str, str]
    limits: ControllerLimits
    network: Network = Network()

    @classmethod
    def of(cls, forker: Forker, digest: str) -> Origin:
        """Describe where the guests of a forker come from."""
        boot, cache = forker.boot, forker.cache

        def relative(path: Path) -> str:
            return str(path.relative_to(cache.root))

        return cls(
            forker.name, digest, forker.engine.identity(), MachineShape(vcpus=boot.vcpus, memory_mib=boot.memory_mib),
            relative(boot.kernel), relative(boot.initramfs),
            {name: relative(path) for name, path in boot.layers.items()}, forker.limits, boot.network,
        )  # fmt: skip

    @property
    def files(self) -> list[str]:
        """All files of the image, relative to the cache."""
        return [self.kernel, self.initramfs, *self.layers.values()]

    def boot(self, cache: Cache) -> Boot:
        """Return the machine to start.

        Raises:
            SnapshotError: A file of its image is gone.
        """
        for name in self.files:
            if not (cache.root / name).exists():
                raise SnapshotError(
                    f"the image of {self.template} is gone: {cache.root / name}",
                    cause="it was removed from the cache", hint="bake it again: microsim bake",
                )  # fmt: skip
        layers = {name: cache.root / path for name, path in self.layers.items()}
        return Boot(
            cache.root / self.kernel, cache.root / self.initramfs, layers, self.machine.vcpus, self.machine.memory_mib,
            network=self.network,
        )  # fmt: skip

    def forker(self, cache: Cache, what: str) -> Forker:
        """Return what starts guests of this origin.

        Raises:
            SnapshotMismatchError: The engine or the processor here is another one.
            SnapshotError: A file of its image is gone.
        """
        return Forker(self.template, self.limits, select.matching(self.engine, what), self.boot(cache), cache)
