"""``microsim completion``: a script that lets the shell complete commands and arguments."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output

if TYPE_CHECKING:
    from microsim_vm.cli.common import Commands

# What the words in help texts stand for: the command that prints those that there are, one a line.
IDS = "microsim ls -q"
FIRST_COLUMN = "awk 'NR > 1 { print $1 }'"
NAMES = {
    "sandboxes": IDS,
    "snapshots": f"microsim snapshot ls | {FIRST_COLUMN}",
    "volumes": f"microsim volume ls | {FIRST_COLUMN}",
    "both": f"{{ {IDS}; microsim snapshot ls | {FIRST_COLUMN}; }}",
}
KINDS = {"ID": "sandboxes", "SNAPSHOT": "snapshots"}
BOTH = ("fork", "export")  # take a sandbox or a snapshot
FUNCTION = {
    "bash": '_microsim_%s() { compgen -W "$(%s 2>/dev/null)" -- "$1"; }',
    "zsh": '_microsim_%s() { compadd -- ${(f)"$(%s 2>/dev/null)"}; }',
}
TEXT = """Print a script that lets your shell complete this command, ids included. For bash: microsim completion bash >
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
    kinds: dict[str, Any] = {"FILE": shtab.FILE, "SRC": shtab.FILE, "DST": shtab.FILE, "DIR": shtab.DIRECTORY}
    for command_words, action in _actions(top):
        named = _named(command_words, action)
        if named is not None:
            action.complete = {args.shell: f"_microsim_{named}"}  # type: ignore[attr-defined]  # what shtab reads
        elif isinstance(action.metavar, str) and action.metavar in kinds:
            action.complete = kinds[action.metavar]  # type: ignore[attr-defined]
    functions = "\n".join(FUNCTION[args.shell] % (kind, lister) for kind, lister in NAMES.items())
    preamble: Any = {args.shell: functions}  # which shtab's own types do not know of
    print(shtab.complete(top, args.shell, preamble=preamble))
    return 0


def _named(command_words: tuple[str, ...], action: argparse.Action) -> str | None:
    """Return which names of :data:`NAMES` an argument takes."""
    if command_words == ("volume", "rm") and action.metavar == "NAME":
        return "volumes"
    if action.metavar == "ID" and command_words[0] in BOTH:
        return "both"
    return KINDS.get(action.metavar) if isinstance(action.metavar, str) else None


def _actions(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.Action]]:
    """Yield each argument with the words of the command that has it."""
    for action in parser._actions:
        yield words, action
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from _actions(child, (*words, name))
