"""QEMU's microvm machine as an engine: memory in a file, forks that map it copy-on-write."""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from microsim_vm import spawn, tools, wallclock
from microsim_vm.engines import hostcpu, memory, tsc
from microsim_vm.engines.base import Ability, Boot, Isolation, Vm
from microsim_vm.engines.memory import PAGES, RAM
from microsim_vm.engines.qmp import Qmp
from microsim_vm.errors import BootError, EngineError, SnapshotError
from microsim_vm.islands.plug import Plug, Wire

Accelerator = Literal["kvm", "tcg"]
STATE = "state"
CONSOLE_BYTES = 65536
MAX_STATE = 1 << 30
START_TIMEOUT_S = 30.0
DEAD = ("shutdown", "internal-error", "guest-panicked", "io-error")
# Debian's cloud kernels find virtio-mmio devices through ACPI only, and under TCG the machine hangs before any
# output without its timer devices, so both stay on (the default).
COMMAND_LINE = "console=ttyS0 loglevel=4 panic=-1 reboot=t tsc=reliable random.trust_cpu=off nokaslr mitigations=off"
SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


@functools.cache
def version() -> str:
    """Return QEMU's version.

    Raises:
        MissingToolError: QEMU is not installed.
    """
    output = subprocess.run(
        [tools.need("qemu-system-x86_64"), "--version"], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    match = re.search(r"version (\S+)(?: \((\S+)\))?", output)
    return match.group(2) or match.group(1) if match else output.split("\n")[0]


class QemuVm:
    """One QEMU process. Its channel and its monitor are inherited socket pairs: no path, no port."""

    def __init__(self, arguments: list[str], ram: Path, plug: Plug | None, extra_fds: Sequence[int] = ()) -> None:
        started = time.monotonic()
        self.ram = open(ram, "rb")  # noqa: SIM115  # held: its name may go while the guest lives
        self.phases_ms: dict[str, float] = {}
        self._console = ""
        self.channel, agent_fd = _pair()
        monitor, monitor_fd = _pair()
        argv = [
            tools.need("qemu-system-x86_64"), *arguments, *_interface(plug),
            "-chardev", f"socket,id=agent,fd={agent_fd.fileno()}",
            "-device", "virtio-serial-device,max_ports=2",
            "-device", "virtserialport,chardev=agent,name=microsim.agent",
            "-chardev", f"socket,id=monitor,fd={monitor_fd.fileno()}", "-mon", "chardev=monitor,mode=control",
        ]  # fmt: skip
        tap = [] if plug is None or plug.tap is None else [plug.tap]
        inherited = [agent_fd.fileno(), monitor_fd.fileno(), *tap, *extra_fds]
        with agent_fd, monitor_fd:
            self._process = spawn.child(argv, inside=plug.entering() if plug else (), pass_fds=inherited)
        self.qmp = Qmp(monitor)
        try:
            self.qmp.negotiate(START_TIMEOUT_S)
        except EngineError as error:
            raise BootError("QEMU did not start", cause=str(error), details=self._stderr()) from None
        except BaseException:
            self.kill()
            raise
        self.mark("process start", started)

    @property
    def pid(self) -> int:
        """The process id of QEMU."""
        return self._process.pid

    def mark(self, phase: str, started: float) -> None:
        """Record how long a phase took."""
        self.phases_ms[phase] = (time.monotonic() - started) * 1000.0

    def console(self) -> str:
        """Return the tail of the serial console; empty when QEMU is gone."""
        with contextlib.suppress(EngineError):
            # Reading empties QEMU's ring buffer, so what was read is kept here.
            fresh = self.qmp.command("ringbuf-read", device="console", size=CONSOLE_BYTES)
            self._console = (self._console + fresh)[-CONSOLE_BYTES:]
        return self._console

    def alive(self) -> bool:
        """Tell whether QEMU still runs and its guest has not ended: a panic restarts it, which QEMU holds up."""
        if self._process.poll() is not None:
            return False
        with contextlib.suppress(EngineError):
            return self.qmp.command("query-status")["status"] not in DEAD
        return False

    def kill(self) -> None:
        """Kill QEMU and close our ends."""
        self.channel.close()
        self.qmp.close()
        self.ram.close()
        self._process.kill()
        self._process.wait(timeout=30)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _stderr(self) -> str:
        """Kill QEMU and return what it said."""
        stderr = self._process.stderr
        if stderr is None or stderr.closed:
            return ""
        self._process.kill()
        text = stderr.read(65536).decode("utf-8", "replace")
        self.kill()
        return text


def _interface(plug: Plug | None) -> list[str]:
    """Return the arguments for a network interface, the same at boot and at a fork but for its address."""
    if plug is None:
        return []
    return ["-netdev", f"tap,id=island,fd={plug.tap}", "-device", f"virtio-net-device,netdev=island,mac={plug.mac}"]


def _pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    return ours, theirs


class Qemu:
    """The QEMU engine.

    Args:
        accelerator: "kvm" or "tcg".
    """

    name = "qemu"
    snapshot_files = (RAM, STATE)
    memory_file = RAM
    wire: Wire = "tap"
    overhead_mib = 96
    lacks: Mapping[Ability, str] = {}

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.isolation: Isolation = "hardware" if accelerator == "kvm" else "emulated"

    def describe(self) -> str:
        """Return "qemu <version>, <accelerator>"."""
        return f"qemu {version()}, {self.accelerator}"

    def largest(self, memory_mib: int) -> Mapping[str, int]:
        """Return the sizes of its memory file, of pages that differ from it, and of its devices' state."""
        ram = memory_mib << 20
        return {RAM: ram, PAGES: 2 * ram, STATE: MAX_STATE}

    def identity(self) -> dict[str, str]:
        """Return version, accelerator, CPU model and boot arguments: a saved state fits nothing else."""
        # TCG's guests see the host's time-stamp counter, so even there the host's model counts.
        cpu = hostcpu.features() if self.accelerator == "kvm" else f"max on {hostcpu.model()}"
        return {"engine": self.name, "version": version(), "accelerator": self.accelerator, "cpu": cpu,
                "arguments": " ".join([COMMAND_LINE, *self._machine("ram", share=True)])}  # fmt: skip

    def _machine(self, ram: str, *, share: bool) -> list[str]:
        cpu = "host" if self.accelerator == "kvm" else "max"
        # TCG's default translation buffer is a share of the host's memory; 64 MiB holds a rollout's code.
        accel = "kvm" if self.accelerator == "kvm" else "tcg,thread=multi,tb-size=64"
        return [
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-no-shutdown", "-sandbox", SANDBOX,
            "-machine", "microvm,memory-backend=ram,rtc=on", "-accel", accel, "-cpu", cpu,
            "-rtc", f"base={wallclock.BOOT}",
            "-chardev", f"ringbuf,id=console,size={CONSOLE_BYTES}", "-serial", "chardev:console",
            "-object", f"memory-backend-file,id=ram,share={'on' if share else 'off'},mem-path={ram}",
        ]  # fmt: skip

    def _arguments(self, boot: Boot, ram: Path, *, share: bool) -> list[str]:
        machine = self._machine(_escaped(ram), share=share)
        machine[-1] += f",size={boot.memory_mib}M"
        disks = []
        for name, path in boot.layers.items():
            disks += ["-drive", f"id={name},if=none,format=raw,readonly=on,file.locking=off,file={_escaped(path)}",
                      "-device", f"virtio-blk-device,drive={name},serial={name}"]  # fmt: skip
        for number, disk in enumerate(boot.disks):
            writable = "on" if disk.read_only else "off"
            # Errors go to the guest: QEMU would stop it where the host's disk is full, and nobody would know why.
            options = f"id=disk{number},if=none,format=raw,readonly={writable},werror=report,rerror=report"
            disks += ["-drive", f"{options},file={_escaped(disk.path)}",
                      "-device", f"virtio-blk-device,drive=disk{number},serial=disk{number}"]  # fmt: skip
        return [
            *machine, "-m", f"{boot.memory_mib}M", "-smp", str(boot.vcpus),
            "-kernel", str(boot.kernel), "-initrd", str(boot.initramfs), *disks,
        ]  # fmt: skip

    def boot(
        self, boot: Boot, folder: Path, *, plug: Plug | None = None, private: bool = False, probe: bool = False
    ) -> QemuVm:
        """Boot a guest with its memory in ``folder/ram``; ``probe`` boots kernel and initramfs only."""
        command_line = COMMAND_LINE + (" microsim.probe" if probe else "")
        if self.accelerator == "tcg" and (khz := tsc.khz()):
            command_line += f" tsc_early_khz={khz}"
        with open(folder / RAM, "wb") as ram:
            ram.truncate(boot.memory_mib << 20)
        arguments = [*self._arguments(boot, folder / RAM, share=not private), "-append", command_line]
        return QemuVm(arguments, folder / RAM, plug)

    def save(self, vm: Vm, folder: Path) -> None:
        """Stop the guest and write its device state; its memory is in ``folder/ram`` already."""
        assert isinstance(vm, QemuVm)
        try:
            self.pause(vm)
            _save_devices(vm, folder)
        finally:
            vm.kill()

    def fork(self, boot: Boot, folder: Path, plug: Plug | None = None) -> QemuVm:
        """Start a guest from ``folder/ram`` (mapped private), ``folder/pages`` where there are, ``folder/state``."""
        with open(folder / STATE, "rb") as state:
            # The device state has no configuration section, and says "running" where we want to say when.
            vm = QemuVm([
                *self._arguments(boot, folder / RAM, share=False), "-append", COMMAND_LINE,
                "-S", "-incoming", "defer", "-global", "migration.send-configuration=off",
            ], folder / RAM, plug, [state.fileno()])  # fmt: skip
            started = time.monotonic()
            try:
                if (folder / PAGES).exists():
                    memory.copy_in(vm.pid, folder)  # before the devices: they compare themselves with their rings
                vm.qmp.command("migrate-set-capabilities", capabilities=[{"capability": "events", "state": True}])
                vm.qmp.command("migrate-incoming", uri=f"fd:{state.fileno()}")
                _wait_migrated(vm.qmp)
            except BaseException:
                vm.kill()
                raise
        vm.mark("state", started)
        return vm

    def pause(self, vm: Vm) -> None:
        """Stop the guest's processors and wait for its disks."""
        assert isinstance(vm, QemuVm)
        vm.qmp.command("stop")

    def resume(self, vm: Vm) -> None:
        """Let the guest run on; QEMU needs a moment after it says that a state is loaded."""
        assert isinstance(vm, QemuVm)
        deadline = time.monotonic() + START_TIMEOUT_S
        while vm.qmp.command("query-status")["status"] in ("inmigrate", "finish-migrate"):
            if time.monotonic() > deadline:
                raise EngineError("QEMU does not let the guest run on")
            time.sleep(0.001)
        vm.qmp.command("cont")

    def branch(self, vm: Vm, folder: Path) -> None:
        """Stop a fork; write its device state and the pages that it has written, beside a link to its base."""
        assert isinstance(vm, QemuVm)
        self.pause(vm)
        memory.link(vm.ram.fileno(), folder / RAM)
        _save_devices(vm, folder)
        memory.copy_out(vm.pid, folder)

    def flatten(self, folder: Path) -> None:
        """Merge ``folder/pages`` into a memory file of its own."""
        memory.flatten(folder)


def _escaped(path: Path) -> str:
    """Double the commas of a path inside a QEMU option."""
    return str(path).replace(",", ",,")


def _save_devices(vm: QemuVm, folder: Path) -> None:
    """Write the state of a paused guest's devices; the command's name tells who first needed it."""
    try:
        vm.qmp.command("xen-save-devices-state", filename=str(folder / STATE), live=False)
    except EngineError as error:
        raise SnapshotError("the guest's state could not be saved", cause=str(error)) from error


def _wait_migrated(qmp: Qmp) -> None:
    while True:
        status = qmp.wait_event("MIGRATION", timeout_s=START_TIMEOUT_S)["data"]["status"]
        if status == "completed":
            return
        if status in ("failed", "cancelled"):
            raise EngineError(f"QEMU reports: migration {status}")
