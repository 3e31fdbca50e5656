"""A capture of an island's frames: a pcap file, which Wireshark and tcpdump open."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from microsim_vm.islands.frames import MAX_FRAME, Frames

# libpcap's format, version 2.4, with microseconds.
MAGIC, VERSION, LINKTYPE_ETHERNET = 0xA1B2C3D4, (2, 4), 1
MAX_BYTES = 64 << 20


@contextlib.contextmanager
def captured(namespace: int, interface: str, path: Path) -> Iterator[Frames]:
    """Write all frames that pass during the block to a file, 64 MiB at most; yield what reads them.

    Raises:
        NetworkError: They cannot be read.
        OSError: The file cannot be written.
    """
    with open(path, "wb", buffering=0) as file:  # it may be read meanwhile
        file.write(struct.pack("<IHHiIII", MAGIC, *VERSION, 0, 0, MAX_FRAME, LINKTYPE_ETHERNET))

        def write(frame: bytes, outgoing: bool) -> bool:
            seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
            try:
                file.write(struct.pack("<IIII", seconds, nanoseconds // 1000, len(frame), len(frame)) + frame)
            except OSError:  # the disk is full: what is there can be read
                return False
            return file.tell() < MAX_BYTES

        with Frames(namespace, interface, write) as frames:
            yield frames
