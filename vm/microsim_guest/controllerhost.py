"""The controller host: a warm interpreter that forks one unprivileged child per episode.

It is part of the snapshot with its imports done, so that an episode pays no start-up. Commands arrive from the
world host as one marker byte and a frame: ``S`` (start, with the episode's socket attached) and ``F`` (finish:
kill what is left, report output and exit status).
"""

import array
import os
import resource
import signal
import socket
import sys
import time
from typing import Any, Dict, List, Optional

from microsim_guest import capture, codec, config, kernel, wire

CONTROLLER_UID = 10001
WORKSPACE = "/workspace/controller"


class Episode:
    """One forked controller process with its control group and captured output."""

    def __init__(self, args: Dict[str, Any], source: bytes, link: socket.socket, env: Dict[str, str]) -> None:
        limits = args["limits"]
        self.group = kernel.ControlGroup(
            "controller", pids_max=limits["processes"], memory_max=limits["memory_mib"] << 20
        )
        out, self.stdout = capture.pipe_to(limits["output_bytes"])
        err, self.stderr = capture.pipe_to(limits["output_bytes"])
        self.pid = os.fork()
        if self.pid == 0:
            from microsim_guest import controller  # in the child only: nothing of it stays in the host

            self.group.enter()
            _confine(out, err, link.fileno(), env)
            controller.serve(source, args["filename"], args["seed"], wire.SocketLink(link))
            os._exit(0)
        os.close(out)
        os.close(err)
        link.close()

    def finish(self) -> Dict[str, Any]:
        """Let the child end by itself for a moment (it has seen its link close), then kill the group.

        Returns:
            ``exit_code`` (negative signal number when killed) and ``events``, the limits it ran into.
        """
        deadline = time.monotonic() + 0.5
        status: Optional[int] = None
        while status is None and time.monotonic() < deadline:
            pid, value = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                status = value
            else:
                time.sleep(0.002)
        self.group.kill()
        if status is None:
            status = os.waitpid(self.pid, 0)[1]
        events = self.group.events()
        self.group.close()
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return {"exit_code": code, "events": events}


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


def receive_command(sock: socket.socket) -> Any:
    """Return ``(marker, frame, attached socket or None)``."""
    descriptors = array.array("i")
    marker, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(descriptors.itemsize))
    if not marker:
        raise wire.LinkClosed
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: descriptors.itemsize])
    attached = socket.socket(fileno=descriptors[0]) if descriptors else None
    return marker, wire.SocketLink(sock).receive(), attached


def main(argv: List[str]) -> None:
    """Serve the world host until the guest ends."""
    # Nothing else of the configuration is kept: a controller can look through all of this process's objects.
    env = config.environment(config.load())
    codec.numpy()  # imported before the snapshot, so that no episode pays for it
    config.scratch(WORKSPACE, CONTROLLER_UID)
    sock = socket.socket(fileno=int(argv[1]))
    link = wire.SocketLink(sock)
    link.send({"ok": {}})
    episode: Optional[Episode] = None
    while True:
        marker, frame, attached = receive_command(sock)
        if marker == b"S":
            episode = Episode(frame.header, frame.blobs[0], attached, env)
        elif episode is not None:
            result = episode.finish()
            link.send({"ok": result}, [episode.stdout.finish(), episode.stderr.finish()])
            episode = None


if __name__ == "__main__":
    main(sys.argv)
