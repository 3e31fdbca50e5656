"""What guests are compared with: plain processes, QEMU's own snapshots, a bubblewrap process, a gVisor container."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import common
from microsim_vm import forks, tools, warmup
from microsim_vm.engines.base import Boot
from microsim_vm.engines.qemu import Qemu, QemuVm
from microsim_vm.machine import Machine
from microsim_vm.templates import Template
from microsim_vm.world import WarmWorld

TAG = "warm"
# gVisor without KVM and without a control group of its own; writes stay in memory, as a microVM's do.
RUNSC = ("--platform=ptrace", "--ignore-cgroups", "--overlay", "--network=none")
WORLD_FOLDER = "/opt/microsim/world"
GUEST_CONTROLLER = "/workspace/controller.py"
FAILURES = (OSError, subprocess.SubprocessError)
# An episode without any guest: load the template's world, run the controller, say what came of it, wait to be ended.
PLAIN = """
import hashlib, importlib.util, json, sys, time
world_folder, factory, kwargs, controller, seed, limit = sys.argv[1:]
sys.path.insert(0, world_folder)
module, _, name = factory.partition(":")
world = getattr(importlib.import_module(module), name)(**json.loads(kwargs))
spec = importlib.util.spec_from_file_location("controller", controller)
loaded = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loaded)
act = loaded.act if hasattr(loaded, "act") else loaded.Controller().act
print(flush=True)
started = time.monotonic()
seen = hashlib.sha256()
observation, _ = world.reset(seed=int(seed))
for step in range(int(limit)):
    action = act(observation)
    observation, reward, terminated, truncated, _ = world.step(action)
    seen.update(repr([getattr(part, "tolist", lambda: part)() for part in (action, observation, reward)]).encode())
    if terminated or truncated:
        break
print(json.dumps([step + 1, time.monotonic() - started, seen.hexdigest()]), flush=True)
sys.stdin.read()
"""


class PlainEpisode(NamedTuple):
    """What an episode in a plain process took.

    Attributes:
        start_ms: From the start of the process until world and controller were loaded, milliseconds.
        steps: Its steps.
        seconds: From reset to end.
        fingerprint: Equal for episodes that were bit for bit the same.
    """

    start_ms: float
    steps: int
    seconds: float
    fingerprint: str


class Plain:
    """A process on the host for each seed, native and confined by nothing, that loads the world itself.

    Args:
        template: The world's template; its world is made by a factory.
        controller: The controller's file.
        max_steps: Steps after which an episode ends.
    """

    def __init__(self, template: Template, controller: Path, max_steps: int) -> None:
        world = template.world
        assert world is not None
        assert world.factory is not None
        self._template = template
        self._factory, self._kwargs = world.factory, json.dumps(world.kwargs)
        self._controller = controller
        self._max_steps = max_steps

    def why_not(self) -> str:
        """Return why the world cannot be loaded by this interpreter, or "" where it can."""
        for requirement in self._template.python.requirements:
            name, _, wanted = requirement.partition("==")
            try:
                found = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                return f"{sys.executable} has no {name}: install the extra 'worlds'"
            if found != wanted:
                return f"{sys.executable} has {name} {found}, the guests have {wanted}"
        return ""

    def inside(self, machine: Machine, seed: int) -> PlainEpisode:
        """Run the same program in a guest that has the world."""
        machine.filesystem.write(GUEST_CONTROLLER, self._controller.read_bytes())
        command = self._command("python3", WORLD_FOLDER, GUEST_CONTROLLER, seed)
        started = time.monotonic()
        done = machine.exec(command, timeout_seconds=900, check=True)
        start_ms = (time.monotonic() - started) * 1000.0  # of all of it: what it prints comes at its end
        return PlainEpisode(start_ms, *json.loads(done.stdout))

    def _command(self, python: str, world_folder: str, controller: str, seed: int) -> list[str]:
        return [python, "-c", PLAIN, world_folder, self._factory, self._kwargs, controller, str(seed),
                str(self._max_steps)]  # fmt: skip

    def episode(self, seed: int) -> PlainEpisode:
        """Run an episode in a process of its own."""
        with self.live(seed) as (_, episode):
            return episode

    @contextlib.contextmanager
    def live(self, seed: int) -> Iterator[tuple[int, PlainEpisode]]:
        """Run an episode; yield the process, which is still there, and the episode."""
        env = {**os.environ, **self._template.env, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        started = time.monotonic()
        command = self._command(sys.executable, str(self._template.path.parent), str(self._controller), seed)
        with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            start_ms = (time.monotonic() - started) * 1000.0
            yield process.pid, PlainEpisode(start_ms, *json.loads(process.stdout.readline()))


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
        with warmup.booted(forker.boot, engine, folder, "benchmark", common.progress) as (vm, client, *_):
            assert isinstance(vm, QemuVm)
            warmup.load_world(world.template, vm, client, common.progress)
            for _ in range(count):
                with client.quiesced():
                    saves.append(engine.save_inside(vm))
        engine.loads = True
        for seed in range(count):
            started = time.monotonic()
            with warmup.booted(forker.boot, engine, folder, "benchmark", lambda _: None) as (vm, client, berth, _):
                forker.machine(vm, client, seed, berth=berth).adopt(os.urandom(forks.ENTROPY_BYTES), reseed=True)
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
