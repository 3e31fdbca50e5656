"""Arguments that several commands share, and how they become the library's objects."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from microsim_vm.cli.output import Output

if TYPE_CHECKING:
    from microsim_vm.cache import Cache
    from microsim_vm.options import Options
    from microsim_vm.sandbox.sandbox import Sandbox
    from microsim_vm.templates import Template

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

Run = Callable[[argparse.Namespace, Output], int]
# Those of engines/select.py and engines/base.py, which take too long to import for --help.
ENGINES = ("auto", "qemu")
ACCELERATORS = ("auto", "kvm", "tcg")
ISOLATIONS = ("hardware", "sandbox", "emulated")


def command(commands: Commands, name: str, run: Run, text: str, *, json: bool = True) -> argparse.ArgumentParser:
    """Add a command.

    Args:
        commands: Where to.
        name: What it is called.
        run: What runs it.
        text: Its description: the first sentence, up to a full stop or a semicolon, is what ``--help`` of all shows.
        json: It has a result that can be a JSON document.
    """
    first = text.partition(". ")[0].partition(";")[0].rstrip(".")
    parser = commands.add_parser(name, help=first[:1].lower() + first[1:], description=text, allow_abbrev=False)
    parser.set_defaults(run=run)
    if json:
        parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    parser.add_argument(
        "--cache-dir", type=_absolute, metavar="DIR",
        help="where images, snapshots and sandboxes are kept (default: $MICROSIM_CACHE_DIR, or the user's cache)",
    )  # fmt: skip
    return parser


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose engine and isolation."""
    parser.add_argument("--engine", choices=ENGINES, default="auto", help="the program that runs guests")
    parser.add_argument(
        "--accel", choices=ACCELERATORS, default="auto",
        help="how QEMU runs guest code (default: auto, which is KVM where it really works)",
    )  # fmt: skip
    parser.add_argument(
        "--isolation", choices=ISOLATIONS, default="emulated",
        help="the weakest boundary you accept around a guest (default: emulated, the weakest of the three)",
    )  # fmt: skip


def add_templates(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says where templates are."""
    parser.add_argument(
        "--templates", action="append", type=_absolute, default=[], metavar="DIR",
        help="a directory of templates, searched before ./templates and the shipped ones (may be repeated)",
    )  # fmt: skip
    parser.add_argument(
        "--locked", action="store_true", help="refuse a template whose inputs no longer match its template.lock"
    )


def add_sandbox(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a sandbox."""
    parser.add_argument("id", metavar="ID", help="the sandbox: its id, or the beginning of it")


def options(args: argparse.Namespace) -> Options:
    """Return the library's options; a command that lacks some of the arguments has their defaults."""
    from microsim_vm.options import Options

    given = {name: value for name in ("engine", "accel", "isolation", "locked", "cache_dir")
             if (value := getattr(args, name, None)) is not None}  # fmt: skip
    return Options(**given)


def cache(args: argparse.Namespace) -> Cache:
    """Return the cache."""
    from microsim_vm.cache import Cache

    return Cache(args.cache_dir)


def template(args: argparse.Namespace) -> Template:
    """Load the template that the arguments name.

    Raises:
        TemplateError: There is none, or it cannot be used as written.
    """
    from microsim_vm.templates import find_template, search_path

    return find_template(args.template, search_path(args.templates, Path.cwd()))


def sandbox(args: argparse.Namespace) -> Sandbox:
    """Return the sandbox that the arguments name.

    Raises:
        SandboxNotFoundError: There is none, or more than one.
    """
    from microsim_vm.sandbox.sandbox import Sandbox

    return Sandbox.get(args.id, options(args))


def pairs(texts: list[str]) -> dict[str, str]:
    """Return ``KEY=VALUE`` texts, which :func:`pair` has checked, as a mapping."""
    return dict(text.split("=", 1) for text in texts)


def pair(text: str) -> str:
    """Check a ``KEY=VALUE`` text.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not text.partition("=")[0] or "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return text


def _absolute(text: str) -> Path:
    return Path(text).expanduser().absolute()
