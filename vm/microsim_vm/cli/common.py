"""Arguments that several commands share, and how they become the library's objects."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from microsim_vm.cli.output import Output

if TYPE_CHECKING:
    from microsim_vm.cache import Cache
    from microsim_vm.options import Options
    from microsim_vm.sandbox.sandbox import Sandbox
    from microsim_vm.templates import Template

    Commands = argparse._SubParsersAction["Parser"]

Run = Callable[[argparse.Namespace, Output], int]
# Those of engines/select.py and engines/base.py, which take too long to import for --help.
ENGINES = ("auto", "qemu", "gvisor")
ACCELERATORS = ("auto", "kvm", "tcg")
ISOLATIONS = ("hardware", "sandbox", "emulated")


class Parser(argparse.ArgumentParser):
    """A parser that leaves alone what is typed after the first word of another command.

    Attributes:
        passes_on: The argument that takes the other command's words, as they are; None where there is none.
    """

    passes_on: str | None = None

    def parse_known_args(  # type: ignore[override]  # the overloads of typeshed
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Read options up to the first word of the command that is passed on."""
        if self.passes_on is None or args is None:
            return super().parse_known_args(args, namespace)
        ours, words = self._apart(args)
        # One word stands for all: argparse would look for options, and a "--", among them.
        found, rest = super().parse_known_args([*ours, *(["command"] if words else [])], namespace)
        setattr(found, self.passes_on, words)
        return found, rest

    def _apart(self, args: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return options and then the ID, and the words of the command."""
        options: list[str] = []
        place: list[str] = []
        at = 0
        while at < len(args):
            word = args[at]
            if word == "--" and place:
                return [*options, *place], list(args[at + 1 :])
            if word.startswith("-") and word not in ("-", "--"):
                action = self._option_string_actions.get(word)
                taken = 2 if action is not None and action.nargs is None else 1
                options += args[at : at + taken]
                at += taken
                continue
            if place:
                return [*options, *place], list(args[at:])
            place += [word] if word != "--" else []
            at += 1
        return [*options, *place], []


def command(commands: Commands, name: str, run: Run, text: str, *, json: bool = True, founds: bool = False) -> Parser:
    """Add a command.

    Args:
        commands: Where to.
        name: What it is called.
        run: What runs it.
        text: Its description: the first sentence, up to a full stop or a semicolon, is what ``--help`` of all shows.
        json: It has a result that can be a JSON document.
        founds: It may start a new cache; for any other a cache folder that does not exist is a typing error.
    """
    first = text.partition(". ")[0].partition(";")[0].rstrip(".")
    parser = commands.add_parser(name, help=first[:1].lower() + first[1:], description=text, allow_abbrev=False)
    parser.set_defaults(run=run)
    if json:
        parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    parser.add_argument(
        "--cache-dir", type=_absolute if founds else _folder, metavar="DIR",
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


def snapshot_id(text: str) -> str:
    """Check the id of a new saved snapshot.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    from microsim_vm.sandbox.saved import ID

    if not ID.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no snapshot's id: 1 to 100 of A-Z, a-z, 0-9, ., _ and -, a letter or digit first"
        )
    return text


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


def _folder(text: str) -> Path:
    path = _absolute(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}")
    return path
