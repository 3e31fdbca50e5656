"""End, or hibernate, the sandboxes of this process that nobody has used for their time."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time

from microsim_vm.errors import SandboxGoneError
from microsim_vm.sandbox import live
from microsim_vm.sandbox.live import Live

PERIOD_S = 0.5
RETRY_S = 60.0  # after a hibernation that was refused

_start = threading.Lock()
_log = logging.getLogger("microsim")


def watch(sandbox: Live) -> None:
    """Look after a sandbox, if it has a time."""
    if sandbox.record.ttl_seconds is None and sandbox.record.hibernate_after is None:
        return
    with _start:
        _watch_in(os.getpid())


@functools.cache
def _watch_in(pid: int) -> None:  # a forked child has none of our threads
    threading.Thread(target=_look, name="microsim-idle", daemon=True).start()


def _look() -> None:
    refused: dict[str, float] = {}
    while True:
        time.sleep(PERIOD_S)
        for sandbox in live.every():
            if time.monotonic() - refused.get(sandbox.record.id, -RETRY_S) >= RETRY_S:
                try:
                    _end_if_idle(sandbox)
                except SandboxGoneError:
                    continue  # somebody else ended it
                except Exception as error:  # a full disk above all; the others still have their times
                    refused[sandbox.record.id] = time.monotonic()
                    _log.warning("sandbox %s is idle and stays up: %s", sandbox.record.id, error)


def _end_if_idle(sandbox: Live) -> None:
    record, idle_s = sandbox.record, sandbox.idle_s()
    if sandbox.store.read(record.id) is None:
        sandbox.kill()  # somebody removed it by its record, while it was starting or by hand
        return
    sandbox.look(deep=False)
    if record.ttl_seconds is not None and not record.persistent and idle_s > record.ttl_seconds:
        sandbox.kill()
    elif record.hibernate_after is not None and record.status == "running" and idle_s > record.hibernate_after:
        with contextlib.suppress(FileNotFoundError):  # it was killed in this moment
            sandbox.hibernate()
