"""The agent: the guest's end of the channel. Routes requests, runs commands, adopts a fork."""

import os
import platform
import socket
import subprocess
import sys
import threading
import traceback
from typing import Any, Callable, Dict, List, Sequence, Set, Tuple

from microsim_guest import commands, config, files, kernel, wire

PORT_NAME = "microsim.agent"
Answer = Tuple[Dict[str, Any], List[bytes]]


def open_port() -> int:
    """Open the virtio-serial port by its name; numbers change with the machine's other devices."""
    root = "/sys/class/virtio-ports"
    for entry in sorted(os.listdir(root)):
        with open(os.path.join(root, entry, "name")) as file:
            if file.read().strip() == PORT_NAME:
                return os.open("/dev/" + entry, os.O_RDWR | os.O_CLOEXEC)
    raise FileNotFoundError("no virtio-serial port is called {}".format(PORT_NAME))


class Peer:
    """The world host, as the agent sees it: requests go in, whole answer frames come back.

    ``own`` requests are the agent's; all other answers are passed on to the host as they are.
    """

    def __init__(
        self, process: "subprocess.Popen[bytes]", sock: socket.socket, forward: Callable[[wire.Frame], None]
    ) -> None:
        self._process = process
        self._link = wire.SocketLink(sock)
        self._forward = forward
        self._own: Dict[str, List[Any]] = {}
        self._passed_on: Set[Any] = set()
        self._send_lock = threading.Lock()
        threading.Thread(target=self._relay, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def send(self, header: Dict[str, Any], blobs: Tuple[bytes, ...] = ()) -> None:
        """Pass one request on."""
        with self._send_lock:
            self._passed_on.add(header["id"])
            try:
                self._link.send(header, blobs)
            except OSError:
                self._answer_for_the_dead()

    def ask(self, op: str, args: Dict[str, Any]) -> Dict[str, Any]:
        """Make a request of the agent's own and wait for the answer's header."""
        slot: List[Any] = [threading.Event(), None]
        request_id = "own-" + op
        self._own[request_id] = slot
        self.send({"id": request_id, "op": op, "args": args})
        slot[0].wait()
        header: Dict[str, Any] = slot[1].header
        return header

    def _watch(self) -> None:
        """Close the link when the process ends: one that the world forked may hold the other end open."""
        self._process.wait()
        self._link.sock.shutdown(socket.SHUT_RDWR)

    def _relay(self) -> None:
        while True:
            try:
                frame = self._link.receive()
            except (wire.LinkClosed, OSError):
                with self._send_lock:
                    self._answer_for_the_dead()
                return
            self._deliver(frame)

    def _deliver(self, frame: wire.Frame) -> None:
        self._passed_on.discard(frame.header["id"])
        own = self._own.pop(frame.header["id"], None)
        if own is None:
            self._forward(frame)
        else:
            own[1] = frame
            own[0].set()

    def _answer_for_the_dead(self) -> None:
        """Answer every open request with an error: the world host crashed or was killed."""
        code = self._process.wait()
        how = "was killed by signal {}".format(-code) if code < 0 else "exited with {}".format(code)
        error = {"kind": "world", "message": "the world's process {}".format(how), "traceback": ""}
        for request_id in list(self._passed_on):
            self._deliver(wire.Frame({"id": request_id, "error": error}, ()))


class Agent:
    """Serves the host's requests, one thread for whatever may take long."""

    def __init__(self, link: wire.FdLink) -> None:
        self._link = link
        self._send_lock = threading.Lock()
        self._settings = config.load()
        self._env = config.environment(self._settings)
        self._world = self._start_hosts()

    def _start_hosts(self) -> Peer:
        """Start the world host and the controller host, joined by a socket pair."""
        ours, theirs = socket.socketpair()
        left, right = socket.socketpair()
        world = self._start_host("microsim_guest.worldhost", theirs.fileno(), left.fileno())
        self._controllers = self._start_host("microsim_guest.controllerhost", right.fileno())
        for sock in (theirs, left, right):
            sock.close()
        return Peer(world, ours, self._pass_on)

    def _start_host(self, module: str, *descriptors: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", module, *map(str, descriptors)],
            env=dict(self._env, PYTHONPATH=config.GUEST_FOLDER),
            cwd="/workspace",
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            preexec_fn=lambda: kernel.set_oom_score(kernel.OOM_WORLD),
        )

    def serve(self) -> None:
        """Read requests forever."""
        while True:
            frame = self._link.receive()
            op = str(frame.header.get("op"))
            if op.startswith("world."):
                self._world.send(frame.header, frame.blobs)
            elif op == "exec":
                threading.Thread(target=self._answer, args=(frame, self._exec), daemon=True).start()
            else:
                self._answer(frame, getattr(self, "_op_" + op.replace(".", "_"), self._unknown))

    def _answer(self, frame: wire.Frame, handler: Callable[[wire.Frame], Answer]) -> None:
        try:
            result, blobs = handler(frame)
            self._send({"id": frame.header["id"], "ok": result}, blobs)
        except Exception as error:
            header = wire.error_header(error, traceback.format_exc())
            self._send({"id": frame.header.get("id"), "error": header})

    def _send(self, header: Dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
        with self._send_lock:
            self._link.send(header, blobs)

    def _pass_on(self, frame: wire.Frame) -> None:
        header = {key: value for key, value in frame.header.items() if key != "blobs"}
        self._send(header, list(frame.blobs))

    def _unknown(self, frame: wire.Frame) -> Answer:
        raise ValueError("unknown operation {!r}".format(frame.header.get("op")))

    def _op_ping(self, frame: wire.Frame) -> Answer:
        return {"kernel": platform.release(), "python": platform.python_version()}, []

    def _op_quiesce(self, frame: wire.Frame) -> Answer:
        """Leave nothing in flight: the answer to this is the last thing sent before the snapshot."""
        os.sync()
        return {}, []

    def _op_adopt(self, frame: wire.Frame) -> Answer:
        """Turn the copy of a snapshot into a rollout of its own, before any user code runs."""
        args = frame.header["args"]
        kernel.set_wall_clock(args["wall_ns"])
        if args["reseed"]:
            kernel.add_entropy(frame.blobs[0])
        socket.sethostname(args["hostname"])
        self._env = config.environment(self._settings, args["seed"])
        answer = self._world.ask("world.reseed", {"seed": args["seed"], "reseed": args["reseed"]})
        if "error" in answer:
            raise RuntimeError("reseeding failed: {}".format(answer["error"]["message"]))
        return answer["ok"], []

    def _exec(self, frame: wire.Frame) -> Answer:
        args = frame.header["args"]

        def emit(stream: str, data: bytes) -> None:
            self._send({"id": frame.header["id"], "event": stream}, [data])

        return commands.run(
            frame.header["id"],
            args["argv"],
            env=dict(self._env, **args["env"]),
            cwd=args["cwd"],
            stdin=frame.blobs[0] if frame.blobs else b"",
            timeout_s=args["timeout_s"],
            output_bytes=args["output_bytes"],
            emit=emit,
        ), []

    def _op_files_read(self, frame: wire.Frame) -> Answer:
        return files.read(frame.header["args"]["path"])

    def _op_files_write(self, frame: wire.Frame) -> Answer:
        args = frame.header["args"]
        return files.write(args["path"], frame.blobs[0], args["mode"]), []

    def _op_files_list(self, frame: wire.Frame) -> Answer:
        return files.listing(frame.header["args"]["path"]), []


def main() -> None:
    """Open the port and serve."""
    agent = Agent(wire.FdLink(open_port()))
    print("microsim: agent ready", flush=True)
    agent.serve()


if __name__ == "__main__":
    main()
