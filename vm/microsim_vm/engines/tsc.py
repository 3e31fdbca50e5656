"""The host's time-stamp counter frequency, which a guest under TCG cannot find out reliably by itself.

TCG's guests see the host's counter. A microvm has no HPET and no PM timer, so the guest's kernel calibrates
the counter against the emulated PIT in a race that it loses on a busy host (seen: one boot in four), and then
waits for ever for a tick. Told the frequency on its command line, it need not race.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import time
from collections.abc import Callable

# rdtsc; shl rdx, 32; or rax, rdx; ret
_RDTSC = b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0\xc3"
_WINDOW_NS = 20_000_000


@functools.cache
def khz() -> int | None:
    """Return the counter's frequency in kHz, or None where it cannot be read (not x86-64, no executable memory)."""
    if platform.machine() != "x86_64":
        return None
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None
    code.write(_RDTSC)
    buffer = ctypes.c_char.from_buffer(code)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(buffer))
    # The median of a few short windows: one of them may be interrupted between its two clocks.
    rates = sorted(_rate(read) for _ in range(5))
    return round(rates[2])


def _rate(read: Callable[[], int]) -> float:
    start_ns, start_ticks = time.monotonic_ns(), read()
    while time.monotonic_ns() - start_ns < _WINDOW_NS:
        pass
    end_ns, end_ticks = time.monotonic_ns(), read()
    return float((end_ticks - start_ticks) * 1_000_000 / (end_ns - start_ns))
