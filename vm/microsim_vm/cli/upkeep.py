"""``microsim gc``: make room in the cache."""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import TYPE_CHECKING

from microsim_vm.cli import common, units
from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output, table

if TYPE_CHECKING:
    from microsim_vm.cli.common import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(
        commands, "gc", run,
        "Remove from the cache what is not in use. What dead processes left and what is not whole always goes; with a "
        "limit also images, layers, wheels, snapshots and saved snapshots, those used longest ago first. What a "
        "sandbox needs, what a kept snapshot needs, and what was used within the last hour stays. Volumes are never "
        "touched.",
    )  # fmt: skip
    parser.add_argument(
        "--older-than", type=units.age, metavar="AGE", help="remove what was not used for so long, such as 7d"
    )
    parser.add_argument(
        "--max-size", type=units.size, metavar="SIZE", help="remove until the cache is at most so large, such as 20G"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")


def run(args: argparse.Namespace, output: Output) -> int:
    """Make room."""
    from microsim_vm import garbage

    report = garbage.collect(
        common.cache(args), older_than=args.older_than, max_size=args.max_size, dry_run=args.dry_run
    )
    document = {**dataclasses.asdict(report), "dry_run": args.dry_run, "freed": report.before - report.after}
    now = time.time()
    lines = [f"removed what a dead process had left: {line}" for line in report.reaped]
    if report.removed:
        rows = [
            (f"{each.kind}/{each.name[:24]}", units.size_text(each.size), units.duration_text(now - each.used),
             each.label, each.why)
            for each in report.removed
        ]  # fmt: skip
        lines.append(table(("REMOVED" if not args.dry_run else "WOULD REMOVE", "FREES", "UNUSED", "WHAT", "WHY"), rows))
    would = "would free" if args.dry_run else "freed"
    lines.append(
        f"{would} {units.size_text(report.before - report.after)}; {units.size_text(report.after)} remain, "
        f"{len(report.held)} things are in use"
    )
    if args.max_size is not None and report.after > args.max_size:
        lines.append(f"that is more than {units.size_text(args.max_size)}: the rest is in use, or needed by what is")
    elif args.max_size is None and args.older_than is None:
        lines.append("give --older-than or --max-size to remove images and snapshots too")
    output.result(document, "\n".join(lines))
    return 0
