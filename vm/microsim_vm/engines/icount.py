"""QEMU with instructions counted: time, timers, entropy and interleavings follow from the snapshot and a seed.

TCG counts the instructions of one virtual processor, and the machine's clocks are that count, in place of the host's.
What is left by which a host could reach into a run is taken away: there is no disk (the layers lie in the machine's
memory, where the guest mounts them), no network, and no message while it runs (see :mod:`microsim_guest.mailbox`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from microsim_guest import mailbox

from microsim_vm.engines.base import Boot
from microsim_vm.engines.qemu import COMMAND_LINE, OVERHEAD_MIB, Given, Qemu, QemuVm, version
from microsim_vm.errors import DeterminismError
from microsim_vm.islands.plug import Plug
from microsim_vm.templates.initramfs import LAYERS_IN_MEMORY

SHIFT = 1  # one instruction takes 2 ** SHIFT ns of the machine's time
LARGEST_MIB = 3072  # a microvm's memory lies in one piece up to there
PIECE_MIB = 2  # layers begin at multiples of this
BOX_MIB = mailbox.SIZE >> 20


class Icount(Qemu):
    """The deterministic variant of the QEMU engine. Its guests have one processor, and no network."""

    deterministic = True
    overhead_mib = OVERHEAD_MIB + BOX_MIB

    def __init__(self) -> None:
        super().__init__("tcg")

    def describe(self) -> str:
        """Return "qemu <version>, tcg, deterministic"."""
        return f"qemu {version()}, tcg, deterministic"

    def identity(self) -> dict[str, str]:
        """Return what a saved state depends on; unlike that of plain TCG it does not see the host's processor."""
        return {**super().identity(), "cpu": "max", "deterministic": f"2^{SHIFT} ns per instruction"}

    def boot(
        self, boot: Boot, folder: Path, *, plug: Plug | None = None, private: bool = False, probe: bool = False
    ) -> QemuVm:
        """Boot a guest with its memory, and the layers in it, in ``folder/ram``."""
        return super().boot(_enlarged(boot), folder, private=private, probe=probe)

    def fork(self, boot: Boot, folder: Path, plug: Plug | None = None, *, seed: int = 0) -> QemuVm:
        """Start a guest as :meth:`Qemu.fork` does.

        Args:
            boot: As there.
            folder: As there.
            plug: None: it has no network.
            seed: Of what the processor's own random instructions return; below 2**64.
        """
        return self._forked(_enlarged(boot), folder, None, ["-seed", str(seed)])

    def _machine(self, ram: str, *, share: bool) -> list[str]:
        machine = super()._machine(ram, share=share)
        machine[machine.index("-accel") + 1] = "tcg,thread=single,tb-size=64"
        machine[machine.index("-rtc") + 1] += ",clock=vm"
        # A kernel without a PCI bus does not list what is kept from it, and finds no layers there.
        machine[machine.index("-machine") + 1] += ",pcie=on"
        return [
            "-icount", f"shift={SHIFT},sleep=off,align=off", "-device", "pvpanic-pci", "-action", "panic=pause",
            *machine,
        ]  # fmt: skip

    def _arguments(self, boot: Boot, ram: Path, given: Given, *, share: bool) -> list[str]:
        return super()._arguments(dataclasses.replace(boot, layers={}), ram, given, share=share)

    def _command_line(self, boot: Boot) -> str:
        reserved = [f"{BOX_MIB}M$0x{mailbox.AT:x}", *(f"{size}M!0x{at << 20:x}" for at, size, _ in _placed(boot))]
        # The counter of a processor whose instructions are counted counts nanoseconds.
        return f"{COMMAND_LINE} tsc_early_khz=1000000 {LAYERS_IN_MEMORY} memmap={','.join(reserved)}"

    def _fill(self, ram: BinaryIO, boot: Boot) -> None:
        for at, _, path in _placed(boot):
            with open(path, "rb") as layer:
                left, offset = os.fstat(layer.fileno()).st_size, at << 20
                while left:
                    copied = os.copy_file_range(layer.fileno(), ram.fileno(), left, None, offset)
                    left, offset = left - copied, offset + copied


def _placed(boot: Boot) -> Iterator[tuple[int, int, Path]]:
    """Yield (address, size, file) of each layer, in MiB; what lies between two keeps them apart."""
    at = (mailbox.AT >> 20) + BOX_MIB
    for path in boot.layers.values():
        size = -(-path.stat().st_size // (PIECE_MIB << 20)) * PIECE_MIB
        yield at, size, path
        at += size + PIECE_MIB


def _enlarged(boot: Boot) -> Boot:
    """Return a machine with room for the layers and the mailbox beside its own memory.

    Raises:
        DeterminismError: It would be too large.
    """
    whole = boot.memory_mib + BOX_MIB + sum(size + PIECE_MIB for _, size, _ in _placed(boot))
    if whole > LARGEST_MIB:
        raise DeterminismError(
            f"a deterministic machine has {LARGEST_MIB} MiB at most, with its image; this one would have {whole} MiB",
            cause="its image lies in its memory, so that no disk's answer can come sooner or later",
            hint="lower machine.memory_mib, or leave packages out of the template",
        )
    return dataclasses.replace(boot, memory_mib=whole)
