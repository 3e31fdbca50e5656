"""Programs of the host: find them, run them with a deadline, and say what to install when one is missing."""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from microsim_vm.errors import BakeError, MissingToolError

Progress = Callable[[str], None]

# Program -> the Debian and Ubuntu package that brings it.
PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "runsc": "runsc",
    "mmdebstrap": "mmdebstrap",
    "newuidmap": "uidmap",
    "mkfs.erofs": "erofs-utils",
    "mkfs.ext4": "e2fsprogs",
    "fsck.erofs": "erofs-utils",
    "dpkg-deb": "dpkg",
    "cpio": "cpio",
    "setpriv": "util-linux",
    "setsid": "util-linux",
    "unshare": "util-linux",
    "apt-get": "apt",
}


def install_words(*programs: str) -> list[str]:
    """Return the words of the command that installs the packages of these programs."""
    packages = sorted({PACKAGES[program] for program in programs})
    return [*([] if os.geteuid() == 0 else ["sudo"]), "apt-get", "install", "--no-install-recommends", *packages]


def install_command(*programs: str) -> str:
    """Return the exact command that installs the packages of these programs."""
    return " ".join(install_words(*programs))


def need(*programs: str) -> str:
    """Return the path of the first program, having checked that all are there.

    Raises:
        MissingToolError: One is not installed; the hint is the install command.
    """
    missing = [program for program in programs if found(program) is None]
    if missing:
        raise MissingToolError(
            f"{' and '.join(missing)} not found on this machine",
            hint=f"run: {install_command(*missing)}",
        )
    return found(programs[0]) or programs[0]


def found(program: str) -> str | None:
    """Return the path of a program, or None where it is not installed."""
    # mkfs.* live in sbin, which an ordinary user's PATH often lacks.
    return shutil.which(program, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def contained() -> list[str]:
    """Return the words in front of a command that must leave neither processes nor mounts, however we die."""
    killed_with_us = [need("setpriv"), "--pdeathsig", "KILL"]
    namespaces = [need("unshare"), "--mount", "--mount-proc", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*namespaces, "true"], capture_output=True, check=False).returncode != 0:
        return killed_with_us  # not root: what needs namespaces makes its own
    return killed_with_us + namespaces


def run(
    argv: Sequence[str],
    *,
    what: str,
    progress: Progress,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> str:
    """Run a tool of the bake, passing its last line to ``progress`` now and then.

    Returns:
        Its output (stdout and stderr together, the last 400 lines).

    Raises:
        BakeError: It failed or took longer than ``timeout_s``; the details are its last lines.
    """
    lines: collections.deque[str] = collections.deque(maxlen=400)
    deadline = time.monotonic() + timeout_s
    last_shown = time.monotonic()
    process = subprocess.Popen(
        argv, env=None if env is None else dict(env), cwd=cwd, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    rest = b""
    try:
        with process.stdout as stream, selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while True:
                if time.monotonic() > deadline:
                    raise BakeError(f"{what} took longer than {timeout_s:.0f} s", details="\n".join(lines))
                if selector.select(1.0):
                    data = os.read(stream.fileno(), 65536)
                    if not data:
                        break
                    *whole, rest = (rest + data).split(b"\n")
                    lines.extend(line.decode("utf-8", "replace") for line in whole)
                if time.monotonic() - last_shown > 5.0 and lines:
                    last_shown = time.monotonic()
                    progress(f"{what}: {lines[-1].strip()[:90]}")
        code = process.wait(timeout=30)
    except BaseException:
        kill_group(process)
        raise
    if rest:
        lines.append(rest.decode("utf-8", "replace"))
    if code != 0:
        raise BakeError(f"{what} failed with exit status {code}", details="\n".join(lines))
    return "\n".join(lines)


@contextlib.contextmanager
def ticking(what: str, progress: Progress, period_s: float = 5.0) -> Iterator[None]:
    """Report ``what`` at once, and then how long it has taken, until the block ends."""
    progress(what)
    started = time.monotonic()
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(period_s):
            progress(f"{what}: {time.monotonic() - started:.0f} s so far")

    thread = threading.Thread(target=tick, name="microsim-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process started in a session of its own, with its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait(timeout=30)
