"""The controller host: a warm interpreter that starts one confined child per episode.

It is part of the snapshot with its imports done, and so is the child of a rollout's first episode, forked and
confined, waiting for its controller: that episode pays neither start-up nor fork. Commands arrive from the world
host as one marker byte and a frame: ``S`` (start, with the episode's socket attached) and ``F`` (finish: kill
what is left, report output and exit status).
"""

import socket
import sys
from typing import List, Optional

from microsim_guest import codec, config, place, wire


def main(argv: List[str]) -> None:
    """Serve the world host until the guest ends."""
    # Nothing else of the configuration is kept: a controller can look through all of this process's objects.
    settings = config.load()
    env, own = config.environment(settings), settings.get("controller", {})
    readable, network = list(own.get("readable", [])), own.get("network") == "guest"
    del settings, own
    codec.numpy()  # imported before the snapshot, so that no episode pays for it
    sock = socket.socket(fileno=int(argv[1]))
    link = wire.SocketLink(sock)
    standby: Optional[place.Place] = place.Child(env, readable, network)
    running: Optional[place.Place] = None
    link.send({"ok": {}})
    while True:
        marker, frame, attached = wire.receive_command(sock)
        if marker == b"S":
            # Only the first episode finds a child waiting; most rollouts have no second one.
            running, standby = standby or place.Child(env, readable, network), None
            running.start(frame.header, frame.blobs[0], attached)
        elif running is not None:
            result, output = running.finish()
            running = None
            link.send({"ok": result}, output)


if __name__ == "__main__":
    main(sys.argv)
