"""``microsim merge``: the results of jobs that each ran a part of a suite, as one file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output, counted

if TYPE_CHECKING:
    from microsim_vm.cli.common import Commands

TEXT = """Put the results files of jobs that each ran a part of one suite (pytest --microsim-shard K/N) together, for
one report and one comparison."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "merge", run, " ".join(TEXT.split()))
    parser.add_argument("results", nargs="+", type=Path, metavar="FILE", help="a results file of each part")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", required=True,
                        help="the results file to write; it is replaced")  # fmt: skip


def run(args: argparse.Namespace, output: Output) -> int:
    """Read all, and write one."""
    from ..results import file
    from ..results.merging import merged
    from ..shard import missing

    paths: list[Path] = args.results
    runs = [file.read(path) for path in paths]
    distinct = len({path.stem for path in paths}) == len(set(paths))
    whole = merged(runs, [path.stem if distinct else str(path) for path in paths])
    file.write(args.output.absolute(), whole)
    rollouts = sum(len(group.rollouts) for group in whole.groups)
    lost = missing([whole.shard] if whole.shard else [])
    if lost:
        output.progress(f"this is not the whole suite: there are no results of part {', '.join(lost)}")
    document = {"file": str(args.output), "groups": len(whole.groups), "rollouts": rollouts, "missing": lost}
    output.result(document, f"{args.output}: {counted(len(whole.groups), 'group')}, {counted(rollouts, 'rollout')}")
    return 0
