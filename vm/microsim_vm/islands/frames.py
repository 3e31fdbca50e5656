"""Read an island's frames, in a thread of their own."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from microsim_vm.islands import namespaces

ETH_P_ALL = 0x0003
SIOCGIFINDEX = 0x8933
SO_ATTACH_FILTER, SO_RCVBUFFORCE = 26, 33
SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_STATISTICS, PACKET_MR_PROMISC = 263, 1, 6, 1
PACKET_OUTGOING = 4
MAX_FRAME = 65535
BUFFER_BYTES = 8 << 20
AT_A_TIME = 512  # frames that are read before anything else is looked at
LEFT_AT_THE_END = 1 << 15  # frames that are still read after the end was asked for: more than the buffer holds

# Takes a frame and whether the gateway sent it; returns False when it wants no more.
Taker = Callable[[bytes, bool], bool]
# A program of the kernel's classic BPF: code, jump if true, jump if false, constant.
Filter = Sequence[tuple[int, int, int, int]]


class Frames:
    """Hands the frames of an interface on, until it is closed.

    Args:
        namespace: The island's.
        interface: Its main interface.
        take: Called in a thread of ours.
        wanted: Which frames; all where it is empty.

    Attributes:
        dropped: How many frames the kernel had no room for; known when it is closed.

    Raises:
        NetworkError: No socket for it can be made.
    """

    def __init__(self, namespace: int, interface: str, take: Taker, wanted: Filter = ()) -> None:
        self.dropped = 0
        self._take = take
        self._socket = _packets(namespace, interface, wanted)
        self._ending, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="microsim-frames", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._ending, select.POLLIN)
        with contextlib.suppress(OSError):  # the interface is gone
            last = False
            while not last:
                last = self._ending.fileno() in {descriptor for descriptor, _ in poll.poll()}
                if not self._read(LEFT_AT_THE_END if last else AT_A_TIME):
                    break
        _, self.dropped = struct.unpack("II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        self._socket.close()

    def _read(self, most: int) -> bool:
        """Hand on what has arrived; tell whether more is wanted."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(most):
                frame, address = self._socket.recvfrom(MAX_FRAME)
                if not self._take(frame, address[2] == PACKET_OUTGOING):
                    return False
        return True

    def close(self) -> None:
        """Hand on what has arrived, and end; may be called again."""
        self._end.close()
        self._thread.join()
        self._socket.close()  # a process that was forked from ours has no such thread
        self._ending.close()

    def __enter__(self) -> Frames:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _packets(namespace: int, interface: str, wanted: Filter) -> socket.socket:
    sock = namespaces.socket_in(namespace, socket.AF_PACKET, socket.SOCK_RAW)
    try:
        sock.setblocking(False)
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        except PermissionError:  # others than root get what the host gives to everybody
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        if wanted:
            program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in wanted))
            told = struct.pack("HP", len(wanted), ctypes.addressof(program))
            sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, told)
        sock.bind((interface, ETH_P_ALL))  # nothing has arrived before this
        # A bridge hands up what its ports say to each other only where it is asked to.
        request = struct.pack("16si20x", interface.encode(), 0)
        (number,) = struct.unpack_from("i", fcntl.ioctl(sock, SIOCGIFINDEX, request), 16)
        sock.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, struct.pack("iHH8x", number, PACKET_MR_PROMISC, 0))
    except BaseException:
        sock.close()
        raise
    return sock
