"""PID 1 of the guest: mounts, loopback, then start the agent and reap whatever dies; no agent, no guest."""

import contextlib
import os
import sys

from microsim_guest import channel, groups, gvisor, kernel, network

PYTHON = "/opt/venv/bin/python3"


def prepare() -> None:
    """Mount the kernel's file systems and bring the network's loopback up before any user code."""
    if kernel.is_gvisor():  # which has done most of it
        channel.keep()
        gvisor.stand_in_for_coreutils()
        gvisor.route_multicast()
        os.symlink("/proc/1/fd/2", "/dev/console")
    else:
        kernel.mount("proc", "/proc", "proc")
        kernel.mount("sysfs", "/sys", "sysfs")
        kernel.mount("devpts", "/dev/pts", "devpts")
        kernel.mount("tmpfs", "/dev/shm", "tmpfs", data="mode=1777")
        kernel.mount("tmpfs", "/run", "tmpfs", data="mode=755")
        kernel.loopback_up()
        os.symlink("/proc/self/fd", "/dev/fd")
    groups.mount()
    os.makedirs("/workspace", exist_ok=True)
    network.prepare()


def farewell() -> None:
    """Tell the host that nobody will answer it any more, and end the guest; its console can still be read."""
    print("microsim: the agent is gone, and the guest with it", file=sys.stderr, flush=True)
    from microsim_guest import wire  # too much to keep in memory for this alone

    with contextlib.suppress(OSError):
        wire.FdLink(channel.open_port()).send({"gone": True})
    kernel.restart()


def main() -> None:
    """Run the guest; never returns, because the kernel panics when PID 1 exits."""
    prepare()
    agent = os.fork()
    if agent == 0:
        os.setsid()
        kernel.set_oom_score(kernel.OOM_AGENT)
        os.execv(PYTHON, [PYTHON, "-m", "microsim_guest.agent"])
    while os.wait()[0] != agent:
        pass
    farewell()


if __name__ == "__main__":
    main()
