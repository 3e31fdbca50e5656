"""Where the host is: a virtio-serial port, or a socket that the engine started this guest with."""

import os

PORT_NAME = "microsim.agent"
VARIABLE = "MICROSIM_CHANNEL"  # number of the inherited descriptor


def keep() -> None:
    """Take the channel, a socket, away from standard input, where an engine without devices has put it."""
    os.environ[VARIABLE] = str(os.dup(0))
    os.set_inheritable(int(os.environ[VARIABLE]), True)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def open_port() -> int:
    """Return a descriptor of the channel to the host."""
    inherited = os.environ.get(VARIABLE)
    if inherited is not None:
        os.set_inheritable(int(inherited), False)
        return int(inherited)
    # By its name: numbers change with the machine's other devices.
    root = "/sys/class/virtio-ports"
    for entry in sorted(os.listdir(root)):
        with open(os.path.join(root, entry, "name")) as file:
            if file.read().strip() == PORT_NAME:
                return os.open("/dev/" + entry, os.O_RDWR | os.O_CLOEXEC)
    raise FileNotFoundError("no virtio-serial port is called {}".format(PORT_NAME))
