"""The entry point: arguments in, exit status out.

What takes long to import is imported inside, where Ctrl-C is seen to already.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from types import FrameType

FAILED, INTERRUPTED = 1, 130
EPILOG = """\
Exit status: 0 on success, 1 on an error, 2 for wrong arguments, 130 after Ctrl-C; of exec and shell, that of the
command in the sandbox (124 after a time-out, 126 where it cannot be executed, 127 where it is not found)."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; each sets ``run``, which takes the arguments and returns the exit status."""
    import argparse

    from microsim_vm.cli import (
        archives,
        commands,
        completion,
        copying,
        doctor,
        further,
        images,
        net,
        sandboxes,
        scaffolding,
        snapshots,
        upkeep,
        volumes,
    )  # fmt: skip
    from microsim_vm.cli.common import Parser

    top = Parser(
        prog="microsim", description="Sandboxes in microVMs, forked from a warmed simulator.", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    top.add_argument("--version", action="store_true", help="print the version, and exit")
    commands_of = top.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for group in (
        doctor, scaffolding, images, sandboxes, commands, copying, snapshots, volumes, net, archives, upkeep,
        completion, further,
    ):  # fmt: skip
        group.add(commands_of)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    args = _understood(sys.argv[1:] if argv is None else argv)
    if args.version:
        from importlib.metadata import version

        print(f"microsim {version('pytest-microsim')}")
        return 0
    # As an exception these end the command so that it leaves nothing behind.
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        return _run(args)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _understood(argv: Sequence[str]) -> argparse.Namespace:
    """Read the arguments; there is nothing to leave behind yet, so Ctrl-C ends the process on the spot."""
    before = signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    try:
        from microsim_vm.cli import snapshots

        top = parser()
        args = top.parse_args(snapshots.in_full(argv))
        if args.command is None and not args.version:
            top.error("a command is needed; see microsim --help")
        return args
    finally:
        signal.signal(signal.SIGINT, before)


def _run(args: argparse.Namespace) -> int:
    import contextlib

    from microsim_vm.cli.output import Output
    from microsim_vm.errors import MicrosimError

    output = Output(json=getattr(args, "json", False))
    try:
        status: int = args.run(args, output)
        sys.stdout.flush()
    except MicrosimError as error:
        output.failure(error)
        return FAILED
    except KeyboardInterrupt:
        output.error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python would complain once more when it closes stdout.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        output.error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return FAILED
    return status


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
