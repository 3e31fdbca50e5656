"""What a sandbox is compared with: QEMU's own snapshots, a bubblewrap process, a gVisor container."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import common
from microsim_vm import forks, tools, warmup
from microsim_vm.engines.base import Boot
from microsim_vm.engines.qemu import Qemu, QemuVm
from microsim_vm.world import WarmWorld

TAG = "warm"
# gVisor without KVM and without a control group of its own; writes stay in memory, as a microVM's do.
RUNSC = ("--platform=ptrace", "--ignore-cgroups", "--overlay", "--network=none")
FAILURES = (OSError, subprocess.SubprocessError)


class Alternative(Protocol):
    """Another way to run a command away from the host; one sandbox of it at a time."""

    name: str
    program: str
    package: str
    start_label: str
    run_label: str

    def __init__(self, folder: Path, root: Path) -> None: ...

    def start(self) -> None:
        """Start a sandbox; it has answered when this returns."""

    def run(self, command: Sequence[str], data: bytes = b"") -> bytes:
        """Run a command in it, with something to read, and return what it prints."""

    def stop(self) -> None:
        """End it; may be called again."""


class Bubblewrap:
    """Namespaces of the host's kernel around each process; nothing stays between two of them but the files.

    Args:
        folder: Scratch.
        root: A root file system.
    """

    name, program, package = "bubblewrap", "bwrap", "bubblewrap"
    start_label = run_label = "bubblewrap: a process, start to end"

    def __init__(self, folder: Path, root: Path) -> None:
        self._command = [self.program, "--bind", str(root), "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all",
                         "--die-with-parent", "--"]  # fmt: skip

    def start(self) -> None:
        """Run ``true``: there is no sandbox without a process in it."""
        self.run(["true"])

    def run(self, command: Sequence[str], data: bytes = b"") -> bytes:
        """Run a command in namespaces of its own."""
        return subprocess.run(
            [*self._command, *command], input=data, capture_output=True, check=True, timeout=60
        ).stdout

    def stop(self) -> None:
        """Do nothing: it ended with its process."""


class Gvisor:
    """A container whose kernel is gVisor's, restored from a checkpoint.

    Args:
        folder: Scratch.
        root: A root file system.

    Raises:
        OSError: It cannot be started.
        subprocess.SubprocessError: It cannot be checkpointed.
    """

    name, program, package = "gVisor", "runsc", "runsc"
    start_label, run_label = "gVisor: restore of a checkpoint", "gVisor: runsc exec"

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = folder
        self._count = 0
        # Relative to the bundle: the specification's default is the folder's "rootfs".
        subprocess.run(
            [self.program, "spec", "--bundle", str(folder), "--", "sleep", "1000000"], check=True, timeout=60
        )
        specification = json.loads((folder / "config.json").read_text())
        specification["process"]["terminal"] = False
        specification["root"] = {"path": str(root), "readonly": False}
        (folder / "config.json").write_text(json.dumps(specification))
        try:
            self._runsc("run", "--detach", "--bundle", str(folder), self._id)
            self._runsc("checkpoint", "--image-path", str(folder / "checkpoint"), self._id)
        finally:
            self.stop()

    @property
    def _id(self) -> str:
        return f"microsim-benchmark-{os.getpid()}-{self._count}"

    def start(self) -> None:
        """Restore the checkpoint and run ``true`` in it."""
        self._count += 1
        image = str(self._folder / "checkpoint")
        self._runsc("restore", "--detach", "--image-path", image, "--bundle", str(self._folder), self._id)
        self.run(["true"])

    def run(self, command: Sequence[str], data: bytes = b"") -> bytes:
        """Run a command in the restored container."""
        return self._runsc("exec", self._id, *command, data=data)

    def stop(self) -> None:
        """Delete the container."""
        with contextlib.suppress(*FAILURES):
            self._runsc("delete", "--force", self._id)

    def _runsc(self, verb: str, *arguments: str, data: bytes = b"") -> bytes:
        command = [self.program, f"--root={self._folder / 'state'}", *RUNSC, verb, *arguments]
        with open(self._folder / "stderr", "w+b") as stderr:
            # What is detached keeps the descriptors: a pipe would never end.
            stdout = subprocess.PIPE if verb == "exec" else subprocess.DEVNULL
            done = subprocess.run(command, input=data, stdout=stdout, stderr=stderr, timeout=60, check=False)
            stderr.seek(0)
            if done.returncode != 0:
                raise subprocess.CalledProcessError(done.returncode, command, stderr=stderr.read())
        return done.stdout or b""


class Savevm(Qemu):
    """QEMU with its own snapshots: memory and devices in a qcow2 disk, read back as a whole.

    Args:
        like: The engine that it is compared with.
        disk: The disk, made by :meth:`prepare`.
    """

    def __init__(self, like: Qemu, disk: Path) -> None:
        super().__init__(like.accelerator)
        self.disk = disk
        self.loads = False

    def prepare(self) -> None:
        """Make the disk; it grows with what is saved in it."""
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(self.disk), "16G"], check=True, timeout=60)

    def save_inside(self, vm: QemuVm) -> float:
        """Save a running guest into the disk, in place of what is there; return milliseconds."""
        self._monitor(vm, f"delvm {TAG}")
        started = time.monotonic()
        said = self._monitor(vm, f"savevm {TAG}")
        if said:
            raise RuntimeError(f"savevm: {said}")
        return (time.monotonic() - started) * 1000.0

    def _monitor(self, vm: QemuVm, line: str) -> str:
        return str(vm.qmp.command("human-monitor-command", timeout_s=300.0, **{"command-line": line})).strip()

    def _arguments(self, boot: Boot, ram: Path, *, share: bool) -> list[str]:
        load = ["-loadvm", TAG] if self.loads else []
        return [*super()._arguments(boot, ram, share=share), "-drive", f"if=none,format=qcow2,file={self.disk}", *load]


@contextlib.contextmanager
def working(world: WarmWorld) -> Iterator[list[Alternative]]:
    """Yield the alternatives that work here, over the image's Debian; say which do not."""
    made: list[Alternative] = []
    with world.forker.cache.staging("benchmark") as folder, contextlib.ExitStack() as stack:
        root = folder / "root"
        for kind in (Bubblewrap, Gvisor):
            if shutil.which(kind.program) is None:
                _absent(kind.name, f"apt-get install --no-install-recommends {kind.package}")
                continue
            if not root.exists():
                _unpack(world.forker.boot.layers["base"], root)
            scratch = folder / kind.program
            scratch.mkdir()
            try:
                alternative: Alternative = kind(scratch, root)
                stack.callback(alternative.stop)
                alternative.start()
            except FAILURES as error:
                said = (getattr(error, "stderr", None) or b"").decode("utf-8", "replace").strip()
                print(f"not compared with {kind.name}: it does not work here: {error} {said}")
                continue
            alternative.stop()
            made.append(alternative)
        yield made


def savevm(world: WarmWorld, count: int) -> tuple[list[float], list[float], int]:
    """Save a guest with QEMU's savevm, and start it with loadvm, until it has answered and is reseeded.

    Returns:
        Milliseconds of each saving and each loading, and the disk's size in bytes; nothing where that is
        not possible here, which is said.
    """
    forker = world.forker
    if not isinstance(forker.engine, Qemu):
        print("not compared with savevm: the engine is not QEMU")
        return [], [], 0
    if shutil.which("qemu-img") is None:
        _absent("savevm", "apt-get install --no-install-recommends qemu-utils")
        return [], [], 0
    saves: list[float] = []
    loads: list[float] = []
    with forker.cache.staging("benchmark") as folder:
        engine = Savevm(forker.engine, folder / "disk.qcow2")
        engine.prepare()
        with warmup.booted(forker.boot, engine, folder, "benchmark", common.progress) as (vm, client, _):
            assert isinstance(vm, QemuVm)
            warmup.load_world(world.template, vm, client, common.progress)
            for _ in range(count):
                with client.quiesced():
                    saves.append(engine.save_inside(vm))
        engine.loads = True
        for seed in range(count):
            started = time.monotonic()
            with warmup.booted(forker.boot, engine, folder, "benchmark", lambda _: None) as (vm, client, _):
                forker.machine(vm, client, seed).adopt(os.urandom(forks.ENTROPY_BYTES), reseed=True)
                loads.append((time.monotonic() - started) * 1000.0)
        return saves, loads, engine.disk.stat().st_blocks * 512


def _absent(name: str, install: str) -> None:
    print(f"not compared with {name}: it is not installed ({install})")


def _unpack(layer: Path, root: Path) -> None:
    subprocess.run(
        [tools.need("fsck.erofs"), f"--extract={root}", str(layer)], check=True, timeout=300, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for name in ("dev", "proc", "sys", "tmp", "workspace"):
        (root / name).mkdir(exist_ok=True)
