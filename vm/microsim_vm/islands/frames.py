"""Read an island's frames, in a thread of their own."""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType

from microsim_vm.islands import namespaces

ETH_P_ALL = 0x0003
SIOCGIFINDEX = 0x8933
SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 263, 1, 1
PACKET_OUTGOING = 4
MAX_FRAME = 65535
BUFFER_BYTES = 8 << 20
LEFT_AT_THE_END = 4096  # frames that are still read after the end was asked for

# Takes a frame and whether the gateway sent it; returns False when it wants no more.
Taker = Callable[[bytes, bool], bool]


class Frames:
    """Hands every frame of an interface on, until it is closed.

    Args:
        namespace: The island's.
        interface: Its main interface.
        take: Called in a thread of ours.

    Raises:
        NetworkError: No socket for it can be made.
    """

    def __init__(self, namespace: int, interface: str, take: Taker) -> None:
        self._take = take
        self._socket = _packets(namespace, interface)
        self._ending, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="microsim-frames", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._ending, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            last = self._ending.fileno() in ready
            for _ in range(LEFT_AT_THE_END if last else 1):
                try:
                    frame, address = self._socket.recvfrom(MAX_FRAME)
                except BlockingIOError:
                    break
                except OSError:  # the interface is gone
                    return
                if not self._take(frame, address[2] == PACKET_OUTGOING):
                    return
            if last:
                return

    def close(self) -> None:
        """Hand on what has arrived, and end; may be called again."""
        self._end.close()
        self._thread.join()
        self._socket.close()
        self._ending.close()

    def __enter__(self) -> Frames:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _packets(namespace: int, interface: str) -> socket.socket:
    sock = namespaces.socket_in(namespace, socket.AF_PACKET, socket.SOCK_RAW)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        sock.bind((interface, ETH_P_ALL))
        # A bridge hands up what its ports say to each other only where it is asked to.
        request = struct.pack("16si20x", interface.encode(), 0)
        (number,) = struct.unpack_from("i", fcntl.ioctl(sock, SIOCGIFINDEX, request), 16)
        sock.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, struct.pack("iHH8x", number, PACKET_MR_PROMISC, 0))
    except BaseException:
        sock.close()
        raise
    return sock
