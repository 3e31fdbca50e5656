"""The schema of a template: what ``template.yaml`` may say, with types, units and defaults.

The structs are the schema: the reader in ``decode.py`` walks them, so a field added here is a key that a
template may write. Constraints and checks sit on the types; ``Meta.description`` completes the sentence
"<key> must be ..." in error messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from microsim_vm import wallclock
from microsim_vm.errors import TemplateError
from microsim_vm.islands.policy import Network, Policy
from microsim_vm.templates import checks, inputs

TEMPLATE_FILE = "template.yaml"
LOCK_FILE = "template.lock"

# Part of the canonical form: raise it when the same template must bake to a different image.
SCHEMA_VERSION = 1

Name = Annotated[
    str,
    Meta(
        pattern=rf"\A{checks.NAME}\Z",
        description="1 to 63 of a-z, 0-9, - and _, starting with a letter or digit",
    ),
]
Identifier = Annotated[str, Meta(pattern=r"\A[^\W\d]\w*\Z", description="a Python identifier")]
EnvName = Annotated[
    str,
    Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z", description="letters, digits and _, not starting with a digit"),
]
Suite = Annotated[str, Meta(extra={"check": checks.suite})]
DebianPackage = Annotated[str, Meta(extra={"check": checks.debian_package})]
Requirement = Annotated[str, Meta(extra={"check": checks.requirement})]
PythonPackage = Annotated[str, Meta(extra={"check": checks.python_package})]
Source = Annotated[Path, Meta(extra={"check": checks.relative_path})]
GuestPath = Annotated[str, Meta(extra={"check": checks.guest_path})]
FileMode = Annotated[str, Meta(pattern=r"\A0[0-7]{3}\Z", description='four octal digits in quotes: "0755"')]
KernelPackage = Annotated[
    str,
    Meta(pattern=r"\Alinux-image-[a-z0-9+.-]+\Z", description="a Debian kernel package, linux-image-..."),
]
Factory = Annotated[str, Meta(extra={"check": checks.factory})]
GymnasiumId = Annotated[str, Meta(extra={"check": checks.gymnasium_id})]
Word = Annotated[str, Meta(min_length=1, description="text", extra={"check": checks.command})]
Arguments = Annotated[tuple[Word, ...], Meta(min_length=1, description="a command: one shell line, or a list")]
NetworkPolicy = Annotated[str, Meta(extra={"check": checks.network})]
WallClockStart = Annotated[str, Meta(extra={"check": checks.wall_clock})]
Destination = Annotated[str, Meta(extra={"check": checks.destination})]
TcpPort = Annotated[int, Meta(ge=1, le=65535, description="a whole number from 1 to 65535")]
MachineName = Annotated[
    str,
    Meta(
        pattern=r"\A(?!(sim|gateway|localhost)\Z)[a-z][a-z0-9-]{0,30}\Z",
        description="1 to 31 of a-z, 0-9 and -, starting with a letter, and not sim, gateway or localhost",
    ),
]
Extends = Annotated[str, Meta(extra={"check": checks.extends})]
LatePolicy = Annotated[str, Meta(pattern=r"\A(fail|hold|zero)\Z", description="fail, hold or zero")]
ControllerNetwork = Annotated[str, Meta(pattern=r"\A(none|guest)\Z", description="none or guest")]
Seconds = Annotated[float, Meta(gt=0, le=86400, description="seconds, more than 0 and at most 86400")]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every part of the schema has in common."""


class Base(_Part, frozen=True):
    """The root file system: a Debian suite and packages from it.

    ``packages`` always contains ``python3``, which the guest's own programs need.
    """

    suite: Suite = "bookworm"
    packages: tuple[DebianPackage, ...] = ("python3",)

    def __post_init__(self) -> None:
        if "python3" not in self.packages:
            msgspec.structs.force_setattr(self, "packages", ("python3", *self.packages))

    @property
    def python_version(self) -> str:
        """The suite's Python, such as ``3.11``."""
        return checks.SUITES[self.suite]


class Python(_Part, frozen=True):
    """Python packages for the guest's virtual environment, each pinned with ``==``, as written.

    Attributes:
        without: Packages that are left out where another one asks for them.
    """

    requirements: tuple[Requirement, ...] = ()
    without: tuple[PythonPackage, ...] = ()


class FileEntry(_Part, frozen=True):
    """A file, or a folder with all that is in it, copied into the image.

    Attributes:
        source: File or folder on the host; written relative to the file that says it, absolute here.
        target: Absolute path in the guest.
        mode: Permissions in octal, for a single file only; otherwise 0755 where the owner may execute the
            source and 0644 where not, whatever the umask.
    """

    source: Source
    target: GuestPath
    mode: FileMode | None = None

    @property
    def label(self) -> str:
        """A name for error messages and the lock file that is the same on every machine."""
        return "files" + self.target


class Kernel(_Part, frozen=True):
    """The Debian package that the guest's kernel and modules are taken from."""

    package: KernelPackage = "linux-image-cloud-amd64"


class MachineShape(_Part, frozen=True):
    """The size of the microVM."""

    vcpus: Annotated[int, Meta(ge=1, le=64, description="a whole number from 1 to 64")] = 1
    memory_mib: Annotated[int, Meta(ge=128, le=65536, description="a whole number of MiB from 128 to 65536")] = 512


class WorldSpec(_Part, frozen=True):
    """The simulator: exactly one of a factory and a Gymnasium id.

    Attributes:
        factory: ``module:callable`` in the template's folder; called with ``kwargs``, returns the world.
        gymnasium: A registered Gymnasium id, made with ``gymnasium.make(id, **kwargs)``.
        kwargs: Keyword arguments, of JSON's types.
    """

    factory: Factory | None = None
    gymnasium: GymnasiumId | None = None
    kwargs: dict[Identifier, Any] = {}


class Process(_Part, frozen=True):
    """One process of a world made of processes, started at warm-up in the order given.

    Attributes:
        command: A list of words, or one line for ``/bin/sh -c``. Has to stay alive.
        readiness: Command that exits with 0 once the process is ready; asked until ``warmup_timeout_s``.
    """

    name: Name
    command: Word | Arguments
    readiness: Word | Arguments


class OtherMachine(_Part, frozen=True):
    """One more machine of each rollout, on the island of this template's own, which is called ``sim``.

    Attributes:
        template: What it is forked from: a template's name, or a path relative to the file that writes it.
    """

    template: Extends


class ControllerLimits(_Part, frozen=True):
    """What one controller may use in one episode, and what it sees of its guest.

    Attributes:
        wall_time_s: Seconds of wall-clock time for a whole episode.
        simulated_time_s: Seconds of the world's own time, after which the episode is truncated; the world has to
            tell its time.
        step_deadline_s: Seconds of wall-clock time for each action.
        late: What a step does whose deadline was missed: "fail" ends the episode, "hold" takes the action before,
            "zero" takes an action of zeros.
        cpu_s: Seconds of processor time, of the controller and all that it starts; none of its own by default.
        memory_mib: MiB of memory, for the controller and all that it starts.
        processes: Processes and threads alive at a time.
        output_bytes: Bytes kept of stdout, and as many of stderr.
        workspace_mib: MiB of files that it can write; they are memory, and count as such too.
        workspace_files: Files and folders that it can make.
        open_files: Files, sockets and pipes open at a time in each of its processes.
        network: "none" gives it a loopback of its own; "guest" the guest's network.
        readable: Files and folders of the guest that it can read besides ``/usr`` and ``/opt/venv``.
        machine: Which of ``machines`` it runs in; the world's own by default. What it sees is then what that one's
            template says, and the limits are those of the template that has ``machines``.
    """

    wall_time_s: Seconds = 120.0
    simulated_time_s: Seconds | None = None
    step_deadline_s: Seconds | None = None
    late: LatePolicy = "fail"
    cpu_s: Seconds | None = None
    memory_mib: Annotated[int, Meta(ge=16, le=65536, description="a whole number of MiB from 16 to 65536")] = 256
    processes: Annotated[int, Meta(ge=1, le=4096, description="a whole number from 1 to 4096")] = 32
    output_bytes: Annotated[
        int, Meta(ge=1024, le=1 << 26, description="a whole number of bytes from 1024 to 67108864")
    ] = 65536
    workspace_mib: Annotated[int, Meta(ge=1, le=65536, description="a whole number of MiB from 1 to 65536")] = 64
    workspace_files: Annotated[int, Meta(ge=16, le=1000000, description="a whole number from 16 to 1000000")] = 4096
    open_files: Annotated[int, Meta(ge=16, le=65536, description="a whole number from 16 to 65536")] = 256
    network: ControllerNetwork = "none"
    readable: tuple[GuestPath, ...] = ()
    machine: MachineName | None = None

    @property
    def sight(self) -> dict[str, Any]:
        """What it sees of its guest where that is not the usual: a part of the image, unlike the limits."""
        usual = ControllerLimits()
        return {name: getattr(self, name) for name in ("network", "readable")
                if getattr(self, name) != getattr(usual, name)}  # fmt: skip


class Document(_Part, frozen=True):
    """The keys of one YAML file. ``name``, ``description`` and ``extends`` are not inherited."""

    name: Name
    description: str = ""
    extends: Extends | None = None
    base: Base = Base()
    python: Python = Python()
    files: tuple[FileEntry, ...] = ()
    env: dict[EnvName, str] = {}
    kernel: Kernel = Kernel()
    machine: MachineShape = MachineShape()
    world: WorldSpec | None = None
    processes: tuple[Process, ...] = ()
    warmup_timeout_s: Seconds = 300.0
    network: NetworkPolicy = "island"
    egress: tuple[Destination, ...] = ()
    publish: tuple[TcpPort, ...] = ()
    machines: dict[MachineName, OtherMachine] = {}
    wall_clock: WallClockStart | None = None
    controller: ControllerLimits = ControllerLimits()
    score: Source | None = None
    deterministic: bool = False


class Template(Document, frozen=True, kw_only=True):
    """A template as loaded: its own keys over those that it extends, paths resolved.

    Attributes:
        path: The ``template.yaml``, absolute.
        world_folders: Folders laid over each other as ``/opt/microsim/world``, ancestors first.
        others: The templates of ``machines``, by the machines' names.
    """

    path: Path
    world_folders: tuple[Path, ...]
    others: dict[str, Template] = {}

    @property
    def has_world(self) -> bool:
        """False for a template that only boots, into which a world can be loaded later."""
        return self.world is not None or bool(self.processes)

    @property
    def lock_path(self) -> Path:
        """Where the bake records what it used."""
        return self.path.parent / LOCK_FILE

    @property
    def network_plan(self) -> Network:
        """Its network, as an island is made from it."""
        return Network(cast(Policy, self.network), self.egress, self.publish)

    @property
    def wall_clock_start(self) -> float | None:
        """Where the wall clocks of its forks start, in seconds since 1970; None for the present.

        The present is the default of a world that talks to others: what they sign is not yet valid on an earlier day.
        """
        if self.wall_clock is None:
            return None if self.network == "egress" else wallclock.PINNED
        return wallclock.start_of(self.wall_clock)

    def canonical(self) -> bytes:
        """Return every setting that the image depends on, as JSON that is the same on every machine.

        Left out, because no image depends on them: the description, host paths, the machine's size and the
        warm-up timeout (the snapshot's key has the size), the controller's limits, which are sent with each episode,
        where the wall clock starts, whether its machines are deterministic, and all of the network but whether there is
        one. Bytes of files are not in it either: see :meth:`input_files`.
        """
        settings = {
            "schema": SCHEMA_VERSION,
            "name": self.name,
            "base": self.base,
            "python": self.python,
            "files": sorted(
                ({"target": entry.target, "mode": entry.mode} for entry in self.files),
                key=lambda entry: str(entry["target"]),
            ),
            "env": self.env,
            "kernel": self.kernel,
            "world": self.world,
            "processes": self.processes,
            "network": self.network != "none",
        }
        if self.controller.sight:
            settings["controller"] = self.controller.sight
        text = json.dumps(msgspec.to_builtins(settings), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return text.encode("ascii")

    @staticmethod
    def target_of(label: str) -> str:
        """Return the absolute path in the guest of an input file's label."""
        return inputs.target_of(label)

    def input_files(self) -> Iterator[inputs.InputFile]:
        """Yield ``(label, path, mode)`` of every file whose bytes go into the image, sorted by label.

        Raises:
            TemplateError: A file is missing, leaves its folder by a link, or is no regular file.
        """
        try:
            yield from inputs.collect(self.world_folders, self.files)
        except checks.Complaint as complaint:
            raise TemplateError(f"{self.path}:1: {complaint.what}", hint=complaint.hint) from None
