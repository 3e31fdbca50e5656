"""``microsim export`` and ``microsim import``: saved snapshots as files, from one machine to another."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from microsim_vm.cli import common, snapshots
from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output
from microsim_vm.cli.units import size_text
from microsim_vm.errors import MicrosimError, SandboxNotFoundError, SnapshotError

if TYPE_CHECKING:
    from microsim_vm.cache import Cache
    from microsim_vm.cli.common import Commands


def add(commands: Commands) -> None:
    """Add the commands."""
    export = command(
        commands, "export", run_export,
        "Write a saved snapshot, or a sandbox as it is now, into one file. It has all that is needed to run it on a "
        "machine with the same processor and QEMU.",
    )  # fmt: skip
    export.add_argument("id", metavar="ID", help="the saved snapshot, or the sandbox (its id, or the beginning of it)")
    export.add_argument("file", type=Path, metavar="FILE", help="the file, such as robot.microsim; it is replaced")
    restore = command(
        commands, "import", run_import,
        "Make a saved snapshot of an exported one. Everything is verified before any of it counts.",
        founds=True,
    )  # fmt: skip
    restore.add_argument("file", type=Path, metavar="FILE", help="the file")
    restore.add_argument("--name", type=common.snapshot_id, metavar="NAME",
                         help="the snapshot's id here (default: the one that it had)")  # fmt: skip


def run_export(args: argparse.Namespace, output: Output) -> int:
    """Export; a sandbox is saved for it, and what was saved removed afterwards."""
    from microsim_vm import archive, tools
    from microsim_vm.sandbox import saved

    _check(args.file)
    cache = common.cache(args)
    kept = args.id in {snapshot.id for snapshot in saved.listed(cache)}
    snapshot = args.id if kept else _saved(args, output)
    try:
        with tools.ticking(f"exporting {args.id}", output.progress):
            archive.export(cache, snapshot, args.file)
    except OSError as error:
        if error.filename is not None and not str(error.filename).endswith(".partial"):
            raise
        # Whoever asked knows nothing of the file that becomes theirs once it is whole.
        raise MicrosimError(f"{args.file} cannot be written: {error.strerror}") from None
    finally:
        if not kept:
            _forget(cache, snapshot)
    size = args.file.stat().st_size
    output.result(
        {"file": str(args.file), "bytes": size, "snapshot": snapshot}, f"wrote {args.file}, {size_text(size)}"
    )
    return 0


def _check(file: Path) -> None:
    """Refuse a target that cannot be written, before anything is done for it.

    Raises:
        MicrosimError: It is a folder or a device, or there is no folder for it.
    """
    if file.is_dir():
        raise MicrosimError(f"{file} is a folder", hint="name a file in it, such as robot.microsim")
    if file.exists() and not file.is_file():
        raise MicrosimError(f"{file} is no regular file", hint="name another one: it would be replaced")
    if not file.parent.is_dir():
        raise MicrosimError(f"{file} cannot be written: there is no folder {file.parent}")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise MicrosimError(f"{file} cannot be written: the folder {file.parent} may not be written to")


def _saved(args: argparse.Namespace, output: Output) -> str:
    try:
        return snapshots.taken(common.cache(args), common.sandbox(args), None, {}, output).id
    except SandboxNotFoundError as error:
        raise SandboxNotFoundError(
            f"there is neither a saved snapshot nor a sandbox {args.id!r}",
            hint="see microsim snapshot ls and microsim ls", details=error.details,
        ) from None  # fmt: skip


def _forget(cache: Cache, snapshot: str) -> None:
    import contextlib

    from microsim_vm.sandbox import saved

    with contextlib.suppress(SnapshotError):
        saved.delete(cache, snapshot)


def run_import(args: argparse.Namespace, output: Output) -> int:
    """Import."""
    from microsim_vm import archive, tools

    with tools.ticking(f"importing {args.file}", output.progress):
        snapshot = archive.restore(common.cache(args), args.file, name=args.name, progress=output.progress)
    output.result(snapshots.described(snapshot), snapshot.id)
    return 0
