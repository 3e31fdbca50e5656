"""Makes namespaces of its own, to be root in them, and mounts over what it sees."""

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET = 0x10000000, 0x00020000, 0x40000000


def act(observation):
    for flags in (CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWUSER | CLONE_NEWNS):
        if libc.unshare(flags) == 0:
            print("ESCAPED", hex(flags))
    if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0:
        print("MOUNTED")
    if libc.chroot(b"/usr") == 0:
        print("CHROOTED")
    libc.setuid(0)
    return 0.0
