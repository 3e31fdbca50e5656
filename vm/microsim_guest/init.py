"""PID 1 of the guest: mounts, loopback, then start the agent and reap whatever dies."""

import os
import sys
import time

from microsim_guest import kernel

PYTHON = "/opt/venv/bin/python3"


def prepare() -> None:
    """Mount the kernel's file systems and bring the network's loopback up before any user code."""
    kernel.mount("proc", "/proc", "proc")
    kernel.mount("sysfs", "/sys", "sysfs")
    kernel.mount("devpts", "/dev/pts", "devpts")
    kernel.mount("tmpfs", "/dev/shm", "tmpfs", data="mode=1777")
    kernel.mount("tmpfs", "/run", "tmpfs", data="mode=755")
    kernel.mount("cgroup2", kernel.CGROUP_ROOT, "cgroup2")
    with open(os.path.join(kernel.CGROUP_ROOT, "cgroup.subtree_control"), "w") as file:
        file.write("+memory +pids")
    kernel.loopback_up()
    os.symlink("/proc/self/fd", "/dev/fd")
    os.makedirs("/workspace", exist_ok=True)


def main() -> None:
    """Run the guest; never returns, because the kernel panics when PID 1 exits."""
    prepare()
    if os.fork() == 0:
        os.setsid()
        os.execv(PYTHON, [PYTHON, "-m", "microsim_guest.agent"])
    while True:
        try:
            os.wait()
        except ChildProcessError:
            print("microsim: the agent is gone and nothing is left to run", file=sys.stderr, flush=True)
            time.sleep(3600)


if __name__ == "__main__":
    main()
