"""The ``runsc`` command: how it is called, and the OCI bundle that it is given."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from microsim_vm import tools
from microsim_vm.errors import EngineUnavailableError

TIMEOUT_S = 30.0
# The gofer serves the root read-only, and what a guest writes stays in its memory; no control group of the host's
# is made that could be left behind.
FLAGS = ("--ignore-cgroups", "--overlay2=all:memory")
CONFIG = "config.json"
# All that root may do in a kernel of its own; nothing of it reaches the host's.
CAPABILITIES = (
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL",
    "LEASE", "MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID",
    "SYS_ADMIN", "SYS_BOOT", "SYS_CHROOT", "SYS_NICE", "SYS_PTRACE", "SYS_RESOURCE", "SYS_TTY_CONFIG",
)  # fmt: skip
# Where runsc does not see the settings of its network: on kernels that show every namespace the sizes of buffers, this
# release takes any namespace for the host's own, and refuses it.
HIDE = 'mount -t tmpfs -o ro none /proc/sys/net && exec "$@"'
MOUNTS = (
    ("proc", "/proc", ()), ("sysfs", "/sys", ()), ("tmpfs", "/dev", ()), ("tmpfs", "/dev/shm", ("mode=1777",)),
    ("tmpfs", "/run", ("mode=755",)),
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """What a guest runs.

    Attributes:
        root: Its root folder; it reads it, and what it writes is its memory.
        argv: Its first process.
        env: Its environment.
    """

    root: Path
    argv: Sequence[str]
    env: Mapping[str, str]


@functools.cache
def version() -> str:
    """Return runsc's version.

    Raises:
        MissingToolError: It is not installed.
        EngineUnavailableError: It does not run.
    """
    try:
        output = subprocess.run(
            [tools.need("runsc"), "--version"], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineUnavailableError("runsc does not run", cause=str(error)) from error
    match = re.search(r"version (\S+)", output)
    return match.group(1) if match else output.split("\n")[0]


def command(folder: Path, platform: str, verb: str, *words: str, network: bool = False) -> list[str]:
    """Return the words of one call, whose state is kept in a folder.

    Args:
        folder: Where.
        platform: What runsc runs guests by.
        verb: What to do.
        words: With what.
        network: The guest has the interfaces of the namespace that this is called in, in place of a loopback alone.
    """
    kind = "sandbox" if network else "none"
    return [
        tools.need("runsc"), f"--root={folder}", f"--platform={platform}", *FLAGS, f"--network={kind}", verb, *words,
    ]  # fmt: skip


def hiding_settings() -> list[str]:
    """Return the words that start runsc with a network."""
    return [tools.need("unshare"), "--mount", "--", tools.need("sh"), "-c", HIDE, "sh"]


def write_bundle(folder: Path, program: Program, *, network: bool) -> None:
    """Write an OCI bundle that runs a program as root of a guest's kernel.

    Args:
        folder: Where.
        program: What it runs.
        network: As for :func:`command`.
    """
    capabilities = [f"CAP_{name}" for name in CAPABILITIES]
    specification = {
        "ociVersion": "1.0.2",
        "hostname": "microsim",
        # Writable, and with an overlay: the guest may write, and what it writes is its memory.
        "root": {"path": str(program.root), "readonly": False},
        "process": {
            "user": {"uid": 0, "gid": 0}, "cwd": "/", "args": list(program.argv),
            "env": [f"{name}={value}" for name, value in program.env.items()],
            "capabilities": dict.fromkeys(("bounding", "effective", "inheritable", "permitted"), capabilities),
            "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 1 << 20}],
        },
        "mounts": [
            {"type": kind, "source": kind, "destination": path, "options": list(options)}
            for kind, path, options in MOUNTS
        ],
        "linux": {
            "namespaces": [
                *({"type": kind} for kind in ("pid", "ipc", "uts", "mount")),
                {"type": "network", "path": "/proc/self/ns/net"} if network else {"type": "network"},
            ]
        },
    }  # fmt: skip
    (folder / CONFIG).write_text(json.dumps(specification))
