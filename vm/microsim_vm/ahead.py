"""A fork started ahead of its use, so that who asks for it does not wait for its engine."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from pathlib import Path

from microsim_vm import admission
from microsim_vm.errors import MicrosimError
from microsim_vm.forks import Forker, Held

READY_S = 60.0


class Ahead:
    """At most one fork of a snapshot, which has answered once and is held still until it is taken.

    It is given up where another guest of this process would have to wait for its memory.

    Args:
        forker: What forks.
        folder: The snapshot.
    """

    def __init__(self, forker: Forker, folder: Path) -> None:
        self._forker = forker
        self._folder = folder
        self._lock = threading.Lock()
        self._starting: threading.Thread | None = None
        self._held: Held | None = None
        self._wanted = False
        self._pid = os.getpid()

    def start(self) -> None:
        """Start one in the background, unless there is one, or too little memory for more than that."""
        need = self._forker.boot.memory_mib + self._forker.engine.overhead_mib
        # Nothing depends on it: who is short of memory, descriptors or threads will hear of that from what does.
        with contextlib.suppress(MicrosimError, OSError, RuntimeError), self._lock:
            if self._foreign() or self._held is not None or self._starting is not None:
                return
            if admission.free_mib() < 2 * need:
                return
            self._wanted = True
            starting = threading.Thread(target=self._start, name="microsim-ahead", daemon=True)
            starting.start()
            self._starting = starting
            admission.idle.add(self.give_up)
            atexit.unregister(self.close)  # once is enough
            atexit.register(self.close)

    def take(self) -> Held | None:
        """Let it run on, return it, and forget it; None where there is none, or it has died."""
        if self._foreign():
            return None
        since = time.monotonic()
        self._join()
        with self._lock:
            held, self._held = self._held, None
        if held is None:
            return None
        waited = time.monotonic()
        try:
            self._forker.engine.resume(held.started.vm)
        except MicrosimError:
            held.holding.close()
            return None
        phases = {"wait": (waited - since) * 1000.0, "resume": (time.monotonic() - waited) * 1000.0}
        return held._replace(phases_ms=phases)

    def give_up(self) -> None:
        """End the one that is held; one that is about to start ends as soon as it has."""
        if self._foreign():
            return
        with self._lock:
            self._wanted = False
            held, self._held = self._held, None
        if held is not None:
            held.holding.close()

    def close(self) -> None:
        """End what there is, and wait for that."""
        self.give_up()
        self._join()
        admission.idle.discard(self.give_up)
        atexit.unregister(self.close)

    def _foreign(self) -> bool:
        """Tell whether this is a forked child, which has our objects, and neither our guests nor our threads."""
        return self._pid != os.getpid()

    def _join(self) -> None:
        starting = self._starting
        if starting is not None and not self._foreign():
            starting.join()

    def _start(self) -> None:
        # Whoever takes it forks by himself where this has failed, and runs into the same thing. A RuntimeError is the
        # interpreter's, which is about to end.
        try:
            with contextlib.suppress(MicrosimError, OSError, RuntimeError), contextlib.ExitStack() as stack:
                label = f"{self._forker.name}, for the next rollout"
                started = stack.enter_context(self._forker.started(self._folder, label, wait_s=0.0))
                network = started.berth.settings() if started.berth else None
                started.client.call("connect", {"network": network}, timeout_s=READY_S)
                self._forker.engine.pause(started.vm)
                with self._lock:
                    if self._wanted:
                        self._held = Held(started, stack.pop_all(), {})
        finally:
            with self._lock:
                self._starting = None
