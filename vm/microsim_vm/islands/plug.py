"""Where the network interface of a guest ends on the host: what an engine needs to know of an island."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from dataclasses import dataclass
from typing import Any, Literal

from microsim_guest import config

from microsim_vm import tools

# How an engine takes frames: from a tap, or from an interface in the namespace that it runs in.
Wire = Literal["tap", "veth"]


@dataclass(frozen=True)
class Plug:
    """One machine's link to its island.

    Attributes:
        machine: The machine's name.
        wire: What kind of link it is.
        mac: The address of the guest's interface, "02:...".
        address: Its address, and how many bits of it the island's machines share.
        gateway: The way to everything else; None where there is nothing else.
        interface: The link's name on the gateway's side, at most 15 bytes.
        namespace: Descriptor of the network namespace that the engine runs in.
        user: Descriptor of the user namespace that this belongs to; None where it is the host's.
        tap: Descriptor of the tap; None on a wire of another kind.
    """

    machine: str
    wire: Wire
    mac: str
    address: ipaddress.IPv4Interface
    gateway: ipaddress.IPv4Address | None
    interface: str
    namespace: int = -1
    user: int | None = None
    tap: int | None = None

    def joined(self, island: int, end: int, user: int | None) -> Plug:
        """Return it with the descriptors of what was made for it.

        Args:
            island: The island's namespace.
            end: The tap, or the namespace in which the far end of the veth is.
            user: The user namespace.
        """
        if self.wire == "tap":
            return dataclasses.replace(self, namespace=island, user=user, tap=end)
        return dataclasses.replace(self, namespace=end, user=user)

    def link(self) -> dict[str, Any]:
        """Return what the link is made from."""
        return {
            "name": self.interface, "wire": self.wire, "guest": config.INTERFACE, "mac": self.mac,
            "address": str(self.address.ip), "bits": self.address.network.prefixlen,
            "gateway": str(self.gateway) if self.gateway else None,
        }  # fmt: skip

    def entering(self) -> list[str]:
        """Return the words that start a program inside the namespace.

        Our own descriptors are named, so that the program inherits none of them.
        """
        return entering(os.getpid(), self.namespace, self.user)


def entering(owner: int, namespace: int, user: int | None) -> list[str]:
    """Return the words that start a program inside a namespace that a process holds.

    Args:
        owner: The process.
        namespace: Its descriptor of the namespace.
        user: Its descriptor of the user namespace that this belongs to; None for the host's.
    """
    held = f"/proc/{owner}/fd"
    belongs = [] if user is None else [f"--user={held}/{user}", "--preserve-credentials"]
    return [tools.need("nsenter"), *belongs, f"--net={held}/{namespace}", "--"]
