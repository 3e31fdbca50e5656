"""How a process becomes a controller's: namespaces, a first process, and the loss of every right.

Three processes are involved. The *entry* is forked from the controller host, makes the namespaces (mount, pid, ipc,
uts, network), and forks the *first process*, which is process 1 in them and enters the jail. That forks the
*controller*, which joins its control group, becomes an unprivileged user without capabilities, and filters its own
system calls. The first process does nothing but wait: when the controller ends, it says how and what was left, and ends
too, whereby the kernel kills whatever else runs in its pid namespace, however it has detached itself.

All of this happens once, before the snapshot: an episode finds its controller confined, and waiting.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
from typing import Callable, Collection, Dict, NamedTuple, Optional, Tuple

from microsim_guest import jail, kernel, seccomp

UID = 10001
HOSTNAME = "controller"
READY = b"R"
SPARE_BYTES = 1 << 20


class Streams(NamedTuple):
    """Descriptors that the processes inside are given.

    Attributes:
        out: What the controller prints goes here.
        err: Likewise, of standard error.
        link: The controller's socket to the controller host.
        status: The first process's last word goes here.
        door: Of the control group.
    """

    out: int
    err: int
    link: int
    status: int
    door: int


def start(tree: jail.Jail, streams: Streams, env: Dict[str, str], network: bool, serve: Callable[[], None]) -> None:
    """Start a confined process that calls ``serve``; it has said :data:`READY` on its link by then.

    Args:
        tree: What it sees; nobody else enters it.
        streams: Its descriptors.
        env: Its environment.
        network: It stays in the guest's network.
        serve: What it does; the process ends with it.
    """
    entry = os.fork()
    if entry == 0:
        _guarded(lambda: _enter(tree, streams, env, network, serve))
    os.waitpid(entry, 0)


def _guarded(body: Callable[[], None]) -> None:
    """End this process with its body; what goes wrong is on the guest's console, or where standard error is by then."""
    try:
        body()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _enter(tree: jail.Jail, streams: Streams, env: Dict[str, str], network: bool, serve: Callable[[], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    _close_all_but({0, 1, 2, *streams})
    flags = kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    flags |= 0 if kernel.is_gvisor() else kernel.CLONE_NEWNS
    flags |= 0 if network else kernel.CLONE_NEWNET
    kernel.unshare(flags)
    first = os.fork()
    if first == 0:
        _guarded(lambda: _be_first(tree, streams, env, network, serve))


def _close_all_but(kept: Collection[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))


def _be_first(tree: jail.Jail, streams: Streams, env: Dict[str, str], network: bool, serve: Callable[[], None]) -> None:
    """Be process 1 of the namespaces: start the controller, wait for its end, tell of it."""
    if not (network or kernel.is_gvisor()):  # whose loopback is up
        kernel.loopback_up()
    socket.sethostname(HOSTNAME)
    score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)  # of this process; the jail's /proc is read-only
    tree.enter()
    os.write(score, str(kernel.OOM_USER).encode())
    controller = os.fork()
    if controller == 0:
        os.close(score)
        os.close(streams.status)
        _guarded(lambda: _be_controller(streams, env, network, serve))
    os.write(score, str(kernel.OOM_WORLD).encode())
    for descriptor in (score, streams.link, streams.out, streams.err, streams.door):
        os.close(descriptor)
    kernel.forbid_capabilities()
    kernel.drop_capabilities()
    while True:
        pid, status = os.wait()
        if pid == controller:
            break
    left = sum(name.isdigit() and _runs(int(name)) for name in os.listdir("/proc")) - 1
    os.write(streams.status, json.dumps({"status": status, "left": left}).encode())


def _runs(pid: int) -> bool:
    """Tell whether a process runs, rather than has ended and waits to be asked how."""
    try:
        with open("/proc/{}/stat".format(pid)) as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _be_controller(streams: Streams, env: Dict[str, str], network: bool, serve: Callable[[], None]) -> None:
    os.write(streams.door, b"0")
    os.setsid()
    os.dup2(streams.out, 1)
    os.dup2(streams.err, 2)
    for descriptor in (streams.out, streams.err, streams.door):
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.clear()
    os.environ.update(env, HOME=jail.WORKSPACE, USER="controller", LOGNAME="controller")
    kernel.forbid_capabilities()
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    kernel.drop_capabilities()
    kernel.forbid_new_privileges()
    listener = seccomp.install(network)
    with socket.socket(fileno=os.dup(streams.link)) as sock:
        socket.send_fds(sock, [READY], [] if listener is None else [listener])
    if listener is not None:
        os.close(listener)
    serve()


def limit(open_files: int, workspace_bytes: int) -> None:
    """Limit the calling process, and what it starts, and let it begin in its workspace.

    Args:
        open_files: Of each process.
        workspace_bytes: A file, also one in memory alone or with holes, may be little larger.
    """
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    most = workspace_bytes + SPARE_BYTES  # so that it is the workspace that is full
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    os.chdir(jail.WORKSPACE)  # which may have been mounted anew


def outcome(status: int, timeout_s: float) -> Optional[Tuple[int, int]]:
    """Read a first process's last word.

    Returns:
        The controller's exit code (negative signal number when killed), and how many processes it had left; None
        where there is no such word in time.

    Raises:
        RuntimeError: It ended without one.
    """
    poll = select.poll()
    poll.register(status, select.POLLIN)
    if not poll.poll(timeout_s * 1000.0):
        return None
    text = os.read(status, 4096)
    if not text:
        raise RuntimeError("a controller's first process died")
    said = json.loads(text)
    code = said["status"]
    return (-os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)), said["left"]
