"""The jail around an engine's process on the host: what a guest that breaks out of its emulator finds.

QEMU runs in all of these layers. gVisor's processes jail themselves (see docs/isolation.md), and have the limits alone.

1. namespaces  A user namespace where we are not root; processes, network, System V IPC and host name of its own.
2. view        A root of its own, with the system's libraries and the files that it is given, all of them read-only.
3. user        A user and a group that no other process has, where we are root.
4. limits      Resource limits: no core files, few descriptors, the size of files.
5. rights      No capability, none to be had again, and no new privileges by any program.
6. memory      A shared memory file is opened for it, for reading alone. QEMU asks for it by name, to read and write:
               that one call is intercepted and answered with our descriptor.
7. descriptors Those that it is given, and an empty environment.
8. death       The kernel kills it when our process dies. Changes of user or capabilities would end that promise, so
               it comes last, and whether we still live is looked at after it.
9. seccomp     QEMU's own filter of system calls.
10. group      A control group of its own for memory, processors and processes, entered while it starts, for that takes
               long, and before anything of a guest runs.
11. empty root When it has started, all of its view is taken away, libraries included.

The order is that of :mod:`~microsim_vm.jail.warden`, a small child of ours without threads that makes jailed processes
as siblings of its own. A layer that the machine does not allow is left out, and said: :mod:`~microsim_vm.jail.layers`.
"""
