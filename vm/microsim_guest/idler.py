"""Keeps a deterministic machine's processor from being idle, at next to no cost.

When nothing runs, an emulator that counts instructions moves its clock on to the next timer, in a thread of its own,
and may do so a few instructions before the processor has been counted up to its halt. With a process that is always
ready to run, of the lowest priority, the processor never halts. Its instructions do nothing, and hundreds of them in a
row are translated to next to nothing, so that a second of the machine's time takes some milliseconds.
"""

import ctypes
import mmap
import os
import struct
import sys

from microsim_guest import kernel

READY = b"ready\n"
NOP, JUMP = b"\x90", b"\xe9"
PAGES = 1


def code() -> bytes:
    """Return a page of instructions that do nothing, and a jump back to its beginning."""
    size = PAGES * mmap.PAGESIZE
    jump = len(JUMP) + 4
    return NOP * (size - jump) + JUMP + struct.pack("<i", -size)


def main() -> None:
    """Do nothing, for good."""
    kernel.set_oom_score(kernel.OOM_AGENT)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    text = code()
    page = mmap.mmap(-1, len(text), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(text)
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()


if __name__ == "__main__":
    main()
