"""What an engine is: the program that runs a guest and forms its kernel boundary.

The Protocol fits three shapes: QEMU (virtio-serial, QMP, memory file), Firecracker (vsock, HTTP, memory file)
and gVisor (no device, full-copy restore). Everything they share (agent protocol, reseeding, limits, snapshot
manifest) lives outside the engines.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from microsim_vm.errors import UnsupportedByEngineError
from microsim_vm.islands.plug import Plug, Wire
from microsim_vm.islands.policy import Network

Isolation = Literal["hardware", "sandbox", "emulated"]
# Strongest first. QEMU's makers do not count emulation (TCG) as a security boundary; KVM and gVisor are ones.
ISOLATIONS: tuple[Isolation, ...] = ("hardware", "sandbox", "emulated")
# What not every engine can do.
Ability = Literal["foreign images", "kernel", "volumes", "wall clock"]
ABILITIES: Mapping[Ability, str] = {
    "foreign images": "run an image that was baked elsewhere",
    "kernel": "boot the kernel that the template names",
    "volumes": "mount volumes",
    "wall clock": "start with a wall clock of its own",
}


NO_NETWORK = Network()


class Disk(NamedTuple):
    """A disk beside the image's layers: an ext4 file system in a file.

    Attributes:
        path: The file.
        read_only: The guest cannot write to it.
    """

    path: Path
    read_only: bool


@dataclass(frozen=True)
class Boot:
    """What an engine needs to boot a guest.

    Attributes:
        kernel: Kernel image.
        initramfs: Initramfs.
        layers: Read-only file systems by name.
        vcpus: Number of virtual processors.
        memory_mib: Guest memory.
        disks: More disks, found in the guest as ``disk0``, ``disk1``...
        network: What it may reach; whatever that is, its engine is given a plug, or none where that is nothing.
    """

    kernel: Path
    initramfs: Path
    layers: Mapping[str, Path]
    vcpus: int
    memory_mib: int
    disks: tuple[Disk, ...] = ()
    network: Network = NO_NETWORK

    @property
    def image(self) -> str:
        """The file of the topmost layer, which tells one image from another; "" where there are no layers."""
        return str([*self.layers.values()][-1]) if self.layers else ""


class Vm(Protocol):
    """A running guest, as its engine sees it."""

    @property
    def channel(self) -> socket.socket:
        """The host's end of the agent's channel."""

    @property
    def pid(self) -> int:
        """The engine's process on the host."""

    @property
    def phases_ms(self) -> Mapping[str, float]:
        """How long each phase of boot or fork took, in milliseconds."""

    def console(self) -> str:
        """Return the tail of the guest's console (64 KiB at most)."""

    def alive(self) -> bool:
        """Tell whether the engine's process still runs."""

    def kill(self) -> None:
        """End the guest at once; may be called again."""


class Engine(Protocol):
    """A way to boot, snapshot and fork guests."""

    @property
    def name(self) -> str:
        """ "qemu", "firecracker", "gvisor"."""

    @property
    def isolation(self) -> Isolation:
        """How strong the boundary is."""

    @property
    def snapshot_files(self) -> tuple[str, ...]:
        """Names of the files that :meth:`save` leaves in its folder."""

    @property
    def memory_file(self) -> str | None:
        """Name of the one that a running guest shares with its copies and needs for them; None where there is none."""

    @property
    def wire(self) -> Wire:
        """What its guests' network interfaces are linked by."""

    @property
    def deterministic(self) -> bool:
        """Whether all that its guests do follows from the snapshot and a seed."""

    @property
    def overhead_mib(self) -> int:
        """What the engine's own processes use beside the guest's memory, MiB."""

    @property
    def lacks(self) -> Mapping[Ability, str]:
        """Which abilities it has not, each with the reason."""

    def unjailed(self) -> str:
        """Return what is missing here of the jail around its processes, one phrase; "" where nothing is."""

    def largest(self, memory_mib: int) -> Mapping[str, int]:
        """Return all files that a saved guest of this size may have, and the most bytes of each."""

    def describe(self) -> str:
        """Return engine, version and accelerator as one short phrase."""

    def identity(self) -> dict[str, str]:
        """Return everything about the engine that a snapshot depends on."""

    def boot(self, boot: Boot, folder: Path, *, plug: Plug | None = None, private: bool = False) -> Vm:
        """Start a guest whose memory is a file in ``folder``; a private one keeps what it writes to itself.

        Where there is a plug, it has a network interface, and its engine runs inside the plug's namespace.

        Raises:
            BootError: The engine did not start.
        """

    def save(self, vm: Vm, folder: Path) -> None:
        """Write a paused copy of a booted guest into the folder it was booted with, and end the guest.

        Raises:
            SnapshotError: The state could not be written.
        """

    def fork(self, boot: Boot, folder: Path, plug: Plug | None = None) -> Vm:
        """Start a new guest from a saved one, sharing its memory copy-on-write; it is paused on return.

        It has a plug if and only if the saved one had one.

        Raises:
            EngineError: The engine refused the saved state.
        """

    def pause(self, vm: Vm) -> None:
        """Stop a guest; its disks' contents are on the host when this returns."""

    def resume(self, vm: Vm) -> None:
        """Let a paused guest run on."""

    def branch(self, vm: Vm, folder: Path) -> None:
        """Stop a private guest, and write what :meth:`fork` needs into an empty folder on the same file system.

        Whatever the guest has not changed since it was forked may be shared with what it was forked from. It goes
        on with :meth:`resume`, for which the folder has to be there.

        Raises:
            SnapshotError: The guest's state could not be copied.
        """

    def flatten(self, folder: Path) -> None:
        """Make what :meth:`branch` wrote cheap to fork many times, at the price of a whole copy of the memory."""


def saved_bytes(engine: Engine, memory_mib: int) -> int:
    """Return what a saved guest of this size may take on the disk."""
    if engine.memory_file is None:  # it is written as a whole, and one that cannot be is lost
        return sum(engine.largest(memory_mib).values())
    return memory_mib << 20


def need(engine: Engine, *abilities: Ability) -> None:
    """Refuse what an engine cannot do.

    Raises:
        UnsupportedByEngineError: It lacks one of the abilities.
    """
    for ability in abilities:
        if ability in engine.lacks:
            raise UnsupportedByEngineError(
                f"a guest of engine {engine.name} cannot {ABILITIES[ability]}",
                cause=engine.lacks[ability],
                hint="choose another engine: --microsim-engine qemu, --engine qemu, or Options(engine='qemu')",
            )
