"""The place a controller runs at: what an episode needs of it, and this guest as the first such place.

An episode starts a controller somewhere, talks to it over one socket, and ends it. Where that is, only a
:class:`Place` knows. Here it is a confined child of this guest (:mod:`microsim_guest.confine`).
"""

import os
import socket
import threading
from typing import Any, Dict, List, Optional, Sequence, Tuple

from microsim_guest import capture, confine, controlgroup, controller, groups, jail, kernel, randomness, seccomp, wire

END_S = 0.5  # how long a controller may take to end once its link is closed
KILL_S = 30.0
LOOK_S = 0.25  # between two looks at what only looking tells
GROUP = "controller"


class Place:
    """Where one controller runs, for one episode."""

    def start(self, args: Dict[str, Any], program: bytes, link: socket.socket) -> None:
        """Start the controller.

        Args:
            args: ``kind`` ("python" or "program"), ``filename``, ``words`` (of a program), ``seed`` (for a Python
                controller's generators), ``env`` (additional environment), and ``limits``.
            program: The controller's file.
            link: What it talks over, to the world; closed here.
        """
        raise NotImplementedError

    def finish(self) -> Tuple[Dict[str, Any], List[bytes]]:
        """End it, with all that it has started.

        Returns:
            ``exit_code`` (negative signal number when killed), ``ended`` (it did so by itself), ``events`` (how often
            it was at which limit), ``left`` (processes that it left behind), ``refused`` (system calls by name) and
            ``output`` (bytes that it wrote to stdout and to stderr); and what was kept of these two.
        """
        raise NotImplementedError


class Child(Place):
    """A process of this guest, confined and waiting from its construction on.

    Args:
        env: Its environment.
        readable: What it may read besides the usual.
        network: It stays in the guest's network.

    Raises:
        RuntimeError: It could not be confined.
    """

    def __init__(self, env: Dict[str, str], readable: Sequence[str], network: bool) -> None:
        self._jail = jail.Jail(confine.UID, readable)
        self._group = groups.create(GROUP)
        self._sock, theirs = socket.socketpair()
        self._out, out = os.pipe()
        self._err, err = os.pipe()
        self._status, status = os.pipe()
        streams = confine.Streams(out, err, theirs.fileno(), status, self._group.door())
        with theirs:
            confine.start(self._jail, streams, env, network, lambda: _serve(theirs))
        for descriptor in (out, err, status, streams.door):
            os.close(descriptor)
        said, listeners, _, _ = socket.recv_fds(self._sock, len(confine.READY), 1)
        if said != confine.READY:
            raise RuntimeError("a controller's process could not be confined; the console says why")
        self._refusals = seccomp.Refusals(listeners[0]) if listeners else None
        self._output: List[capture.Capture] = []
        self._overseer: Optional[_Overseer] = None

    def start(self, args: Dict[str, Any], program: bytes, link: socket.socket) -> None:
        """Give the child its limits and its episode."""
        limits = args["limits"]
        self._group.limit(pids_max=limits["processes"], memory_max=limits["memory_mib"] << 20)
        self._jail.limit(limits["workspace_mib"] << 20, limits["workspace_files"])
        self._output = [capture.Capture(fd, limits["output_bytes"]) for fd in (self._out, self._err)]
        self._overseer = _Overseer(self._group, self._jail, limits["cpu_s"])
        path = self._jail.put(args["filename"], program) if args["kind"] == "program" else ""
        with link, self._sock:
            wire.send_command(self._sock, b"S", dict(args, path=path), [b"" if path else program], link)

    def finish(self) -> Tuple[Dict[str, Any], List[bytes]]:
        """Let the child end by itself for a moment (it has seen its link close), then kill its group."""
        assert self._overseer is not None
        outcome = confine.outcome(self._status, END_S)
        overruns = self._overseer.stop()
        self._group.kill()
        exit_code, left = outcome or confine.outcome(self._status, KILL_S) or (None, 0)
        if exit_code is None:
            raise RuntimeError("a controller could not be killed")
        os.close(self._status)
        output = [each.finish() for each in self._output]
        events = dict(self._group.events(), **dict.fromkeys([*overruns, *self._jail.overruns()], 1))
        self._discard()
        return {
            "exit_code": exit_code, "ended": outcome is not None, "events": events, "left": left,
            "refused": dict(self._refusals.counts) if self._refusals else {},
            "output": [each.total for each in self._output],
        }, output  # fmt: skip

    def _discard(self) -> None:
        self._group.close()
        self._jail.remove()


class _Overseer:
    """Looks at what no kernel limits, and kills the group that has too much of it.

    That is the processor time of a whole group, and on gVisor, whose file systems count none, the number of files.
    """

    def __init__(self, group: controlgroup.ControlGroup, tree: jail.Jail, cpu_s: Optional[float]) -> None:
        self._group = group
        self._jail = tree
        self._cpu_s = cpu_s
        self._before_s = group.cpu_seconds()
        self._overruns: List[str] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_S) and not self._overruns:
            if self._cpu_s is not None and self._group.cpu_seconds() - self._before_s > self._cpu_s:
                self._overruns.append("cpu")
            if kernel.is_gvisor() and self._jail.crowded():
                self._overruns.append("workspace.files")
            if self._overruns:
                self._group.kill()

    def stop(self) -> List[str]:
        """Look no more, and return the limits that were overrun."""
        self._stopped.set()
        self._thread.join()
        return self._overruns


def _serve(sock: socket.socket) -> None:
    """Be the child: wait for an episode, then serve it, in this process or as another program."""
    inventory = randomness.Inventory()
    with sock:
        _, frame, link = wire.receive_command(sock)
    args = frame.header
    os.environ.update(args["env"])
    limits = args["limits"]
    confine.limit(limits["open_files"], limits["workspace_mib"] << 20)
    if args["kind"] == "program":
        controller.execute(args["path"], args["words"], link)
    controller.serve(frame.blobs[0], args["filename"], args["seed"], inventory, wire.SocketLink(link, read_ahead=True))
