"""QEMU's microvm machine as an engine: memory in a file, forks that map it copy-on-write."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from microsim_vm import tools, wallclock
from microsim_vm.engines import hostcpu, memory, tsc
from microsim_vm.engines.base import Ability, Boot, Isolation, Vm
from microsim_vm.engines.memory import PAGES, RAM
from microsim_vm.engines.qmp import Qmp
from microsim_vm.errors import BootError, EngineError, SnapshotError
from microsim_vm.islands.plug import Plug, Wire
from microsim_vm.jail import cell, layers
from microsim_vm.jail.cell import Cell
from microsim_vm.jail.cgroups import Limits

Accelerator = Literal["kvm", "tcg"]
STATE = "state"
CONSOLE_BYTES = 65536
MAX_STATE = 1 << 30
START_TIMEOUT_S = 30.0
END_S = 1.0
DEAD = ("shutdown", "internal-error", "guest-panicked", "io-error")
# Debian's cloud kernels find virtio-mmio devices through ACPI only, and under TCG the machine hangs before any
# output without its timer devices, so both stay on (the default).
COMMAND_LINE = "console=ttyS0 loglevel=4 panic=-1 reboot=t tsc=reliable random.trust_cpu=off nokaslr mitigations=off"
OVERHEAD_MIB = 96
SPARE_MIB = 64  # beyond which it is ended
PROCESSES = 128  # QEMU's threads: it does input and output in up to 64
SAVED_SET = 99  # of descriptors, beside those of the disks
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


class Given:
    """The descriptors that QEMU is given, by the numbers that they have there.

    Args:
        files: Closes those that are opened for it.
    """

    def __init__(self, files: contextlib.ExitStack) -> None:
        self.descriptors: list[int] = []
        self._files = files
        self._sets = 0

    def number(self, descriptor: int) -> int:
        """Give one."""
        self.descriptors.append(descriptor)
        return cell.FIRST + len(self.descriptors) - 1

    def disk(self, path: Path, *, writable: bool = False) -> tuple[list[str], str]:
        """Give a file; return the arguments for that, and by which name QEMU opens it."""
        self._sets += 1
        words = []
        for mode in (os.O_RDONLY, os.O_RDWR)[: 1 + writable]:  # it opens what it may write to for reading first
            descriptor = os.open(path, mode | os.O_CLOEXEC)
            self._files.callback(os.close, descriptor)
            words += ["-add-fd", f"fd={self.number(descriptor)},set={self._sets}"]
        return words, f"/dev/fdset/{self._sets}"


class QemuVm:
    """One QEMU process, jailed. Its channel and its monitor are inherited socket pairs: no path, no port.

    Args:
        arguments: What it is started with.
        boot: The machine.
        ram: Its memory file.
        plug: Its link to a network; None where it has none.
        given: The descriptors that the arguments name.
        accelerator: "kvm" or "tcg".
        shared: What it writes to its memory goes to the file.
    """

    def __init__(
        self, arguments: list[str], boot: Boot, ram: Path, plug: Plug | None, given: Given, accelerator: Accelerator,
        *, shared: bool = False,
    ) -> None:  # fmt: skip
        started = time.monotonic()
        self.ram = open(ram, "rb")  # noqa: SIM115  # held: its name may go while the guest lives
        self.phases_ms: dict[str, float] = {}
        self._console = ""
        self.channel, agent_fd = _pair()
        monitor, monitor_fd = _pair()
        own = layers.here()
        program = os.path.realpath(tools.need("qemu-system-x86_64"))
        if "memory" not in own.on and os.geteuid() == 0:
            os.chmod(ram, 0o600)  # it opens it to read and write, and no right of root's lets it
        with agent_fd, monitor_fd, open(ram, "r+b" if shared else "rb") as memory_file:
            argv = [
                program, *arguments, *_interface(plug, given),
                "-chardev", f"socket,id=agent,fd={given.number(agent_fd.fileno())}",
                "-device", "virtio-serial-device,max_ports=2",
                "-device", "virtserialport,chardev=agent,name=microsim.agent",
                "-chardev", f"socket,id=monitor,fd={given.number(monitor_fd.fileno())}",
                "-mon", "chardev=monitor,mode=control",
            ]  # fmt: skip
            self._process = cell.start(
                argv, _cell(boot, program, ram, memory_file.fileno(), accelerator), given.descriptors, own
            )
        self.qmp = Qmp(monitor)
        try:
            self.qmp.negotiate(START_TIMEOUT_S)
            self._process.close_in(own)
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
        """Return the tail of the serial console, as far as it was read, and which limit has ended QEMU."""
        try:
            # Reading empties QEMU's ring buffer, so what was read is kept here.
            fresh = self.qmp.command("ringbuf-read", device="console", size=CONSOLE_BYTES)
            self._console = (self._console + fresh)[-CONSOLE_BYTES:]
        except EngineError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)  # its sockets are closed a moment before it has ended
        killed = f"\nmicrosim: killed: {self._process.why_killed}\n" if self._process.why_killed else ""
        return self._console + killed

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
        self._process.discard()

    def _stderr(self) -> str:
        """Kill QEMU and return what it said."""
        self._process.kill()
        text = self._process.stderr.read(65536).decode("utf-8", "replace")
        self.kill()
        return text


def _cell(boot: Boot, program: str, ram: Path, memory_file: int, accelerator: Accelerator) -> Cell:
    """Return what QEMU is given on the host, beside descriptors."""
    installed = Path(program).parents[1]  # it looks for its firmware beside itself
    elsewhere = [] if installed in (Path("/"), Path("/usr")) else [installed]
    return Cell(
        Limits(boot.memory_mib + OVERHEAD_MIB + SPARE_MIB, boot.vcpus + 1, PROCESSES),
        files=[*elsewhere, boot.kernel, boot.initramfs],
        devices=[os.devnull, *(["/dev/kvm"] if accelerator == "kvm" else [])],  # the first, to try out locks with
        memory=memory_file, memory_path=ram, file_mib=max([MAX_STATE >> 20, *_sizes_mib(boot)]),
    )  # fmt: skip


def _sizes_mib(boot: Boot) -> list[int]:
    return [(disk.path.stat().st_size >> 20) + 1 for disk in boot.disks if not disk.read_only]


def _interface(plug: Plug | None, given: Given) -> list[str]:
    """Return the arguments for a network interface, the same at boot and at a fork but for its address."""
    if plug is None or plug.tap is None:
        return []
    tap = f"tap,id=island,fd={given.number(plug.tap)}"
    return ["-netdev", tap, "-device", f"virtio-net-device,netdev=island,mac={plug.mac}"]


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
    deterministic = False
    overhead_mib = OVERHEAD_MIB
    lacks: Mapping[Ability, str] = {}

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.isolation: Isolation = "hardware" if accelerator == "kvm" else "emulated"

    def describe(self) -> str:
        """Return "qemu <version>, <accelerator>"."""
        return f"qemu {version()}, {self.accelerator}"

    def unjailed(self) -> str:
        """Return which layers of its jail this machine does not allow."""
        return layers.here().line()

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

    def _arguments(self, boot: Boot, ram: Path, given: Given, *, share: bool) -> list[str]:
        machine = self._machine(_escaped(ram), share=share)
        machine[-1] += f",size={boot.memory_mib}M"
        disks = []
        for name, path in boot.layers.items():
            words, file = given.disk(path)
            disks += [*words, "-drive", f"id={name},if=none,format=raw,readonly=on,file.locking=off,file={file}",
                      "-device", f"virtio-blk-device,drive={name},serial={name}"]  # fmt: skip
        for number, disk in enumerate(boot.disks):
            writable = "on" if disk.read_only else "off"
            # Errors go to the guest: QEMU would stop it where the host's disk is full, and nobody would know why.
            options = f"id=disk{number},if=none,format=raw,readonly={writable},werror=report,rerror=report"
            words, file = given.disk(disk.path, writable=not disk.read_only)
            disks += [*words, "-drive", f"{options},file={file}",
                      "-device", f"virtio-blk-device,drive=disk{number},serial=disk{number}"]  # fmt: skip
        return [
            *machine, "-m", f"{boot.memory_mib}M", "-smp", str(boot.vcpus),
            "-kernel", str(boot.kernel), "-initrd", str(boot.initramfs), *disks,
        ]  # fmt: skip

    def boot(
        self, boot: Boot, folder: Path, *, plug: Plug | None = None, private: bool = False, probe: bool = False
    ) -> QemuVm:
        """Boot a guest with its memory in ``folder/ram``; ``probe`` boots kernel and initramfs only."""
        command_line = self._command_line(boot) + (" microsim.probe" if probe else "")
        with open(folder / RAM, "wb") as ram:
            ram.truncate(boot.memory_mib << 20)
            self._fill(ram, boot)
        with contextlib.ExitStack() as files:
            given = Given(files)
            arguments = [*self._arguments(boot, folder / RAM, given, share=not private), "-append", command_line]
            return QemuVm(arguments, boot, folder / RAM, plug, given, self.accelerator, shared=not private)

    def _command_line(self, boot: Boot) -> str:
        khz = tsc.khz() if self.accelerator == "tcg" else None
        return COMMAND_LINE + (f" tsc_early_khz={khz}" if khz else "")

    def _fill(self, ram: BinaryIO, boot: Boot) -> None:
        """Write what is in the guest's memory before it boots: nothing."""

    def save(self, vm: Vm, folder: Path) -> None:
        """Stop the guest and write its device state; its memory is in ``folder/ram`` already."""
        assert isinstance(vm, QemuVm)
        try:
            self.pause(vm)
            save_devices(vm, folder)
        finally:
            vm.kill()

    def fork(self, boot: Boot, folder: Path, plug: Plug | None = None) -> QemuVm:
        """Start a guest from ``folder/ram`` (mapped private), ``folder/pages`` where there are, ``folder/state``."""
        return self._forked(boot, folder, plug)

    def _forked(self, boot: Boot, folder: Path, plug: Plug | None, more: Sequence[str] = ()) -> QemuVm:
        with contextlib.ExitStack() as files:
            given = Given(files)
            state = given.number(files.enter_context(open(folder / STATE, "rb")).fileno())
            # The device state has no configuration section, and says "running" where we want to say when.
            vm = QemuVm([
                *self._arguments(boot, folder / RAM, given, share=False), *more, "-append", COMMAND_LINE,
                "-S", "-incoming", "defer", "-global", "migration.send-configuration=off",
            ], boot, folder / RAM, plug, given, self.accelerator)  # fmt: skip
            started = time.monotonic()
            try:
                if (folder / PAGES).exists():
                    memory.copy_in(vm.pid, folder)  # before the devices: they compare themselves with their rings
                vm.qmp.command("migrate-set-capabilities", capabilities=[{"capability": "events", "state": True}])
                vm.qmp.command("migrate-incoming", uri=f"fd:{state}")
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
        save_devices(vm, folder)
        memory.copy_out(vm.pid, folder)

    def flatten(self, folder: Path) -> None:
        """Merge ``folder/pages`` into a memory file of its own."""
        memory.flatten(folder)


def _escaped(path: Path) -> str:
    """Double the commas of a path inside a QEMU option."""
    return str(path).replace(",", ",,")


def save_devices(vm: QemuVm, folder: Path) -> None:
    """Write the state of a paused guest's devices to a folder; the command's name tells who first needed it.

    Raises:
        SnapshotError: It could not be written.
    """
    try:
        with open(folder / STATE, "wb") as state:
            vm.qmp.command("add-fd", descriptors=[state.fileno()], fdset_id=SAVED_SET)
        vm.qmp.command("xen-save-devices-state", filename=f"/dev/fdset/{SAVED_SET}", live=False)
        vm.qmp.command("remove-fd", fdset_id=SAVED_SET)
    except EngineError as error:
        raise SnapshotError("the guest's state could not be saved", cause=str(error)) from error


def _wait_migrated(qmp: Qmp) -> None:
    while True:
        status = qmp.wait_event("MIGRATION", timeout_s=START_TIMEOUT_S)["data"]["status"]
        if status == "completed":
            return
        if status in ("failed", "cancelled"):
            raise EngineError(f"QEMU reports: migration {status}")
