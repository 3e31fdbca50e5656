"""Start jailed processes: our side of the warden, and what it has started."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from microsim_vm import runtime, shield
from microsim_vm.companion import Companion
from microsim_vm.errors import EngineError
from microsim_vm.jail import cgroups
from microsim_vm.jail.cgroups import Limits
from microsim_vm.jail.layers import Layers

TIMEOUT_S = 30.0
LOOK_S = 1.0
FIRST = 3  # the number that the first descriptor has in the jail
STACKS_MIB = 512  # address space that an engine may have beside its memory: its threads' stacks, its code
# Where programs and their libraries are, on whatever distribution; what is not there is left out.
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives", "/nix/store")


@dataclass(frozen=True)
class Cell:
    """What a jailed process is given.

    Attributes:
        limits: What it may use.
        files: Files that it may read, under their own names.
        devices: Devices that it may use.
        memory: Descriptor of the file that it maps as its memory.
        memory_path: That file's name.
        file_mib: The largest file that it may write.
    """

    limits: Limits
    files: Sequence[Path]
    devices: Sequence[str] = ()
    memory: int = -1
    memory_path: Path = Path()
    file_mib: int = 1024


class Child:
    """A process that the warden has started; ours to wait for, and like those of :mod:`subprocess` to use.

    Args:
        pid: Its number.
        stderr: What it says on standard error.
        group: Its control group.
    """

    def __init__(self, pid: int, stderr: IO[bytes], group: cgroups.Group) -> None:
        self.pid = pid
        self.stderr = stderr
        self.returncode: int | None = None
        self.why_killed = ""
        self._group = group
        self._joining: Future[None] = Future()
        self._turn = threading.Lock()
        self._ended = os.pidfd_open(pid)
        threading.Thread(target=self._join, name="microsim-joining", daemon=True).start()

    def _join(self) -> None:
        try:
            self._group.join(self.pid)
            self._joining.set_result(None)
        except BaseException as error:
            self._joining.set_exception(error)

    def poll(self) -> int | None:
        """Return the exit status, None while it runs; minus a signal's number where that has ended it."""
        with self._turn:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # we are a fork of the process whose child it is
                    pid, status = self.pid, 0
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
                    self.why_killed = self._group.why_killed() if self.returncode < 0 else ""
                    os.close(self._ended)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return the exit status.

        Raises:
            subprocess.TimeoutExpired: It did not end in time.
        """
        deadline = time.monotonic() + (timeout or 0.0)
        while (status := self.poll()) is None:
            poll = select.poll()
            with contextlib.suppress(OSError, ValueError):  # another thread has just seen its end
                poll.register(self._ended, select.POLLIN)
            left = LOOK_S if timeout is None else min(LOOK_S, deadline - time.monotonic())
            if left <= 0:
                raise subprocess.TimeoutExpired("jailed process", timeout or 0.0)
            poll.poll(left * 1000.0)
        return status

    def kill(self) -> None:
        """Kill it, where it runs."""
        with self._turn:
            if self.returncode is None:
                os.kill(self.pid, signal.SIGKILL)

    def close_in(self, own: Layers) -> None:
        """See it in its group, and take all that it sees of files away, once it has opened what it needs.

        Until then it has not run anything of a guest's.

        Raises:
            EngineError: It cannot be.
        """
        self._joining.result(TIMEOUT_S)
        if "view" in own.on:
            warden().ask("empty", [self._ended], layers=own.on)

    def discard(self) -> None:
        """End it, and remove what is kept for it."""
        self.kill()
        self.wait(TIMEOUT_S)
        with contextlib.suppress(EngineError, TimeoutError):
            self._joining.result(TIMEOUT_S)
        self.stderr.close()
        self._group.remove()


class Warden(Companion):
    """The child of this process that starts jailed ones. See :mod:`microsim_vm.jail.warden`.

    Raises:
        EngineError: It does not start.
    """

    def __init__(self) -> None:
        # It needs nothing but the standard library and its own module, and starts fast without the rest.
        code = f"import sys; sys.path.append({str(Path(__file__).parents[2])!r}); " \
               "from microsim_vm.jail import warden; warden.main()"  # fmt: skip
        super().__init__([sys.executable, "-I", "-S", "-c", code])

    def ask(self, op: str, descriptors: Sequence[int] = (), **request: Any) -> Any:
        """Have something done.

        Raises:
            EngineError: It cannot be.
        """
        data = json.dumps({"op": op, **request}).encode()
        with self._turn:
            try:
                socket.send_fds(self._link, [data], list(descriptors))
                answer = json.loads(self._link.recv(1 << 16) or b"null")
            except OSError as error:
                raise self._lost(str(error)) from error
        if answer is None:
            raise self._lost("it has ended")
        if "error" in answer:
            if answer["pid"]:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(answer["pid"], 0)
            raise EngineError(f"the jail could not be made: {answer['error']}", hint="microsim doctor tries each layer")
        return answer["ok"]

    def _lost(self, why: str) -> EngineError:
        return EngineError("the process that starts engines has ended", cause=why, details=self._last_words())


_lock = threading.Lock()
_current: Warden | None = None


def warden() -> Warden:
    """Return this process's warden, started where there is none.

    Raises:
        EngineError: It does not start.
    """
    global _current
    with _lock:
        if _current is None or not _current.alive():
            _leave()
            _current = Warden()
        return _current


@atexit.register
def _leave() -> None:
    global _current
    if _current is not None:
        _current.leave()
        _current = None


def start(argv: Sequence[str], cell: Cell, descriptors: Sequence[int], own: Layers) -> Child:
    """Start a jailed program, which the kernel kills when this process dies.

    Args:
        argv: The program, by its whole path, and its arguments.
        cell: What it is given.
        descriptors: What it has as descriptors, from 3 on.
        own: The layers that it is in.

    Raises:
        EngineError: It cannot be.
    """
    return shield.made(lambda: _started(argv, cell, descriptors, own), Child.discard)


def _started(argv: Sequence[str], cell: Cell, descriptors: Sequence[int], own: Layers) -> Child:
    group = cgroups.make(cell.limits)
    heard, said = os.pipe()
    stderr = open(heard, "rb")  # noqa: SIM115  # the child's
    intercepted = "memory" in own.on
    try:
        files = [path for path in (*SYSTEM, *map(str, cell.files)) if os.path.lexists(path)]
        answer = warden().ask(
            "spawn", [said, *descriptors, *([cell.memory] if intercepted else [])],
            argv=list(argv), memory=str(cell.memory_path) if intercepted else "",
            devices=[*cell.devices, *([] if intercepted else [str(cell.memory_path)])],
            **_about(own.on), files=files, limits=_resources(cell, own),
        )  # fmt: skip
        return Child(answer["pid"], stderr, group)
    except BaseException:
        stderr.close()
        group.remove()
        raise
    finally:
        os.close(said)


def attempt(names: Sequence[str]) -> str:
    """Return why some layers cannot be entered together here, "" where they can."""
    about = _about(names)
    try:
        answer = warden().ask("attempt", argv=[], files=["/usr"], devices=[], limits={}, **about)
        return str(answer["why_not"])
    except EngineError as error:
        return error.cause or error.what


def _about(names: Sequence[str]) -> dict[str, Any]:
    return {"layers": list(names), "owner": os.getpid(), "uid": os.geteuid(), "gid": os.getegid(), "base": _base()}


def _base() -> str:
    """Return the folder that a view is mounted over, in namespaces of its own: it stays empty."""
    folder = runtime.folder() / "root"
    folder.mkdir(mode=0o700, exist_ok=True)
    return str(folder)


def _resources(cell: Cell, own: Layers) -> dict[str, int]:
    """Return the limits that are each process's own."""
    limits = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": 256, "RLIMIT_FSIZE": cell.file_mib << 20}
    if "user" in own.on or "user namespace" in own.on:  # they count a user's processes, wherever they are
        limits["RLIMIT_NPROC"] = cell.limits.processes
    if "memory" not in cgroups.places():
        limits["RLIMIT_DATA"] = (cell.limits.memory_mib + STACKS_MIB) << 20
    return limits
