"""gVisor as an engine: a kernel of its own in user space for each guest, restored from a checkpoint.

A guest has no devices: the agent's channel is a socket that is its first process's standard input, which a restored
guest is given anew. Its memory is read back as a whole, so that forks share their files' pages and nothing else.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from microsim_guest import config, init, kernel

from microsim_vm import owner, runtime, spawn
from microsim_vm.engines import checkpoint, hostcpu, overuse, runsc
from microsim_vm.engines.base import Ability, Boot, Isolation, Vm
from microsim_vm.engines.runsc import Program
from microsim_vm.errors import EngineError, SnapshotError
from microsim_vm.islands import namespaces
from microsim_vm.islands.plug import Plug, Wire
from microsim_vm.jail import cgroups
from microsim_vm.templates import rootfs

CHECKPOINT = "checkpoint.img"  # runsc's own name for it
CONSOLE_BYTES = 65536
TIMEOUT_S = 120.0
UNSAVABLE = (
    "this release of gVisor saves no TCP connection to another machine, open or closed by the guest within the last "
    "minute, and no TCP socket that a process waits for with epoll (asyncio and selectors do)"
)
END_TIMEOUT_S = 30.0
END_S = 1.0
PROCESSES = 16384  # and threads, half of what many hosts have: too many are counted, and the guest ended, before
ENV = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": config.GUEST_FOLDER, "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1", kernel.KERNEL: "gvisor",
}  # fmt: skip
INIT = (init.PYTHON, "-m", "microsim_guest.init")


class GvisorVm:
    """One gVisor sandbox: its kernel's process, its file server, and the ``runsc`` that they end with.

    Args:
        platform: What runsc runs guests by.
        program: What it runs.
        memory_mib: What it may use.
        image: Folder of the checkpoint to restore; None to boot.
        plug: Its link to a network; None where it has none.
        timeout_s: How long it may take to stop or write it.
    """

    def __init__(
        self, platform: str, program: Program, memory_mib: int, image: Path | None, *, plug: Plug | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:  # fmt: skip
        self.phases_ms: dict[str, float] = {}
        self._platform = platform
        self._limit_mib = memory_mib
        self._image = image
        self._timeout_s = timeout_s
        self._plug = plug
        self._process: subprocess.Popen[bytes] | None = None
        self._group = cgroups.Group()
        self._text = bytearray()
        self._paused = self._saving = self._ended = False
        self._starts = 0
        self._starting = threading.Lock()  # what is ended is not started any more
        self.channel, self._theirs = socket.socketpair()
        self._folder = runtime.folder() / f"{runtime.GVISOR}{uuid.uuid4().hex[:12]}"
        self._folder.mkdir(mode=0o700)
        try:
            owner.write(self._folder, owner.Process.current())
            runsc.write_bundle(self._folder, program, network=plug is not None)
            self._group = cgroups.make(_limits(memory_mib))
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The process id of the ``runsc`` that all of the guest's processes end with.

        Raises:
            EngineError: It has not been started yet.
        """
        if self._process is None:
            raise EngineError("the guest has not been started yet")
        return self._process.pid

    @property
    def _id(self) -> str:
        """The container's name: another one for each start, as the last one's socket may still be there."""
        return f"{self._folder.name}-{self._starts}"

    def run(self) -> None:
        """Boot the guest, restore it, or let a paused one run on."""
        if self._paused:
            self._call("resume", self._id)
            self._paused = False
            return
        with self._starting:
            if self._image is not None:
                self._start("restore", "--image-path", str(self._image))
            elif self._process is None and not self._ended:
                self._start("run")

    def _start(self, verb: str, *words: str) -> None:
        started = time.monotonic()
        self._starts += 1
        if self._process is not None:  # the guest's end of the channel was shut down when it was written
            self.channel, self._theirs = socket.socketpair()
        console, console_end = os.pipe()
        argv = self._command(verb, *words, "--bundle", str(self._folder), self._id)
        inside: list[str] = []
        try:
            if self._plug is not None:
                inside = [*self._plug.entering(), *runsc.hiding_settings()]
                if self._starts > 1:  # runsc takes what a namespace has
                    namespaces.renew(self._plug)
            self._process = spawn.child(
                argv, inside=inside, groups=self._group.folders, stdin=self._theirs.fileno(), stdout=console_end,
                stderr=console_end,
            )  # fmt: skip
        except BaseException:
            os.close(console)
            raise
        finally:
            os.close(console_end)
            self._theirs.close()
        self._image = None
        self._reader = threading.Thread(target=self._read, args=(console,), name="microsim-console", daemon=True)
        self._reader.start()
        overuse.watch(self._process.pid, self._limit_mib, functools.partial(self._end, self._process))
        self.phases_ms["process start"] = (time.monotonic() - started) * 1000.0

    def _read(self, console: int) -> None:
        """Keep the console's tail until the last process of the guest has ended."""
        with open(console, "rb", buffering=0) as stream:
            while data := stream.read(CONSOLE_BYTES):
                self._text += data
                del self._text[:-CONSOLE_BYTES]

    def _end(self, process: subprocess.Popen[bytes], reason: str) -> bool:
        """Kill what was started, whatever the guest's process is by now; tell whether that could be done."""
        if self._saving:  # it may end with that anyway, and must not do so before
            return False
        self._text += f"microsim: killed: {reason}\n".encode()
        process.kill()  # without waiting: other guests are to be looked at
        return True

    def pause(self) -> None:
        """Stop all of the guest's processes."""
        if not self._paused:
            self._call("pause", self._id)
            self._paused = True

    def checkpoint(self, folder: Path) -> None:
        """Write the guest to ``folder/checkpoint.img``; :meth:`run` restores it from there."""
        self._saving = True  # the guest ends before it is known to be written
        try:
            self._call("checkpoint", "--image-path", str(folder), self._id)
            self._wait()  # runsc has to have tidied up before it can restore
            with self._starting:
                self._image = None if self._ended else folder
        finally:
            self._saving = False
        self._paused = False

    def console(self) -> str:
        """Return the tail of what the guest and runsc printed."""
        killed = self._group.why_killed()
        if killed and self._process is not None:
            try:
                self._process.wait(END_S)  # a moment after its kernel, whose channel is closed
            except subprocess.TimeoutExpired:  # the limit was met, and the guest runs on
                killed = ""
        return self._text.decode("utf-8", "replace") + (f"microsim: killed: {killed}\n" if killed else "")

    def alive(self) -> bool:
        """Tell whether the guest runs, or can still be started."""
        if self._ended:
            return False
        return self._saving or self._image is not None or self._process is None or self._process.poll() is None

    def kill(self) -> None:
        """End all of the guest's processes, and remove what runsc kept of it."""
        with self._starting:
            self._ended = True
            self._image = None
        self.channel.close()
        self._theirs.close()
        try:
            self._kill_processes()
            self._group.remove()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _kill_processes(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._wait()

    def _wait(self) -> None:
        """Wait for the end of all of the guest's processes.

        Raises:
            EngineError: They do not end.
        """
        assert self._process is not None
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise EngineError(f"runsc did not end within {END_TIMEOUT_S:g} s") from None
        self._reader.join(END_TIMEOUT_S)  # the others hold the console until they are gone

    def _command(self, verb: str, *words: str) -> list[str]:
        return runsc.command(self._folder, self._platform, verb, *words, network=self._plug is not None)

    def _call(self, verb: str, *words: str) -> None:
        """Ask for something and wait for it.

        Raises:
            EngineError: It is refused, or takes too long.
        """
        # The guest's kernel is asked over an abstract socket, which is its network's.
        inside = self._plug.entering() if self._plug else ()
        process = spawn.child(self._command(verb, *words), inside=inside)
        try:
            _, said = process.communicate(timeout=self._timeout_s)
        except BaseException as error:
            process.kill()
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise EngineError(f"runsc {verb} did not end within {self._timeout_s:g} s") from None
            raise
        if process.returncode != 0:
            raise EngineError(f"runsc {verb} failed", cause=said.decode("utf-8", "replace").strip()[:3000])


class Gvisor:
    """The gVisor engine.

    Args:
        platform: What runsc runs guests by: "systrap", "ptrace" or "kvm".
    """

    name = "gvisor"
    isolation: Isolation = "sandbox"
    snapshot_files = (CHECKPOINT,)
    memory_file = None
    wire: Wire = "veth"
    overhead_mib = overuse.SPARE_MIB
    deterministic = False
    lacks: Mapping[Ability, str] = {
        "foreign images": "its guests' files are unpacked on the host, by a program that trusts what it unpacks",
        "kernel": "its guests run on gVisor's own kernel, which comes with runsc and takes no modules",
        "volumes": "a volume is a disk, and its guests have none; to mount it for them on the host would hand the "
        "host's kernel a file system that other guests have written",
        "wall clock": "its guests' clocks are the host's, and nobody can set them",
    }

    def __init__(self, platform: str) -> None:
        self.platform = platform

    def describe(self) -> str:
        """Return "gvisor <version>, <platform>"."""
        return f"gvisor {runsc.version()}, {self.platform}"

    def unjailed(self) -> str:
        """Return "": its processes jail themselves wherever it works, and are watched where there are no groups."""
        return ""

    def largest(self, memory_mib: int) -> Mapping[str, int]:
        """Return the size of the checkpoint, which is all: memory, files, and gVisor's own state."""
        return {CHECKPOINT: (memory_mib + overuse.SPARE_MIB) << 20}

    def identity(self) -> dict[str, str]:
        """Return version, platform, processor and what the guest starts with: a checkpoint fits nothing else."""
        return {"engine": self.name, "version": runsc.version(), "platform": self.platform, "cpu": hostcpu.features(),
                "arguments": " ".join([*runsc.FLAGS, *INIT, *map("=".join, ENV.items())])}  # fmt: skip

    def boot(self, boot: Boot, folder: Path, *, plug: Plug | None = None, private: bool = False) -> GvisorVm:
        """Boot a guest; it needs nothing in ``folder``, shares nothing with anybody, and has no link before a fork."""
        vm = GvisorVm(self.platform, _program(boot), boot.memory_mib, None)
        try:
            vm.run()
        except BaseException:
            vm.kill()
            raise
        return vm

    def save(self, vm: Vm, folder: Path) -> None:
        """Write the guest's checkpoint, and end it."""
        try:
            self.branch(vm, folder)
            self.flatten(folder)
        finally:
            vm.kill()

    def fork(self, boot: Boot, folder: Path, plug: Plug | None = None) -> GvisorVm:
        """Prepare a guest that is restored from ``folder/checkpoint.img`` when it is told to run."""
        return GvisorVm(self.platform, _program(boot), boot.memory_mib, folder, plug=plug)

    def pause(self, vm: Vm) -> None:
        """Stop the guest's processes."""
        assert isinstance(vm, GvisorVm)
        vm.pause()

    def resume(self, vm: Vm) -> None:
        """Let the guest run: on, or from its checkpoint."""
        assert isinstance(vm, GvisorVm)
        vm.run()

    def branch(self, vm: Vm, folder: Path) -> None:
        """Write the guest's checkpoint; gVisor ends it with that, so :meth:`resume` restores it from there."""
        assert isinstance(vm, GvisorVm)
        try:
            vm.checkpoint(folder)
        except EngineError as error:
            cause = UNSAVABLE if "tcp.endpoint" in error.cause else error.cause or error.what
            raise SnapshotError(
                "the guest's state could not be saved, and the guest is lost with it", cause=cause,
                hint="another engine saves what this one cannot: --microsim-engine qemu, or Options(engine='qemu')",
            ) from error  # fmt: skip

    def flatten(self, folder: Path) -> None:
        """Decompress the checkpoint, where this release of gVisor has compressed it in a way that we know."""
        checkpoint.store(folder / CHECKPOINT)


def _limits(memory_mib: int) -> cgroups.Limits:
    """Return what its processes may use at once: far more than they are watched for, and ended with a better reason.

    A guest that is being written may have more than it is promised for that moment. All the host's processors are its
    own, as it sees them all; each group has a fair share of them.
    """
    return cgroups.Limits(2 * (memory_mib + overuse.SPARE_MIB), 0, PROCESSES)


def _program(boot: Boot) -> Program:
    """Return what a guest starts with."""
    return Program(rootfs.ensure(boot.layers), INIT, {**ENV, kernel.MEMORY_MIB: str(boot.memory_mib)})
