"""System calls that Python has no function for, by their numbers on x86-64. Standard library only: for the warden."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_PARENT, SIGCHLD = 0x8000, 17
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x4000, 1 << 18
MNT_DETACH = 2
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
CLOSE_RANGE_CLOEXEC = 4
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 1, 24, 38, 47, 4
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8
SECCOMP_RET_ALLOW, SECCOMP_RET_USER_NOTIF = 0x7FFF0000, 0x7FC00000
SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_ADDFD, SECCOMP_ADDFD_FLAG_SEND = 0xC0502100, 0x40182103, 2
SECCOMP_IOCTL_NOTIF_SEND, SECCOMP_CONTINUE = 0xC0182101, 1
NOTIFICATION_BYTES, PATH_OFFSET, PATH_MAX = 80, 40, 4096
AUDIT_ARCH_X86_64 = 0xC000003E
NR = {
    "clone": 56, "setgroups": 116, "setresuid": 117, "setresgid": 119, "capset": 126, "pivot_root": 155, "prctl": 157,
    "mount": 165, "umount2": 166, "openat": 257, "setns": 308, "seccomp": 317, "open_tree": 428, "move_mount": 429,
    "close_range": 436, "mount_setattr": 442,
}  # fmt: skip

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def call(name: str, *words: int | bytes | None) -> int:
    """Make a system call.

    Raises:
        OSError: It failed; the name is in it.
    """
    converted = [ctypes.c_long(word) if isinstance(word, int) else ctypes.c_char_p(word) for word in words]
    result = int(_libc.syscall(ctypes.c_long(NR[name]), *converted))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def clone(flags: int) -> int:
    """Fork into new namespaces; only for a process without threads, whose child soon becomes another program."""
    return call("clone", flags | SIGCHLD, 0, 0, 0, 0)


def tree(path: str, *, recursive: bool) -> int:
    """Return a descriptor of a copy of what is mounted at a path."""
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC | (AT_RECURSIVE if recursive else 0)
    return call("open_tree", AT_FDCWD, os.fsencode(path), flags)


def restrict(fd: int, attributes: int) -> None:
    """Add attributes to a copy of a mount, and to all in it."""
    call("mount_setattr", fd, b"", AT_EMPTY_PATH | AT_RECURSIVE, struct.pack("=4Q", attributes, 0, 0, 0), 32)


def attach(fd: int, target: str) -> None:
    """Mount a copy."""
    call("move_mount", fd, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)


def drop_bounding_set() -> None:
    """Make sure that no program gives a capability back."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    for capability in range(last + 1):
        call("prctl", PR_CAPBSET_DROP, capability, 0, 0, 0)


def drop_capabilities() -> None:
    """Give all capabilities up."""
    call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    call("capset", struct.pack("=Ii", 0x20080522, 0), bytes(24))


def intercept_opening() -> int:
    """Have each opening of a file for reading and writing, with no other flag, answered by who holds the descriptor.

    That is how QEMU opens a memory file, and little else.
    """
    program = [
        (0x20, 0, 0, 4), (0x15, 0, 5, AUDIT_ARCH_X86_64),  # the architecture
        (0x20, 0, 0, 0), (0x15, 0, 3, NR["openat"]),  # the call
        (0x20, 0, 0, 32), (0x15, 0, 1, os.O_RDWR),  # its third argument
        (0x06, 0, 0, SECCOMP_RET_USER_NOTIF), (0x06, 0, 0, SECCOMP_RET_ALLOW),
    ]  # fmt: skip
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program))
    filters = struct.pack("@HP", len(program), ctypes.addressof(code))
    return call("seccomp", SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, filters)


def opening(listener: int) -> tuple[int, str]:
    """Return the number of an intercepted opening, and the path that is to be opened.

    Raises:
        OSError: Its process has ended, or its memory cannot be read.
    """
    notification = bytearray(NOTIFICATION_BYTES)
    fcntl.ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, notification)
    number, pid = struct.unpack_from("=QI", notification)
    (address,) = struct.unpack_from("=Q", notification, PATH_OFFSET)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return number, os.fsdecode(memory.read(PATH_MAX).partition(b"\0")[0])


def answer(listener: int, number: int, fd: int) -> None:
    """Let an intercepted opening return a copy of a descriptor of ours."""
    answered = struct.pack("=QIIII", number, SECCOMP_ADDFD_FLAG_SEND, fd, 0, os.O_CLOEXEC)
    fcntl.ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, answered)


def let(listener: int, number: int) -> None:
    """Let an intercepted opening go on as if it had not been intercepted."""
    fcntl.ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, struct.pack("=QqiI", number, 0, 0, SECCOMP_CONTINUE))
