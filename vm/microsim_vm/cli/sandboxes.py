"""Commands over whole sandboxes: create, ls, pause, resume, hibernate, wake, logs, rm."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from microsim_vm.cli import common, units
from microsim_vm.cli.common import Run, command
from microsim_vm.cli.output import Output
from microsim_vm.cli.units import duration_text
from microsim_vm.errors import MicrosimError

if TYPE_CHECKING:
    from microsim_vm.cli.common import Commands
    from microsim_vm.sandbox.sandbox import Sandbox
    from microsim_vm.sandbox.store import Mount

TTL_S = 3600.0
SHORTEST = 5  # characters of an id that say enough to remove a sandbox


def add(commands: Commands) -> None:
    """Add the commands."""
    create = command(
        commands, "create", run_create,
        "Make a sandbox and print its id. It lives in a process of its own until it is removed, or idle for its time.",
        founds=True,
    )  # fmt: skip
    create.add_argument("template", nargs="?", metavar="TEMPLATE",
                        help="the template: its name, or the path of its folder (default: base)")  # fmt: skip
    create.add_argument("--from-snapshot", metavar="SNAPSHOT", help="fork this saved snapshot instead of a template")
    create.add_argument("--volume", action="append", type=_volume, default=[], metavar="NAME:PATH[:ro]",
                        help="mount a volume at a path, for writing or read-only (may be repeated)")  # fmt: skip
    create.add_argument("--vcpus", type=units.whole(1, 64), metavar="N", help="processors, in place of the template's")
    create.add_argument(
        "--memory",
        type=units.memory(128, 65536),
        metavar="SIZE",
        help="memory, such as 1G, or a number of MiB; in place of the template's",
    )
    create.add_argument("--seed", type=int, help="decides every simulation generator (default: a random one)")
    add_life(create)
    common.add_templates(create)
    common.add_engine(create)
    listing = command(commands, "ls", run_ls, "List the sandboxes, oldest first.")
    listing.add_argument("-q", "--quiet", action="store_true", help="print the ids only")
    verbs: tuple[tuple[str, Run, str], ...] = (
        ("pause", run_pause, "Stop a sandbox's processors. Its memory stays; requests are refused until resume."),
        ("resume", run_resume, "Let a paused sandbox run on."),
        ("hibernate", run_hibernate, "Write a sandbox to the disk and free its memory. The next request wakes it."),
        ("wake", run_wake, "Let a hibernated sandbox go on where it was."),
        ("logs", run_logs, "Print the tail of a sandbox's console."),
    )
    for name, run, text in verbs:
        common.add_sandbox(command(commands, name, run, text))
    remove = command(commands, "rm", run_rm, "Remove sandboxes. Their volumes and saved snapshots stay.")
    remove.add_argument(
        "ids", nargs="+", metavar="ID", help=f"the sandbox: its id, or at least {SHORTEST} characters of its beginning"
    )


def add_life(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say how long a new sandbox lives, and what is written on it."""
    parser.add_argument("--ttl", type=units.limit, default=TTL_S, metavar="TIME",
                        help="remove it when it was not used for so long: 30m, 12h, never (default: 1h)")  # fmt: skip
    parser.add_argument("--hibernate-after", type=units.limit, metavar="TIME",
                        help="hibernate it when it was not used for so long (default: never)")  # fmt: skip
    parser.add_argument("--persistent", action="store_true", help="never remove it for being idle")
    parser.add_argument("--metadata", action="append", type=common.pair, default=[], metavar="KEY=VALUE",
                        help="words of your own (may be repeated)")  # fmt: skip


def life(args: argparse.Namespace) -> dict[str, Any]:
    """Return what :func:`add_life` was given, as the library's keyword arguments."""
    return {"ttl_seconds": args.ttl, "hibernate_after": args.hibernate_after, "persistent": args.persistent,
            "detached": True}  # fmt: skip


def run_create(args: argparse.Namespace, output: Output) -> int:
    """Make a sandbox."""
    from microsim_vm.sandbox.sandbox import Sandbox

    if args.from_snapshot and (args.template or args.volume or args.vcpus or args.memory):
        raise MicrosimError(
            "a saved snapshot has its template, machine and volumes in it",
            hint="give --from-snapshot without a template, --volume, --vcpus and --memory",
        )
    sandbox = Sandbox.create(
        args.template, from_snapshot=args.from_snapshot, volumes=_mounts(args.volume), vcpus=args.vcpus,
        memory_mib=args.memory, seed=args.seed, metadata=common.pairs(args.metadata), templates=args.templates,
        options=common.options(args), progress=output.progress, **life(args),
    )  # fmt: skip
    output.progress(f"{sandbox.boot_mode} took {sandbox.boot_ms:.0f} ms")
    output.result(described(sandbox), sandbox.id)
    return 0


def described(sandbox: Sandbox) -> dict[str, Any]:
    """Return what is known of a sandbox, for JSON."""
    names = ("id", "template", "status", "metadata", "created_at", "boot_ms", "boot_mode", "from_snapshot",
             "persistent", "detached", "seed", "ttl_seconds", "vcpus", "memory_mib")  # fmt: skip
    volumes = [{"volume": mount.volume, "path": mount.path, "read_only": mount.read_only} for mount in sandbox.volumes]
    return {**{name: getattr(sandbox, name) for name in names}, "volumes": volumes}


def run_ls(args: argparse.Namespace, output: Output) -> int:
    """List."""
    from microsim_vm.sandbox.sandbox import Sandbox

    found = [described(sandbox) for sandbox in Sandbox.list(common.options(args))]
    if args.quiet:
        output.result([each["id"] for each in found], "\n".join(each["id"] for each in found))
        return 0
    now = time.time()
    rows = [
        (each["id"], each["template"], each["status"], duration_text(now - each["created_at"]),
         f"{each['vcpus']} x {each['memory_mib']} MiB", each["from_snapshot"] or "-",
         " ".join(f"{key}={value}" for key, value in each["metadata"].items()))
        for each in found
    ]  # fmt: skip
    output.table(found, ("ID", "TEMPLATE", "STATUS", "AGE", "MACHINE", "FROM", "METADATA"), rows)
    return 0


def run_pause(args: argparse.Namespace, output: Output) -> int:
    """Pause."""
    sandbox = common.sandbox(args)
    sandbox.pause()
    return _shown(sandbox, output)


def run_resume(args: argparse.Namespace, output: Output) -> int:
    """Resume."""
    sandbox = common.sandbox(args)
    sandbox.resume()
    return _shown(sandbox, output)


def run_hibernate(args: argparse.Namespace, output: Output) -> int:
    """Hibernate."""
    sandbox = common.sandbox(args)
    sandbox.hibernate()
    return _shown(sandbox, output)


def run_wake(args: argparse.Namespace, output: Output) -> int:
    """Wake."""
    return _shown(common.sandbox(args).wake(output.progress), output)


def run_logs(args: argparse.Namespace, output: Output) -> int:
    """Print the console."""
    sandbox = common.sandbox(args)
    slept = sandbox.status == "hibernated"
    text = sandbox.logs()
    output.result({"id": sandbox.id, "console": text}, text.rstrip("\n"))
    if slept:
        output.progress(f"{sandbox.id} was hibernated, and was woken for this")
    if not text.strip():
        since = "since it was woken" if slept else "since it was forked" if sandbox.boot_mode == "fork" else "yet"
        output.progress(f"{sandbox.id} has printed nothing on its console {since}")
    return 0


def run_rm(args: argparse.Namespace, output: Output) -> int:
    """Remove; those that can be are removed also where one cannot."""
    from microsim_vm.sandbox.sandbox import Sandbox

    removed = []
    failed = False
    for name in args.ids:
        try:
            sandbox = Sandbox.get(name, common.options(args))
            if len(name) < SHORTEST and name != sandbox.id:
                raise MicrosimError(
                    f"{name!r} is too short to remove a sandbox by", hint=f"give {SHORTEST} characters of its id",
                    details=f"{sandbox.id}: {sandbox.template}, {sandbox.status}",
                )  # fmt: skip
            sandbox.kill()
            removed.append(sandbox.id)
        except MicrosimError as error:
            output.failure(error)
            failed = True
    output.result({"removed": removed}, "\n".join(removed))
    return int(failed)


def _shown(sandbox: Sandbox, output: Output) -> int:
    document = described(sandbox)
    output.result(document, f"{document['id']} is {document['status']}")
    return 0


def _volume(text: str) -> tuple[str, str, bool]:
    name, _, rest = text.partition(":")
    path, _, mode = rest.partition(":")
    if not (name and path.startswith("/") and mode in ("", "ro", "rw")):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:/PATH or NAME:/PATH:ro")
    return name, path, mode == "ro"


def _mounts(volumes: list[tuple[str, str, bool]]) -> dict[str, Mount]:
    from microsim_vm.sandbox.store import Mount

    return {path: Mount(name, path, read_only) for name, path, read_only in volumes}
