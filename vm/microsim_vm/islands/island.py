"""An island: raised for one rollout, gone with it."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from microsim_guest import config, middleware

from microsim_vm import shield
from microsim_vm.islands import namespaces, relays, subnets
from microsim_vm.islands.capture import captured
from microsim_vm.islands.frames import Frames
from microsim_vm.islands.plug import Plug, Wire
from microsim_vm.islands.policy import Network, destinations, pool_of
from microsim_vm.islands.refusals import Refusals
from microsim_vm.runtime import IslandRecord

ALONE = "sim"  # what a rollout's first machine is called


# Those of this process, for a process that is forked from it to let go of.
_alive: weakref.WeakSet[Island] = weakref.WeakSet()


def interface_name(label: str) -> str:
    """Return an interface's name: hashed, not cut, so that long labels with one beginning give different ones."""
    return f"ms{hashlib.sha256(label.encode()).hexdigest()[:12]}"


def mac_of(label: str) -> str:
    """Return a locally administered address."""
    digest = hashlib.sha256(f"mac {label}".encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))


class Island:
    """A network namespace with a gateway and one link per machine.

    Args:
        network: The template's network.
        name: The rollout's name, unique; decides addresses and names.
        wires: How each machine is linked, by its name.
        pool: Where its subnet is taken from.
        wait_s: How long it may wait for one, seconds.

    Attributes:
        network: As given.
        subnet: Its addresses.
        plugs: The links' ends, by the machine's name.
        published: Ports of the host's loopback, by the guest's.
        refusals: What was refused; None where nothing can be asked for.
        pcap: Where its frames are written; None where they are not.

    Raises:
        NetworkError: It cannot be made on this machine.
        SubnetsExhaustedError: There is no free subnet.
    """

    def __init__(
        self, network: Network, name: str, wires: Mapping[str, Wire], *, pool: ipaddress.IPv4Network,
        wait_s: float = subnets.WAIT_S,
    ) -> None:  # fmt: skip
        self.network = network
        self.published: dict[int, int] = {}
        self.plugs: dict[str, Plug] = {}
        self.refusals: Refusals | None = None
        self.pcap: Path | None = None
        self._frames: Frames | None = None
        self._descriptors: list[int] = []
        self._stack = contextlib.ExitStack()
        with self._stack:
            maker = namespaces.maker()
            self.subnet = subnets.take(pool, name, namespaces.routed(pool), machines=len(wires), wait_s=wait_s)
            self._stack.callback(self.subnet.close)
            _alive.add(self)
            bits = self.subnet.network.prefixlen
            way_out = self.subnet.gateway if network.policy == "egress" else None
            for number, (machine, wire) in enumerate(wires.items()):
                label = f"{name} {machine}"
                address = ipaddress.IPv4Interface((self.subnet.machine(number), bits))
                self.plugs[machine] = Plug(machine, wire, mac_of(label), address, way_out, interface_name(label))
            bridge = interface_name(name) if len(wires) > 1 else None
            self.interface = bridge or next(iter(self.plugs.values())).interface
            made = maker.ask(
                "island", bridge=bridge, links=[plug.link() for plug in self.plugs.values()],
                gateway=str(self.subnet.gateway), bits=bits, subnet=str(self.subnet.network),
                any_address=way_out is not None,
            ).descriptors  # fmt: skip
            self._descriptors = made
            self._stack.callback(self._let_go)
            self.namespace = made[0]
            for plug, far in zip(self.plugs.values(), made[1:], strict=True):
                self.plugs[plug.machine] = plug.joined(self.namespace, far, maker.user)
            self._open_doors()
            self._stack = self._stack.pop_all()

    def _let_go(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def forget(self) -> None:
        """Close this process's copies of its descriptors: it is the parent's, from which this process was forked."""
        self._let_go()
        self.subnet.close()

    def _open_doors(self) -> None:
        """Serve what the policy lets through."""
        if not self.network.publish and self.network.policy != "egress":
            return
        doors = self._stack.enter_context(relays.Doors(self.namespace))
        first = next(iter(self.plugs.values()))
        for port in self.network.publish:
            self.published[port] = doors.publish((str(first.address.ip), port))
        if self.network.policy == "egress":
            allowed = destinations(self.network.allow)
            self.refusals = Refusals(self.subnet.network, {(each.network, each.port) for each in allowed})
            self._stack.enter_context(self.refusals.watched(self.namespace, self.interface))
            doors.let_out(allowed, self.refusals)

    def capture(self, path: Path) -> None:
        """Write all frames to a pcap file from now on, until it is closed."""
        self.pcap = path
        self._frames = self._stack.enter_context(captured(self.namespace, self.interface, path))

    @property
    def dropped(self) -> int:
        """How many frames have passed too fast to be in the capture; known when it is closed."""
        return 0 if self._frames is None else self._frames.dropped

    def berth(self, machine: str) -> Berth:
        """Return a machine's place on it."""
        return Berth(self, self.plugs[machine])

    def close(self) -> None:
        """Give up what this process holds of it; it is gone when its machines are. May be called again."""
        self._stack.close()

    def __enter__(self) -> Island:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _forget() -> None:
    for island in list(_alive):
        island.forget()
    _alive.clear()


os.register_at_fork(after_in_child=_forget)


class Berth(NamedTuple):
    """A machine's place on an island.

    Attributes:
        island: The island.
        plug: The machine's link to it.
    """

    island: Island
    plug: Plug

    @property
    def scope(self) -> str:
        """Whom ROS 2 and DDS may find there."""
        return middleware.ISLAND if len(self.island.plugs) > 1 else middleware.LOOPBACK

    def settings(self) -> dict[str, Any]:
        """Return what the guest is told of its interface."""
        island, plugs = self.island, self.island.plugs
        names = {name: str(plug.address.ip) for name, plug in plugs.items() if len(plugs) > 1}
        names["gateway"] = str(island.subnet.gateway)
        for each in destinations(island.network.allow):
            if each.host:
                names[each.host] = str(each.network.network_address)
        return {
            "interface": config.INTERFACE, "mac": self.plug.mac, "address": str(self.plug.address.ip),
            "bits": self.plug.address.network.prefixlen, "names": names,
            "gateway": names["gateway"] if island.network.policy == "egress" else None,
        }  # fmt: skip

    def record(self) -> IslandRecord:
        """Return what others are told of it."""
        island = self.island
        published = island.published if self.plug is next(iter(island.plugs.values())) else {}
        return IslandRecord(
            str(island.subnet.network), island.network.policy, self.plug.interface, self.plug.machine,
            str(self.plug.address.ip), published, self.plug.namespace, self.plug.user,
        )  # fmt: skip


@contextlib.contextmanager
def raised(
    network: Network, name: str, wires: Mapping[str, Wire], *, pool: str = "", wait_s: float = subnets.WAIT_S
) -> Iterator[Island | None]:
    """Yield an island for the length of a block, or None where the policy is to have no network. See :class:`Island`.

    Args:
        network: As there.
        name: As there.
        wires: As there.
        pool: The range that its subnet is taken from; see :func:`microsim_vm.islands.policy.pool_of`.
        wait_s: As there.

    Raises:
        NetworkError: It cannot be made on this machine.
        SubnetsExhaustedError: There is no free subnet.
    """
    if network.policy == "none":
        yield None
        return
    addresses = pool_of(pool)
    with shield.made(lambda: Island(network, name, wires, pool=addresses, wait_s=wait_s), Island.close) as island:
        yield island
