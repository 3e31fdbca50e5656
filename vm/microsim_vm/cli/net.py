"""``microsim net``: the networks of the guests that live."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output
from microsim_vm.cli.units import size_text

if TYPE_CHECKING:
    from microsim_vm.cli.common import Commands
    from microsim_vm.runtime import GuestRecord, IslandRecord

HEADER = ("SUBNET", "POLICY", "MACHINE", "ADDRESS", "SENT", "RECEIVED", "PUBLISHED", "INTERFACE", "OWNER", "LABEL")
LOOK_S = 10.0  # to look into one island


class Traffic(NamedTuple):
    """Bytes of a guest so far.

    Attributes:
        sent: By the guest.
        received: By the guest.
    """

    sent: int
    received: int


def add(commands: Commands) -> None:
    """Add the command."""
    command(
        commands, "net", run,
        "List the networks of this user's guests, those of tests and of sandboxes. Each line is a machine; those of "
        "one rollout share a subnet.",
    )  # fmt: skip


def run(args: argparse.Namespace, output: Output) -> int:
    """List."""
    found = islands()
    if not found:
        output.result([], "no guest with a network is alive")
        return 0
    rows = []
    for island in found:
        shared = island["subnet"], island["policy"]
        for machine in island["machines"]:
            published = ", ".join(f"{port} at {place}" for port, place in machine["published"].items())
            rows.append(
                (*shared, machine["machine"], machine["address"], _size(machine["sent_bytes"]),
                 _size(machine["received_bytes"]), published or "-", machine["interface"], str(machine["owner"]),
                 machine["label"])
            )  # fmt: skip
            shared = "", ""  # said once
    output.table(found, HEADER, rows)
    return 0


def islands() -> list[dict[str, Any]]:
    """Return all islands with a live owner, by their addresses, each with its machines; for JSON."""
    import ipaddress

    from microsim_vm import runtime

    with runtime.locked() as folder:
        live = [record for _, record in runtime.records(folder) if record.owner.alive()]
    placed = [(record, record.island) for record in live if record.island is not None]

    def subnet(each: tuple[GuestRecord, IslandRecord]) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(each[1].subnet)

    placed.sort(key=lambda each: (subnet(each), ipaddress.IPv4Address(each[1].address)))
    return [
        {
            "subnet": str(network),
            "policy": members[0][1].policy,
            "machines": [_described(record, island) for record, island in members],
        }
        for network, members in ((network, list(group)) for network, group in itertools.groupby(placed, key=subnet))
    ]


def traffic(text: str, interface: str) -> Traffic | None:
    """Find a guest's bytes in what ``/proc/net/dev`` says in its island; None where there is no such link.

    Args:
        text: The file.
        interface: The link's end on the gateway's side. An engine that is not there has the guest's end.
    """
    from microsim_guest import config

    counted = {}
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        words = numbers.split()
        counted[name.strip()] = int(words[0]), int(words[8])
    if interface in counted:
        came_in, went_out = counted[interface]
        return Traffic(sent=came_in, received=went_out)
    if config.INTERFACE in counted:
        came_in, went_out = counted[config.INTERFACE]
        return Traffic(sent=went_out, received=came_in)
    return None


def _described(record: GuestRecord, island: IslandRecord) -> dict[str, Any]:
    from microsim_vm.islands import plug
    from microsim_vm.islands.relays import LOOPBACK

    seen = None
    if record.vmm is not None and record.vmm.alive() and island.namespace >= 0:
        inside = plug.entering(record.owner.pid, island.namespace, island.user)
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # it may have ended since, or be another user's
            told = subprocess.run(
                [*inside, "cat", "/proc/self/net/dev"], capture_output=True, check=True, timeout=LOOK_S
            )
            seen = traffic(told.stdout.decode("ascii", "replace"), island.interface)
    return {
        "machine": island.machine,
        "address": island.address,
        "sent_bytes": seen.sent if seen else None,
        "received_bytes": seen.received if seen else None,
        "published": {str(port): f"{LOOPBACK}:{ours}" for port, ours in island.published.items()},
        "interface": island.interface,
        "owner": record.owner.pid,
        "label": record.label,
    }


def _size(count: int | None) -> str:
    return "-" if count is None else size_text(count)
