"""``microsim cp``: files and folders between this machine and a sandbox."""

from __future__ import annotations

import argparse
import dataclasses
import os
import posixpath
import re
import sys
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from microsim_vm.cli import common, units
from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output
from microsim_vm.cli.units import size_text
from microsim_vm.errors import TransferError

if TYPE_CHECKING:
    from microsim_vm.cli.common import Commands
    from microsim_vm.filesystem import Filesystem
    from microsim_vm.transfers import Transfer

PIECE = 8 << 20
MAX_BYTES = 1 << 30
_REMOTE = re.compile(r"([A-Za-z0-9][\w-]*):(.*)", re.DOTALL)


class Place(NamedTuple):
    """A path, here or in a sandbox.

    Attributes:
        sandbox: The sandbox's id; None for this machine.
        path: The path; "-" is stdin or stdout.
    """

    sandbox: str | None
    path: str


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(
        commands, "cp", run,
        "Copy a file or a folder into a sandbox, or out of it. One of the two is ID:PATH, the other a path here, or - "
        "for stdin or stdout. A target that is a folder gets the source put into it. No link of the sandbox is "
        "followed.",
    )  # fmt: skip
    parser.add_argument("source", type=place, metavar="SRC", help="what is copied")
    parser.add_argument("target", type=place, metavar="DST", help="where to")
    parser.add_argument("--max-size", type=units.size, default=MAX_BYTES, metavar="SIZE",
                        help="refuse more than so much (default: 1G)")  # fmt: skip


def place(text: str) -> Place:
    """Read a path here (``./a:b`` if it has a colon) or ``ID:PATH``.

    Raises:
        argparse.ArgumentTypeError: It is neither, or the path in the sandbox is relative.
    """
    match = _REMOTE.fullmatch(text)
    if match is not None and not match.group(2).startswith("/"):
        raise argparse.ArgumentTypeError(
            f"{text!r} has a relative path: a path in a sandbox begins with /, such as "
            f"{match.group(1)}:/workspace/{match.group(2)} (and a path here that has a colon, with ./)"
        )
    if match is not None:
        return Place(match.group(1), match.group(2))
    if not text:
        raise argparse.ArgumentTypeError("an empty path")
    return Place(None, text)


def run(args: argparse.Namespace, output: Output) -> int:
    """Copy."""
    source, target = args.source, args.target
    if (source.sandbox is None) == (target.sandbox is None):
        output.error("one of SRC and DST has to be ID:PATH, and the other a path here")
        return 2
    args.id = source.sandbox or target.sandbox
    files = common.sandbox(args).filesystem
    if source.path == "-" and source.sandbox is None:
        done = _from_stdin(files, target.path, args.max_size)
    elif target.path == "-" and target.sandbox is None:
        _to_stdout(files, source.path, args.max_size)
        return 0
    elif target.sandbox is not None:
        done = files.upload(source.path, _inside_guest(files, target.path, source.path), max_bytes=args.max_size)
    else:
        done = files.download(source.path, _inside_host(target.path, source.path), max_bytes=args.max_size)
    for path, reason in done.skipped:
        output.progress(f"skipped {path}: {reason}")
    files_word = "file" if done.files == 1 else "files"
    output.result(dataclasses.asdict(done), f"copied {done.files} {files_word}, {size_text(done.size)}")
    return 0


def _inside_guest(files: Filesystem, target: str, source: str) -> str:
    """Return where to in the guest: into a folder that is there, or exactly there."""
    there = files.exists(target) and files.stat(target).kind == "dir"
    return posixpath.join(target, _name(source)) if there or target.endswith("/") else target


def _inside_host(target: str, source: str) -> str:
    there = os.path.isdir(target)
    return os.path.join(target, _name(source)) if there or target.endswith("/") else target


def _name(source: str) -> str:
    return posixpath.basename(posixpath.normpath(source)).lstrip("/") or "root"


def _from_stdin(files: Filesystem, target: str, max_bytes: int) -> Transfer:
    """Write a file of what comes from stdin; it is whole or not there."""
    with tempfile.NamedTemporaryFile(prefix="microsim-") as buffer:
        size = 0
        while data := sys.stdin.buffer.read(PIECE):
            size += len(data)
            if size > max_bytes:
                raise TransferError(f"stdin has more than {max_bytes} bytes", hint="allow more with --max-size")
            buffer.write(data)
        buffer.flush()
        os.fchmod(buffer.fileno(), 0o644)
        return files.upload(buffer.name, target, max_bytes=max_bytes)


def _to_stdout(files: Filesystem, source: str, max_bytes: int) -> None:
    for piece in files.pieces(source, max_bytes=max_bytes, follow=False):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
