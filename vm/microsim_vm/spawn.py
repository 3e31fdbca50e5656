"""Start a child that cannot outlive us."""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from microsim_vm import shield, tools


@functools.cache
def _spawner(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="microsim-spawner")


def child(
    argv: Sequence[str],
    *,
    inside: Sequence[str] = (),
    groups: Sequence[Path] = (),
    pass_fds: Sequence[int] = (),
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start a program that the kernel kills when this process dies, however it dies.

    The kernel sends the signal when the *thread* that started the child ends, so one thread that lives as long
    as the process starts them all. The child gets no environment, no descriptors but those named, and a
    session of its own, so that Ctrl-C in a terminal reaches us and not it.

    Args:
        argv: Program and arguments.
        inside: Words that start a program in other namespaces.
        groups: Folders of control groups that it is in, with all that it starts.
        pass_fds: Descriptors that it inherits.
        stdin: Its standard input.
        stdout: Its standard output.
        stderr: Its standard error.
    """
    # The kernel does not tell a child whose parent died before it asked to be told.
    entering = "".join(f"echo 0 >{shlex.quote(str(group))}/cgroup.procs && " for group in groups)
    unless_orphaned = [tools.need("sh"), "-c", f'{entering}[ "$PPID" = {os.getpid()} ] && exec "$@"', "sh"]
    # The shell adds variables of its own.
    dying_with_us = [tools.need("setpriv"), "--pdeathsig", "KILL", *unless_orphaned, tools.need("env"), "-i"]
    command = [*inside, *dying_with_us, *argv]  # in this order: a new user namespace would end the promise to die

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, pass_fds=pass_fds, env={}, cwd="/", stdin=stdin,
            stdout=stdout, stderr=stderr, start_new_session=True,
        )  # fmt: skip

    return shield.outcome(_spawner(os.getpid()).submit(start), _end)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
