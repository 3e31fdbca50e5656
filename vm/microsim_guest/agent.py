"""The agent: the guest's end of the channel. Routes requests, runs commands, adopts a fork."""

import contextlib
import functools
import itertools
import os
import platform
import socket
import subprocess
import sys
import threading
import traceback
from typing import Any, Callable, Dict, List, Optional, Tuple

from microsim_guest import (
    channel,
    commands,
    config,
    controllerhost,
    controllerlink,
    files,
    hostlink,
    jitter,
    jobs,
    kernel,
    localsocket,
    mailbox,
    middleware,
    network,
    relay,
    terminal,
    wire,
)

DRAWN_BYTES = 16  # from its kernel, for the host to see that no other fork has drawn the same
Answer = Tuple[Dict[str, Any], List[bytes]]


class Peer:
    """The world host, as the agent sees it: requests go in, and each whole answer frame goes to who asked."""

    def __init__(self, process: "subprocess.Popen[bytes]", sock: socket.socket) -> None:
        self._process = process
        self._link = wire.SocketLink(sock, read_ahead=True)
        self._open: Dict[Any, Callable[[wire.Frame], None]] = {}
        self._own_ids = itertools.count(1)
        self._send_lock = threading.Lock()
        threading.Thread(target=self._relay, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def send(self, header: Dict[str, Any], blobs: Tuple[bytes, ...], reply: Callable[[wire.Frame], None]) -> None:
        """Pass one request on; ``reply`` takes its answer, in the thread that all answers come through."""
        with self._send_lock:
            self._open[header["id"]] = reply
            try:
                self._link.send(header, blobs)
            except OSError:
                self._answer_for_the_dead()

    def ask(self, op: str, args: Any, blobs: Tuple[bytes, ...] = ()) -> wire.Frame:
        """Make a request from inside the guest and wait for its answer."""
        answered = threading.Event()
        answers: List[wire.Frame] = []

        def take(frame: wire.Frame) -> None:
            answers.append(frame)
            answered.set()

        self.send({"id": "own-{}".format(next(self._own_ids)), "op": op, "args": args}, blobs, take)
        answered.wait()
        return answers[0]

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
        reply = self._open.pop(frame.header.get("id"), None)
        if reply is not None:  # else it has been told of the world host's death already
            reply(frame)

    def _answer_for_the_dead(self) -> None:
        """Answer every open request with an error: the world host crashed or was killed."""
        code = self._process.wait()
        how = "was killed by signal {}".format(-code) if code < 0 else "exited with {}".format(code)
        error = {"kind": "world", "message": "the world's process {}".format(how), "traceback": ""}
        for request_id in list(self._open):
            self._deliver(wire.Frame({"id": request_id, "error": error}, ()))


class Agent:
    """Serves the host's requests, one thread for whatever may take long."""

    def __init__(self, link: hostlink.HostLink) -> None:
        self._link = link
        self._volumes: List[str] = []
        self._jitter: Optional[jitter.Jitter] = None
        jobs.prepare()
        self._settings = config.load()
        self._env = config.environment(self._settings)
        self._emitters: Dict[str, relay.Emit] = {}  # of episodes whose controllers another guest has
        self._visiting = threading.Lock()
        self._world = self._start_hosts()
        localsocket.listen(self._world.ask)

    def _start_hosts(self) -> Peer:
        """Start the world host and the controller host, joined by a socket pair, and each with another one to us."""
        ours, theirs = socket.socketpair()
        left, right = socket.socketpair()
        near, elsewhere = socket.socketpair()
        self._visits, visitors = socket.socketpair()
        world = self._start_host("microsim_guest.worldhost", *(s.fileno() for s in (theirs, left, elsewhere)))
        self._controllers = self._start_host("microsim_guest.controllerhost", right.fileno(), visitors.fileno())
        for sock in (theirs, left, right, elsewhere, visitors):
            sock.close()
        threading.Thread(target=self._send_away, args=(near,), daemon=True).start()
        return Peer(world, ours)

    def _send_away(self, world: socket.socket) -> None:
        """Let the host find a place, in another guest, for each controller that the world host asks one for."""
        try:
            while True:
                controllerhost.serve(world, lambda: relay.Remote(self._emitters))
        except (wire.LinkClosed, OSError):  # the world host is dead
            world.close()

    def _start_host(self, module: str, *descriptors: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", module, *map(str, descriptors)],
            env=dict(self._env, PYTHONPATH=config.GUEST_FOLDER, **kernel.told()),
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
            if op.startswith("relay."):
                self._relay(frame)
            elif op.startswith("world."):
                if frame.header["args"].get("relay"):
                    self._run_apart(frame)
                    continue
                self._world.send(frame.header, frame.blobs, self._pass_on)
            elif op == "exec" or op == "terminal.run":
                handler = self._exec if op == "exec" else self._run_terminal
                threading.Thread(target=self._answer, args=(frame, handler), daemon=True).start()
            elif op == "controller.visit":
                visit = relay.Visit(frame.header["args"]["relay"], self._emitter(frame))  # what follows may be for it
                answer = functools.partial(self._visit, visit)
                threading.Thread(target=self._answer, args=(frame, answer), daemon=True).start()
            elif op.startswith("files."):
                threading.Thread(target=self._answer, args=(frame, self._files), daemon=True).start()
            elif op == "quiesce":
                self._quiesce(frame)
            elif op == "await":
                self._await(frame)
            else:
                self._answer(frame, getattr(self, "_op_" + op.replace(".", "_"), self._unknown))

    def _answer(self, frame: wire.Frame, handler: Callable[[wire.Frame], Answer]) -> None:
        try:
            result, blobs = handler(frame)
            self._link.send({"id": frame.header["id"], "ok": result}, blobs)
        except Exception as error:
            # What the request itself is to blame for, a path above all, needs no look into the agent.
            expected = isinstance(error, (OSError, ValueError))
            header = wire.error_header(error, "" if expected else traceback.format_exc())
            self._link.send({"id": frame.header.get("id"), "error": header})

    def _pass_on(self, frame: wire.Frame) -> None:
        header = {key: value for key, value in frame.header.items() if key != "blobs"}
        self._link.send(header, list(frame.blobs))

    def _unknown(self, frame: wire.Frame) -> Answer:
        raise ValueError("unknown operation {!r}".format(frame.header.get("op")))

    def _op_ping(self, frame: wire.Frame) -> Answer:
        return {"kernel": platform.release(), "python": platform.python_version()}, []

    def _quiesce(self, frame: wire.Frame) -> None:
        """Leave nothing in flight: the answer to this is the last thing sent before the guest is copied."""
        try:
            self._link.quiesce(frame.header["id"], frame.header["args"]["flush_s"], self._volumes)
        except hostlink.CannotQuiesce as error:
            self._link.send({"id": frame.header["id"], "error": wire.error_header(error)})

    def _await(self, frame: wire.Frame) -> None:
        """Take all further requests from the machine's memory, where a fork finds them; until then keep looking."""
        try:
            jobs.send_unconfirmed()
            self._jitter = jitter.Jitter()
            link = mailbox.MailboxLink()
            os.sync()
        except Exception as error:
            self._link.send({"id": frame.header["id"], "error": wire.error_header(error, traceback.format_exc())})
            return
        self._link.move(frame.header["id"], link)
        link.wait()

    def _op_resume(self, frame: wire.Frame) -> Answer:
        """Do nothing: any request ends the silence."""
        return {}, []

    def _op_wake(self, frame: wire.Frame) -> Answer:
        """Go on after hibernation: nothing is reseeded, but the wall clock has stood still."""
        args = frame.header["args"]
        kernel.set_wall_clock(args["wall_ns"])
        kernel.add_entropy(frame.blobs[0])
        network.configure(args["network"], anew=True)
        network.write_names(args["network"])
        return {}, []

    def _op_mount(self, frame: wire.Frame) -> Answer:
        """Mount the sandbox's volumes."""
        for each in frame.header["args"]["mounts"]:
            kernel.mount_disk(each["disk"], each["path"], each["read_only"])
            self._volumes.append(each["path"])
        return {}, []

    def _op_unmount(self, frame: wire.Frame) -> Answer:
        """Unmount the sandbox's volumes: it is about to be killed."""
        for path in self._volumes:
            kernel.unmount(path)
        return {}, []

    def _op_connect(self, frame: wire.Frame) -> Answer:
        """Bring the network up while nobody knows the seed yet."""
        network.configure(frame.header["args"]["network"])
        return {}, []

    def _op_adopt(self, frame: wire.Frame) -> Answer:
        """Turn the copy of a snapshot into a rollout of its own, before any user code runs."""
        args = frame.header["args"]
        kernel.set_wall_clock(args["wall_ns"])
        if args["reseed"]:
            kernel.add_entropy(frame.blobs[0])
        socket.sethostname(args["hostname"])
        network.configure(args["network"])
        network.write_names(args["network"])
        self._env = config.environment(self._settings, args["seed"], args["scope"])
        changed = {}
        if args["scope"] != middleware.LOOPBACK:  # the world's process was started when there was nobody but itself
            changed = middleware.environment(args["scope"], config.INTERFACE, self._settings.get("env", {}))
        request = {"seed": args["seed"], "reseed": args["reseed"], "env": changed}
        answer = self._world.ask("world.reseed", request).header
        if "error" in answer:
            raise RuntimeError("reseeding failed: {}".format(answer["error"]["message"]))
        if self._jitter is not None:
            self._jitter.begin(args["schedule"])
        return dict(answer["ok"], drawn=os.urandom(DRAWN_BYTES).hex()), []

    def _exec(self, frame: wire.Frame) -> Answer:
        stdin = frame.blobs[0] if frame.blobs else b""
        return commands.run(**frame.header["args"], env=self._env, stdin=stdin, emit=self._emitter(frame)), []

    def _op_exec_cancel(self, frame: wire.Frame) -> Answer:
        jobs.cancel(frame.header["args"]["token"])
        return {}, []

    def _op_exec_confirm(self, frame: wire.Frame) -> Answer:
        jobs.confirm(frame.header["args"]["token"], frame.header["args"]["size"])
        return {}, []

    def _emitter(self, frame: wire.Frame) -> Callable[[str, bytes], None]:
        return lambda stream, data: self._link.send({"id": frame.header["id"], "event": stream}, [data])

    def _op_terminal_open(self, frame: wire.Frame) -> Answer:
        terminal.Terminal(**frame.header["args"], env=self._env)
        return {}, []

    def _run_terminal(self, frame: wire.Frame) -> Answer:
        return terminal.find(frame.header["args"]["token"]).run(self._emitter(frame)), []

    def _op_terminal_input(self, frame: wire.Frame) -> Answer:
        terminal.find(frame.header["args"]["token"]).input(frame.blobs[0])
        return {}, []

    def _op_terminal_resize(self, frame: wire.Frame) -> Answer:
        args = frame.header["args"]
        terminal.find(args["token"]).resize(args["rows"], args["columns"])
        return {}, []

    def _op_terminal_confirm(self, frame: wire.Frame) -> Answer:
        args = frame.header["args"]
        terminal.find(args["token"]).confirm(args["size"])
        return {}, []

    def _op_terminal_close(self, frame: wire.Frame) -> Answer:
        terminal.find(frame.header["args"]["token"]).close()
        return {}, []

    def _run_apart(self, frame: wire.Frame) -> None:
        """Pass an episode on whose controller another guest has, and its dialogue to the host."""
        token = frame.header["args"]["relay"]
        self._emitters[token] = self._emitter(frame)

        def reply(answer: wire.Frame) -> None:
            self._emitters.pop(token, None)  # where it failed before it asked for a controller
            self._pass_on(answer)

        self._world.send(frame.header, frame.blobs, reply)

    def _visit(self, visit: relay.Visit, frame: wire.Frame) -> Answer:
        with self._visiting:
            try:
                return visit.run(self._visits, frame.header["args"], frame.blobs[0])
            except (wire.LinkClosed, OSError):
                raise controllerlink.ControllersGone from None

    def _relay(self, frame: wire.Frame) -> None:
        """Serve a request that has no answer; its dialogue may be over."""
        args = frame.header["args"]
        with contextlib.suppress(LookupError):
            pump = relay.find(args["relay"])
            if frame.header["op"] == "relay.input":
                pump.input(frame.blobs[0])
            elif frame.header["op"] == "relay.confirm":
                pump.confirm(args["size"])
            elif frame.header["op"] == "relay.end":
                pump.end()
            else:
                pump.stop()

    def _files(self, frame: wire.Frame) -> Answer:
        return files.handle(str(frame.header["op"]), frame.header["args"], frame.blobs)


def main() -> None:
    """Open the port and serve."""
    agent = Agent(hostlink.HostLink(channel.open_port()))
    print("microsim: agent ready", flush=True)
    agent.serve()


if __name__ == "__main__":
    main()
