"""``microsim snapshot`` and ``microsim fork``: save a moment of a sandbox, and start others from it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from microsim_vm.cli import common, sandboxes, units
from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output
from microsim_vm.cli.units import duration_text, size_text
from microsim_vm.errors import MicrosimError, SandboxNotFoundError, SnapshotError

if TYPE_CHECKING:
    from microsim_vm.cache import Cache
    from microsim_vm.cli.common import Commands
    from microsim_vm.sandbox.sandbox import ForkResult, Sandbox
    from microsim_vm.sandbox.saved import SavedSnapshot

UNDO_S = 30.0
VERBS = ("create", "ls", "rm")


def add(commands: Commands) -> None:
    """Add the commands."""
    group = commands.add_parser(
        "snapshot", help="save a sandbox as it is now; list and remove what is saved", allow_abbrev=False,
        description="Save a sandbox as it is now, and list and remove what is saved. "
        "'microsim snapshot ID' is short for 'microsim snapshot create ID'.",
    )  # fmt: skip
    verbs = group.add_subparsers(title="commands", required=True, metavar="COMMAND")
    create = command(
        verbs, "create", run_create,
        "Save a sandbox as it is now: memory, files, processes. Print the snapshot's id. The sandbox runs on.",
    )  # fmt: skip
    common.add_sandbox(create)
    create.add_argument("--name", type=common.snapshot_id, metavar="NAME",
                        help="the snapshot's id (default: one that sorts by time)")  # fmt: skip
    create.add_argument("--metadata", action="append", type=common.pair, default=[], metavar="KEY=VALUE",
                        help="words of your own (may be repeated)")  # fmt: skip
    command(verbs, "ls", run_ls, "List the saved snapshots, oldest first.")
    remove = command(verbs, "rm", run_rm, "Remove saved snapshots. Sandboxes forked from them keep what they use.")
    remove.add_argument("ids", nargs="+", metavar="SNAPSHOT", help="the snapshot's id")
    fork = command(
        commands, "fork", run_fork,
        "Start sandboxes from a sandbox as it is now, or from a saved snapshot. Print their ids.",
    )  # fmt: skip
    fork.add_argument("id", metavar="ID", help="the sandbox (its id, or the beginning of it) or the saved snapshot")
    fork.add_argument("-n", type=units.whole(1, 1000), default=1, metavar="N", help="how many (default: 1)")
    fork.add_argument("--seed", type=int, help="decides every simulation generator of the child (only with one child)")
    sandboxes.add_life(fork)


def in_full(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with ``snapshot ID`` written out as ``snapshot create ID``."""
    words = list(arguments)
    if words[:1] == ["snapshot"] and len(words) > 1 and words[1] not in (*VERBS, "-h", "--help"):
        words.insert(1, "create")
    return words


def run_create(args: argparse.Namespace, output: Output) -> int:
    """Save a sandbox."""
    snapshot = taken(common.cache(args), common.sandbox(args), args.name, common.pairs(args.metadata), output)
    output.result(described(snapshot), snapshot.id)
    return 0


def taken(cache: Cache, sandbox: Sandbox, name: str | None, metadata: dict[str, str], output: Output) -> SavedSnapshot:
    """Save a sandbox as it is now; nothing is left of it where that is interrupted.

    Raises:
        MicrosimError: What :meth:`microsim_vm.Sandbox.snapshot` raises.
    """
    from microsim_vm.sandbox import saved

    name = name or saved.new_id()
    sandbox.wake(output.progress)  # or else the wait below could be for something that was never begun
    began = time.time()
    try:
        return sandbox.snapshot(name, metadata)
    except (KeyboardInterrupt, SystemExit):
        # Whoever has the sandbox writes it to its end, with nobody left to know of it.
        output.progress(f"waiting for the snapshot's end, to remove it; Ctrl-C leaves it as {name}")
        deadline = time.monotonic() + UNDO_S
        while not _removed(cache, sandbox.id, name, began) and time.monotonic() < deadline:
            time.sleep(0.05)
        raise


def _removed(cache: Cache, sandbox: str, name: str, began: float) -> bool:
    """Remove a snapshot that this sandbox was asked for; False where it is not there yet."""
    from microsim_vm.sandbox import saved

    ours = [each for each in saved.listed(cache) if each.id == name]
    if not ours:
        return False
    if ours[0].sandbox == sandbox and ours[0].created_at >= began:  # not one that had the name before
        time.sleep(0.5)  # the sandbox makes its fork point of it, once it is there
        saved.delete(cache, name)
    return True


def described(snapshot: SavedSnapshot) -> dict[str, Any]:
    """Return what is known of a saved snapshot, for JSON."""
    return {
        "id": snapshot.id,
        "template": snapshot.origin.template,
        "sandbox": snapshot.sandbox,
        "created_at": snapshot.created_at,
        "metadata": snapshot.metadata,
        "engine": snapshot.origin.engine,
        "vcpus": snapshot.origin.machine.vcpus,
        "memory_mib": snapshot.origin.machine.memory_mib,
    }


def run_ls(args: argparse.Namespace, output: Output) -> int:
    """List."""
    from microsim_vm.sandbox import saved

    cache = common.cache(args)
    now = time.time()
    documents, rows = [], []
    for snapshot in saved.listed(cache):
        document = described(snapshot)
        folder = saved.folder_of(cache, snapshot.id)
        on_disk = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
        documents.append({**document, "bytes_on_disk": on_disk})
        rows.append(
            (snapshot.id, document["template"], snapshot.sandbox, duration_text(now - snapshot.created_at),
             size_text(on_disk), " ".join(f"{key}={value}" for key, value in snapshot.metadata.items()))
        )  # fmt: skip
    output.table(documents, ("ID", "TEMPLATE", "SANDBOX", "AGE", "ON DISK", "METADATA"), rows)
    return 0


def run_rm(args: argparse.Namespace, output: Output) -> int:
    """Remove; those that can be are removed also where one cannot."""
    from microsim_vm.sandbox import saved

    removed = []
    for name in args.ids:
        try:
            saved.delete(common.cache(args), name)
            removed.append(name)
        except SnapshotError as error:
            output.failure(error)
    output.result({"removed": removed}, "\n".join(removed))
    return int(len(removed) < len(args.ids))


def run_fork(args: argparse.Namespace, output: Output) -> int:
    """Fork; the children that start stay also where one does not."""
    if args.seed is not None and args.n != 1:
        raise MicrosimError("--seed is for one child", hint="leave out --seed or -n")
    results = _forked(args, output)
    started = [sandboxes.described(each.sandbox) for each in results if each.sandbox is not None]
    errors = [each for each in results if each.error is not None]
    for each in errors:
        assert each.error is not None
        output.failure(each.error, f"child {each.index}: " if args.n > 1 else "")
    output.result(started, "\n".join(each["id"] for each in started))
    return int(bool(errors))


def _forked(args: argparse.Namespace, output: Output) -> list[ForkResult]:
    from microsim_vm.sandbox import saved
    from microsim_vm.sandbox.sandbox import Sandbox

    settings = {**sandboxes.life(args), "metadata": common.pairs(args.metadata) or None}
    settings |= {"seed": args.seed, "progress": output.progress}
    if args.id in {snapshot.id for snapshot in saved.listed(common.cache(args))}:
        options = common.options(args)
        return _several(args.n, lambda: Sandbox.create(from_snapshot=args.id, options=options, **settings))
    try:
        parent = common.sandbox(args)
    except SandboxNotFoundError as error:
        raise SandboxNotFoundError(
            f"there is neither a sandbox nor a saved snapshot {args.id!r}",
            hint="see microsim ls and microsim snapshot ls", details=error.details,
        ) from None  # fmt: skip
    return _several(args.n, lambda: parent.fork(**settings))


def _several(count: int, start: Callable[[], Sandbox]) -> list[ForkResult]:
    """Start children, several at a time; if that is interrupted, none of them is left."""
    import os
    from concurrent.futures import ThreadPoolExecutor

    from microsim_vm.sandbox.sandbox import ForkResult

    made: list[Sandbox] = []

    def child(index: int) -> ForkResult:
        try:
            sandbox = start()
        except MicrosimError as error:
            return ForkResult(index, None, error)
        made.append(sandbox)
        return ForkResult(index, sandbox, None)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        futures = [pool.submit(child, index) for index in range(count)]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            for sandbox in made:
                sandbox.kill()
            raise
