"""Where the network interface of a guest ends on the host: what an engine needs to know of an island."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from typing import Literal

from microsim_vm import tools

# How an engine takes frames: from a tap, or from an interface in the namespace that it runs in.
Wire = Literal["tap", "veth"]


@dataclass(frozen=True)
class Plug:
    """One machine's link to its island.

    Attributes:
        machine: The machine's name.
        mac: The address of the guest's interface, "02:...".
        address: Its address, and how many bits of it the island's machines share.
        interface: The link's name on the gateway's side, at most 15 bytes.
        namespace: Descriptor of the network namespace that the engine runs in.
        user: Descriptor of the user namespace that it belongs to; None where it is the host's.
        tap: Descriptor of the tap; None on a wire of another kind.
    """

    machine: str
    mac: str
    address: ipaddress.IPv4Interface
    interface: str
    namespace: int
    user: int | None = None
    tap: int | None = None

    def entering(self) -> list[str]:
        """Return the words that start a program inside the namespace.

        Our own descriptors are named, so that the program inherits none of them.
        """
        return entering(self.namespace, self.user)


def entering(namespace: int, user: int | None) -> list[str]:
    """Return the words that start a program inside a network namespace, and the user namespace that owns it."""
    ours = f"/proc/{os.getpid()}/fd"
    owner = [] if user is None else [f"--user={ours}/{user}", "--preserve-credentials"]
    return [tools.need("nsenter"), *owner, f"--net={ours}/{namespace}", "--"]
