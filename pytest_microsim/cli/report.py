"""``microsim report``: the results of a run as one HTML file, and two runs compared."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output

if TYPE_CHECKING:
    from microsim_vm.cli.common import Commands

TEXT = """Make a report of results files, which pytest --microsim-results writes. One file is rendered as HTML; two are
compared, the first being what the second is measured against."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "report", run, " ".join(TEXT.split()))
    parser.add_argument("results", nargs="+", type=Path, metavar="FILE", help="a results file, or two to compare")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE",
                        help="the HTML file to write; it is replaced")  # fmt: skip


def run(args: argparse.Namespace, output: Output) -> int:
    """Render, or compare."""
    raise NotImplementedError
