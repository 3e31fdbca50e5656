"""``microsim volume``: disks that outlive the sandboxes that mount them."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from microsim_vm.cli import common, units
from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output
from microsim_vm.cli.units import duration_text, size_text
from microsim_vm.errors import VolumeError

if TYPE_CHECKING:
    from microsim_vm.cli.common import Commands


def add(commands: Commands) -> None:
    """Add the commands."""
    group = commands.add_parser(
        "volume", help="make, list and remove volumes, which outlive sandboxes", allow_abbrev=False,
        description="Make, list and remove volumes: disks that outlive the sandboxes that mount them.",
    )  # fmt: skip
    verbs = group.add_subparsers(title="commands", required=True, metavar="COMMAND")
    create = command(verbs, "create", run_create, "Make an empty volume.", founds=True)
    create.add_argument("name", metavar="NAME", help="what it is called: a-z, 0-9, - and _")
    create.add_argument("--size", type=units.size, default=1 << 30, metavar="SIZE",
                        help="how much it holds; the host gives the space as it is written (default: 1G)")  # fmt: skip
    command(verbs, "ls", run_ls, "List the volumes.")
    remove = command(verbs, "rm", run_rm, "Remove volumes and all that is in them.")
    remove.add_argument("names", nargs="+", metavar="NAME", help="the volume")


def run_create(args: argparse.Namespace, output: Output) -> int:
    """Make a volume."""
    import msgspec

    from microsim_vm import volumes

    volume = volumes.create(common.cache(args), args.name, args.size >> 20)
    output.result(msgspec.to_builtins(volume), volume.name)
    return 0


def run_ls(args: argparse.Namespace, output: Output) -> int:
    """List."""
    import msgspec

    from microsim_vm import volumes

    found = volumes.listed(common.cache(args))
    now = time.time()
    rows = [(each.name, size_text(each.size_mib << 20), duration_text(now - each.created_at)) for each in found]
    output.table(msgspec.to_builtins(found), ("NAME", "SIZE", "AGE"), rows)
    return 0


def run_rm(args: argparse.Namespace, output: Output) -> int:
    """Remove; those that can be are removed also where one cannot."""
    from microsim_vm import volumes
    from microsim_vm.sandbox.store import Store

    cache = common.cache(args)
    removed = []
    for name in args.names:
        try:
            volumes.delete(cache, name, Store(cache).exists)
            removed.append(name)
        except VolumeError as error:
            output.failure(error)
    output.result({"removed": removed}, "\n".join(removed))
    return int(len(removed) < len(args.names))
