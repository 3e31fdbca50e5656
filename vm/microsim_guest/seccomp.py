"""A filter of system calls, for a controller: what a robot's controller has no use for is refused.

It is a list of what is refused, so that any program works; what a call could reach is taken away elsewhere too (there
are no capabilities, no other namespaces and no devices). The filter makes the kernel's rarely used parts unreachable,
which is where kernels break. x86-64 only; a call by another calling convention does not exist.
"""

import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import threading
from typing import Dict, List, Optional, Tuple

SYS_SECCOMP = 317
SET_MODE_FILTER, NEW_LISTENER = 1, 8
PR_SET_SECCOMP, MODE_FILTER = 22, 2
NOTIF_RECV, NOTIF_SEND = 0xC0502100, 0xC0182101
ALLOW, ERRNO, USER_NOTIF = 0x7FFF0000, 0x00050000, 0x7FC00000
ARCH_X86_64, X32_BIT = 0xC000003E, 0x40000000
OF_NR, OF_ARCH, OF_ARGUMENT = 0, 4, (16, 24, 32)  # in struct seccomp_data
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NAMESPACES = 0x7E020000  # CLONE_NEW*
DEVICE = 0x2000  # in a file's type, of both kinds of devices and of nothing else
CLONE, CLONE3, SOCKET, SOCKETPAIR, MKNOD, MKNODAT, PRCTL = 56, 435, 41, 53, 133, 259, 157

REFUSED = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "pidfd_getfd": 438,
    "process_madvise": 440, "process_mrelease": 448,
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "quotactl": 179,
    "quotactl_fd": 443, "name_to_handle_at": 303, "open_by_handle_at": 304, "fanotify_init": 300,
    "unshare": 272, "setns": 308, "sethostname": 170, "setdomainname": 171, "personality": 135,
    "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176,
    "create_module": 174, "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163, "syslog": 103, "vhangup": 153,
    "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159,
    "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "keyctl": 250, "add_key": 248, "request_key": 249, "memfd_secret": 447,
    "iopl": 172, "ioperm": 173, "modify_ldt": 154, "lookup_dcookie": 212, "nfsservctl": 180, "_sysctl": 156,
    "uselib": 134, "migrate_pages": 256, "move_pages": 279,
    "seccomp": SYS_SECCOMP,  # a filter of its own would refuse calls before this one could tell of them
}  # fmt: skip
NAMES = {number: name for name, number in REFUSED.items()}
NAMES.update({CLONE: "clone", MKNOD: "mknod", MKNODAT: "mknodat", PRCTL: "prctl"})


class _Program(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def assemble(refused: int, families: Tuple[int, ...]) -> bytes:
    """Return the filter's instructions.

    Args:
        refused: What a refused call returns to the kernel: an action and its data.
        families: The address families that sockets may have.
    """
    lines: List[Tuple[int, int, str, str]] = [  # code, operand, label where true, label where false; "" goes on
        (LOAD, OF_ARCH, "", ""), (EQUAL, ARCH_X86_64, "", "absent"),
        (LOAD, OF_NR, "", ""), (AT_LEAST, X32_BIT, "absent", ""),
        # glibc falls back to clone, whose flags can be looked at.
        (EQUAL, CLONE3, "absent", ""),
        (EQUAL, CLONE, "clone", ""), (EQUAL, SOCKET, "socket", ""), (EQUAL, SOCKETPAIR, "socket", ""),
        # gVisor (2022) lets anybody make devices.
        (EQUAL, MKNOD, "mknod", ""), (EQUAL, MKNODAT, "mknodat", ""), (EQUAL, PRCTL, "prctl", ""),
    ]  # fmt: skip
    lines += [(EQUAL, number, "refused", "") for number in sorted(REFUSED.values())]
    lines += [(RETURN, ALLOW, "", "")]
    labels = {}
    for label, argument, bits in (("clone", 0, NAMESPACES), ("mknod", 1, DEVICE), ("mknodat", 2, DEVICE)):
        labels[label] = len(lines)
        lines += [(LOAD, OF_ARGUMENT[argument], "", ""), (ANY_BIT, bits, "refused", "allowed")]
    labels["prctl"] = len(lines)
    lines += [(LOAD, OF_ARGUMENT[0], "", ""), (EQUAL, PR_SET_SECCOMP, "refused", "allowed")]
    labels["socket"] = len(lines)
    lines += [(LOAD, OF_ARGUMENT[0], "", "")]
    lines += [(EQUAL, family, "allowed", "") for family in families]
    lines += [(RETURN, ERRNO | errno.EAFNOSUPPORT, "", "")]
    for label, action in (("allowed", ALLOW), ("refused", refused), ("absent", ERRNO | errno.ENOSYS)):
        labels[label] = len(lines)
        lines.append((RETURN, action, "", ""))
    return b"".join(
        struct.pack("HBBI", code, *(labels[to] - at - 1 if to else 0 for to in (true, false)), operand)
        for at, (code, operand, true, false) in enumerate(lines)
    )


def install(network: bool) -> Optional[int]:
    """Filter the calling process's system calls from now on, and those of all that it starts.

    Args:
        network: It uses the guest's network, and may ask the kernel about it.

    Returns:
        A descriptor that tells of each refused call and has to answer it (:class:`Refusals`); None where the kernel
        has no such thing (gVisor), and refuses them itself.

    Raises:
        OSError: The kernel takes no filter.
    """
    families = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6) + ((socket.AF_NETLINK,) if network else ())
    libc = ctypes.CDLL(None, use_errno=True)
    told = _program(assemble(USER_NOTIF, families))
    listener = libc.syscall(SYS_SECCOMP, SET_MODE_FILTER, NEW_LISTENER, ctypes.byref(told))
    if listener >= 0:
        return int(listener)
    silent = _program(assemble(ERRNO | errno.EPERM, families))
    if libc.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(silent), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")
    return None


def _program(instructions: bytes) -> _Program:
    return _Program(len(instructions) // 8, instructions)


class Refusals:
    """Refuses the calls that a filter tells of, and counts them by name.

    Args:
        listener: What :func:`install` returned; closed when the last process under the filter has ended.
    """

    def __init__(self, listener: int) -> None:
        self.counts: Dict[str, int] = {}
        self._thread = threading.Thread(target=self._serve, args=(listener,), daemon=True)
        self._thread.start()

    def _serve(self, listener: int) -> None:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        try:
            while poll.poll()[0][1] & select.POLLIN:
                self._refuse(listener)
        finally:
            os.close(listener)

    def _refuse(self, listener: int) -> None:
        request = bytearray(80)  # struct seccomp_notif
        try:
            fcntl.ioctl(listener, NOTIF_RECV, request)
            (identity,) = struct.unpack_from("Q", request)
            (number,) = struct.unpack_from("i", request, 16)
            name = NAMES.get(number, str(number))
            self.counts[name] = self.counts.get(name, 0) + 1
            fcntl.ioctl(listener, NOTIF_SEND, struct.pack("QqiI", identity, 0, -errno.EPERM, 0))
        except OSError:
            return  # who asked has been killed
