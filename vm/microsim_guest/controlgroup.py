"""A control group of the guest's kernel, version 2: it keeps the limits, and tells which were hit."""

import os
import time
from typing import Dict, List

from microsim_guest import kernel

ROOT = "/sys/fs/cgroup"
OOM_KILL, PIDS_MAX = "memory.oom_kill", "pids.max"
KILL_S = 10.0


class ControlGroup:
    """A cgroup v2, whose limits the kernel keeps.

    Args:
        name: Its path below the root.
        limits: See :meth:`limit`.
    """

    def __init__(self, name: str, **limits: int) -> None:
        self.path = os.path.join(ROOT, name)
        os.makedirs(self.path, exist_ok=True)
        self.limit(**limits)

    def limit(self, **limits: int) -> None:
        """Set limits: ``pids_max`` (processes and threads), ``memory_max`` (bytes)."""
        for key, value in limits.items():
            self._write(key.replace("_", "."), str(value))

    def delegate(self) -> None:
        """Let groups inside this one have limits of their own."""
        self._write("cgroup.subtree_control", "+memory +pids")

    def enter(self) -> None:
        """Move the calling process in, and let it be the first to go when memory runs out."""
        kernel.set_oom_score(kernel.OOM_USER)
        self._write("cgroup.procs", "0")

    def door(self) -> int:
        """Return a descriptor: who writes "0" to it moves in, also from a file tree without control groups."""
        return os.open(os.path.join(self.path, "cgroup.procs"), os.O_WRONLY | os.O_CLOEXEC)

    def cpu_seconds(self) -> float:
        """Return the processor time of all that has run in it."""
        values = dict(line.split() for line in self._read("cpu.stat").splitlines())
        return int(values["usage_usec"]) / 1e6

    def kill(self) -> None:
        """Kill every member with SIGKILL."""
        self._write("cgroup.kill", "1")

    def events(self) -> Dict[str, int]:
        """Return how often limits were hit: ``memory.oom_kill`` and ``pids.max``."""
        counts = {}
        for name, counter in (("memory.events", "oom_kill"), ("pids.events", "max")):
            values = dict(line.split() for line in self._read(name).splitlines())
            counts["{}.{}".format(name.partition(".")[0], counter)] = int(values[counter])
        return counts

    def populated(self) -> bool:
        """Tell whether anything in it still runs."""
        return "populated 1" in self._read("cgroup.events")

    def notices(self) -> List[int]:
        """Open what polls as ``POLLPRI`` when the last of it ends, and when a limit is hit; none where it cannot be."""
        return [
            os.open(os.path.join(self.path, name), os.O_RDONLY | os.O_CLOEXEC)
            for name in ("cgroup.events", "pids.events")
        ]

    def remove(self) -> bool:
        """Remove it, and tell whether that could be done: nothing may be in it any more."""
        try:
            os.rmdir(self.path)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Kill what is left and remove the group.

        Raises:
            TimeoutError: It could not be killed.
        """
        self.kill()
        deadline = time.monotonic() + 3 * KILL_S
        while not self.remove():
            if time.monotonic() > deadline:
                raise TimeoutError("what runs in {} could not be killed".format(self.path))
            time.sleep(0.005)

    def _read(self, name: str) -> str:
        with open(os.path.join(self.path, name)) as file:
            return file.read()

    def _write(self, name: str, value: str) -> None:
        with open(os.path.join(self.path, name), "w") as file:
            file.write(value)
