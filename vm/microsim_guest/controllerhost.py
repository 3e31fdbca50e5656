"""The controller host: a warm interpreter that starts one confined child per episode.

It is part of the snapshot with its imports done, and so is the child of a rollout's first episode, forked and
confined, waiting for its controller: that episode pays neither start-up nor fork. Commands arrive from the world
host, and from the agent for the world of another guest, as one marker byte and a frame: ``S`` (start, with the
episode's socket attached) and ``F`` (finish: kill what is left, report output and exit status).
"""

import select
import socket
import sys
from typing import Callable, List, Optional

from microsim_guest import codec, config, place, wire


def main(argv: List[str]) -> None:
    """Serve the world host, and the agent, one episode at a time, until the guest ends."""
    # Nothing else of the configuration is kept: a controller can look through all of this process's objects.
    settings = config.load()
    env, own = config.environment(settings), settings.get("controller", {})
    readable, network = list(own.get("readable", [])), own.get("network") == "guest"
    del settings, own
    codec.numpy()  # imported before the snapshot, so that no episode pays for it
    askers = {sock.fileno(): sock for sock in (socket.socket(fileno=int(word)) for word in argv[1:])}
    standby: Optional[place.Place] = place.Child(env, readable, network)

    def free_place() -> place.Place:
        # Only the first episode finds a child waiting; most rollouts have no second one.
        nonlocal standby
        taken, standby = standby or place.Child(env, readable, network), None
        return taken

    wire.SocketLink(askers[int(argv[1])]).send({"ok": {}})
    poll = select.poll()
    for descriptor in askers:
        poll.register(descriptor, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            serve(askers[descriptor], free_place)


def serve(asker: socket.socket, free_place: Callable[[], place.Place]) -> None:
    """Serve one episode: start its controller at a place, and finish it.

    Raises:
        wire.LinkClosed: Who asks is dead; a controller that was started has been ended.
    """
    _, frame, attached = wire.receive_command(asker)
    running = free_place()
    running.start(frame.header, frame.blobs[0], attached)
    try:
        wire.receive_command(asker)
    finally:
        result, output = running.finish()
    wire.SocketLink(asker).send({"ok": result}, output)


if __name__ == "__main__":
    main(sys.argv)
