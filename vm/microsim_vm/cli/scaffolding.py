"""``microsim init``: the first files of a project."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output

if TYPE_CHECKING:
    from microsim_vm.cli.common import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(
        commands, "init", run,
        "Write a template, its world, a controller, a test and an ini file. They are small, complete and pass; change "
        "them into yours. Nothing is overwritten.",
        founds=True,
    )  # fmt: skip
    parser.add_argument("folder", nargs="?", default=".", metavar="DIR", help="where to (default: here)")
    parser.add_argument("--name", default="cart", help="the world's name (default: cart)")


def run(args: argparse.Namespace, output: Output) -> int:
    """Write the files."""
    from microsim_vm import scaffold

    folder = Path(args.folder)
    written = [str(path) for path in scaffold.write(folder, args.name)]
    where = "" if folder == Path() else f"cd {folder} && "
    text = "\n".join([*(f"wrote {path}" for path in written), "", f"Next: {where}pytest"])
    output.result({"folder": str(folder.absolute()), "files": written}, text)
    return 0
