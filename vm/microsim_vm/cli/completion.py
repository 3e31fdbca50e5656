"""``microsim completion``: a script that lets the shell complete commands and arguments."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output

if TYPE_CHECKING:
    from microsim_vm.cli.common import Commands

TEXT = """Print a script that lets your shell complete this command. For bash: microsim completion bash >
~/.local/share/bash-completion/completions/microsim. For zsh: microsim completion zsh > _microsim, in a folder of
$fpath."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "completion", run, " ".join(TEXT.split()), json=False)
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(args: argparse.Namespace, output: Output) -> int:
    """Print the script."""
    import shtab

    from microsim_vm.cli.main import parser

    top = parser()
    for action in _actions(top):
        kind = {"FILE": shtab.FILE, "SRC": shtab.FILE, "DST": shtab.FILE, "DIR": shtab.DIRECTORY}
        if isinstance(action.metavar, str) and action.metavar in kind:
            action.complete = kind[action.metavar]  # type: ignore[attr-defined]  # what shtab reads
    print(shtab.complete(top, args.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _actions(child)
