"""What gVisor's kernel does otherwise than Linux, and what user code would trip over."""

import ctypes
import errno
import os

BUSYBOX = "/usr/bin/busybox"
AT_FDCWD, AT_NO_AUTOMOUNT, STATX_BASIC_STATS = -100, 0x800, 0x7FF


def stand_in_for_coreutils() -> None:
    """Put busybox's ``ls`` and ``stat`` before those of coreutils 9, where they cannot work.

    They ask not to trigger automounts, and a gVisor of 2022 refuses a request with that flag, which Linux ignores
    where it means nothing.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(256)
    refused = libc.statx(AT_FDCWD, b"/", AT_NO_AUTOMOUNT, STATX_BASIC_STATS, buffer) != 0
    if refused and ctypes.get_errno() == errno.EINVAL:
        for name in ("ls", "stat"):
            os.symlink(BUSYBOX, "/usr/local/bin/" + name)
