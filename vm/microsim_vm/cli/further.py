"""Commands of other packages, which register a module under the entry-point group ``microsim.commands``.

The entry point has the name of the command, and leads to a module with ``add(commands)``, as those beside this file
have. So a package that builds on this one adds commands, and this one knows none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import argparse
    from importlib.metadata import EntryPoint

    from microsim_vm.cli.common import Commands
    from microsim_vm.cli.output import Output

GROUP = "microsim.commands"


def add(commands: Commands) -> None:
    """Add the commands of all installed packages."""
    from importlib.metadata import entry_points

    add_each(commands, entry_points(group=GROUP))


def add_each(commands: Commands, found: Iterable[EntryPoint]) -> None:
    """Add commands; one that is broken is there all the same, and says why when it is run."""
    # A package that is installed twice, such as editable over a wheel, is found twice.
    for point in sorted({(point.name, point.value): point for point in found}.values(), key=lambda point: point.name):
        if point.name in commands.choices:
            print(f"microsim: {_origin(point)} brings a second command {point.name}; it is left out", file=sys.stderr)
            continue
        try:
            point.load().add(commands)
        except Exception as error:
            if point.name not in commands.choices:
                _add_broken(commands, point, error)


def _add_broken(commands: Commands, point: EntryPoint, error: Exception) -> None:
    """Add a command that fails with what kept it from being loaded, whatever its arguments are."""

    def run(args: argparse.Namespace, output: Output) -> NoReturn:
        from microsim_vm.errors import MissingToolError

        raise MissingToolError(
            f"the command {point.name} cannot be loaded from {point.value}: {type(error).__name__}: {error}",
            cause=f"the installation of {_origin(point)} is incomplete, or of another version",
            hint=f"install it again: pip install --force-reinstall {_origin(point)}",
        ) from error

    text = "not usable: its package cannot be loaded"
    # Words that begin with a dash are no options then.
    broken = commands.add_parser(point.name, help=text, description=text, prefix_chars="+", add_help=False)
    broken.add_argument("words", nargs="*", help="ignored")
    broken.set_defaults(run=run)


def _origin(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value.partition(":")[0].partition(".")[0]
