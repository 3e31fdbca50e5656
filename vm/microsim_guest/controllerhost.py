"""The controller host: a warm interpreter that forks one unprivileged child per episode.

It is part of the snapshot with its imports done, and so is the child of a rollout's first episode, forked and
confined, waiting for its controller: that episode pays neither start-up nor fork. Commands arrive from the world
host as one marker byte and a frame: ``S`` (start, with the episode's socket attached) and ``F`` (finish: kill
what is left, report output and exit status).
"""

import os
import resource
import signal
import socket
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

from microsim_guest import capture, codec, config, controller, groups, kernel, randomness, wire

CONTROLLER_UID = 10001
WORKSPACE = "/workspace/controller"


class Child:
    """One forked controller process in a control group of its own; it waits for its episode.

    Args:
        env: The process's environment.
    """

    def __init__(self, env: Dict[str, str]) -> None:
        self._group = groups.create("controller")
        self._out, out = os.pipe()
        self._err, err = os.pipe()
        self._sock, theirs = socket.socketpair()
        self._output: List[capture.Capture] = []
        self.pid = os.fork()
        if self.pid == 0:
            self._group.enter()
            _confine(out, err, theirs.fileno(), env)
            _serve(theirs)
            os._exit(0)
        os.close(out)
        os.close(err)
        theirs.close()

    def start(self, args: Dict[str, Any], source: bytes, link: socket.socket) -> None:
        """Give the child its limits and its episode."""
        limits = args["limits"]
        self._group.limit(pids_max=limits["processes"], memory_max=limits["memory_mib"] << 20)
        self._output = [capture.Capture(fd, limits["output_bytes"]) for fd in (self._out, self._err)]
        with link, self._sock:
            wire.send_command(self._sock, b"S", args, [source], link)

    def finish(self) -> Tuple[Dict[str, Any], List[bytes]]:
        """Let the child end by itself for a moment (it has seen its link close), then kill the group.

        Returns:
            ``exit_code`` (negative signal number when killed) and ``events``, the limits it ran into; and what
            it wrote to stdout and stderr.
        """
        deadline = time.monotonic() + 0.5
        status: Optional[int] = None
        while status is None and time.monotonic() < deadline:
            pid, value = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                status = value
            else:
                time.sleep(0.002)
        self._group.kill()
        if status is None:
            status = os.waitpid(self.pid, 0)[1]
        events = self._group.events()
        self._group.close()
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return {"exit_code": code, "events": events}, [output.finish() for output in self._output]


def _serve(sock: socket.socket) -> None:
    """Be the child: wait for an episode, then serve it."""
    inventory = randomness.Inventory()
    with sock:
        _, frame, link = wire.receive_command(sock)
    args = frame.header
    os.environ.update(args["env"])
    controller.serve(frame.blobs[0], args["filename"], args["seed"], inventory, wire.SocketLink(link, read_ahead=True))


def _confine(out: int, err: int, link: int, env: Dict[str, str]) -> None:
    """Turn the forked child into an unprivileged process that holds nothing but its episode's socket."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != link:
            try:
                os.close(int(name))
            except OSError:
                continue  # the descriptor of the listing itself
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    os.chdir(WORKSPACE)
    os.environ.clear()
    os.environ.update(env, HOME=WORKSPACE)
    os.setgroups([])
    os.setresgid(CONTROLLER_UID, CONTROLLER_UID, CONTROLLER_UID)
    os.setresuid(CONTROLLER_UID, CONTROLLER_UID, CONTROLLER_UID)
    kernel.forbid_new_privileges()


def main(argv: List[str]) -> None:
    """Serve the world host until the guest ends."""
    # Nothing else of the configuration is kept: a controller can look through all of this process's objects.
    env = config.environment(config.load())
    codec.numpy()  # imported before the snapshot, so that no episode pays for it
    config.scratch(WORKSPACE, CONTROLLER_UID)
    sock = socket.socket(fileno=int(argv[1]))
    link = wire.SocketLink(sock)
    standby: Optional[Child] = Child(env)
    running: Optional[Child] = None
    link.send({"ok": {}})
    while True:
        marker, frame, attached = wire.receive_command(sock)
        if marker == b"S":
            # Only the first episode finds a child waiting; most rollouts have no second one.
            running, standby = standby or Child(env), None
            running.start(frame.header, frame.blobs[0], attached)
        elif running is not None:
            result, output = running.finish()
            running = None
            link.send({"ok": result}, output)


if __name__ == "__main__":
    main(sys.argv)
