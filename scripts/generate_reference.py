#!/usr/bin/env python3
"""Write docs/reference.md from the code: options, markers, fixtures, classes, template keys, errors.

Usage: python scripts/generate_reference.py [--check]
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from microsim_vm import episode, errors, filesystem, guest, machine, outputs, terminal, transfers, volumes, world
from microsim_vm import options as vm_options
from microsim_vm.cli import main as command
from microsim_vm.islands import island, refusals
from microsim_vm.sandbox import facts, sandbox, saved, store
from microsim_vm.templates import spec

from pytest_microsim import episode as user_episode
from pytest_microsim import errors as plugin_errors
from pytest_microsim import filming, fixtures, markers, options, rollout
from pytest_microsim.interleavings import marker as interleavings
from pytest_microsim.scenarios.jsonschema import schema as scenario_schema
from pytest_microsim.trajectories import playing, recordings

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference.md"
HEAD = """\
# Reference

Generated from the code by `scripts/generate_reference.py`; do not edit. The guides are listed in the
[index](index.md).

- [Command line](#command-line)
- [Ini settings](#ini-settings)
- [Markers](#markers)
- [Fixtures](#fixtures)
- [Rollouts and episodes](#rollouts-and-episodes)
- [Warm worlds and machines](#warm-worlds-and-machines)
- [Sandboxes](#sandboxes)
- [The microsim command](#the-microsim-command)
- [Template](#template)
- [Scenario files](#scenario-files)
- [Errors](#errors)
"""
INI_TYPES = {"string": "text", "bool": "true or false"}
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")
# What the plugin's users meet, in the order in which they meet it.
USER_CLASSES = (rollout.Rollout, user_episode.Episode, episode.Column, filming.Video, recordings.Recording,
                playing.Playing)  # fmt: skip
VM_CLASSES = (world.WarmWorld, machine.Machine, guest.Guest, outputs.ExecResult, outputs.PartialOutput,
              terminal.Terminal, filesystem.Filesystem, filesystem.Stat, filesystem.Entry, transfers.Transfer,
              episode.EpisodeRecord, island.Island, refusals.Refusals)  # fmt: skip
SANDBOX_CLASSES = (sandbox.Sandbox, facts.Facts, sandbox.ForkResult, saved.SavedSnapshot, volumes.Volume, store.Mount,
                   vm_options.Options)  # fmt: skip
TEMPLATE_PARTS = {
    "base": spec.Base,
    "python": spec.Python,
    "files": spec.FileEntry,
    "kernel": spec.Kernel,
    "machine": spec.MachineShape,
    "world": spec.WorldSpec,
    "processes": spec.Process,
    "machines": spec.OtherMachine,
    "controller": spec.ControllerLimits,
}
MARKERS = (*markers.REGISTERED, interleavings.REGISTERED)
# Keys of the top level that are neither explained by their type nor by a part of their own.
TOP_LEVEL = {
    "name": "The template's name; the folder has the same.",
    "description": "One line for readers; nothing depends on it.",
    "extends": "The template that this one builds on.",
    "env": "Environment of every process in the guest.",
    "warmup_timeout_s": "Time for the world to be loaded, in seconds.",
    "network": "What a rollout reaches: `none` is a loopback; `island` adds its own machines and their gateway; "
    "`egress` adds what the key `egress` lists. See [networks](islands.md).",
    "deterministic": "Whether [every bit](determinism.md) of its machines follows from the snapshot and the seed; they "
    "have one processor, and no network.",
    "wall_clock": "`now`, or a date and time in quotes: where [the wall clock](randomness.md#the-wall-clock) of a "
    "rollout starts. Default: `now` under `network: egress`, else 2025-01-02T00:00:00Z.",
    "egress": "What may be reached over TCP under `network: egress`.",
    "score": "Python file with `metrics(trajectory)`: [scores episodes](controllers.md#how-an-episode-is-scored) here.",
    "publish": "TCP ports of the guest that appear on the host's loopback, at ports that the host chooses.",
}


class OptionRecorder:
    """Stands in for pytest's parser, and keeps what is registered."""

    def __init__(self) -> None:
        self.flags: list[tuple[str, dict[str, Any]]] = []
        self.ini: list[tuple[str, str, str]] = []

    def getgroup(self, name: str, description: str = "") -> OptionRecorder:
        """Return the group that flags are added to."""
        return self

    def addoption(self, flag: str, **attributes: Any) -> None:
        """Keep a flag."""
        self.flags.append((flag, attributes))

    def addini(self, name: str, help: str, type: str = "string", default: Any = None) -> None:
        """Keep an ini setting."""
        self.ini.append((name, help, type))


def registered() -> OptionRecorder:
    """Return all flags and ini settings of the plugin."""
    recorder = OptionRecorder()
    options.add_options(recorder)  # type: ignore[arg-type]
    return recorder


def reference() -> str:
    """Return the whole page."""
    recorder = registered()
    parts = [
        HEAD,
        "## Command line\n",
        table(("flag", "meaning"), ((_flag(*flag), flag[1]["help"]) for flag in recorder.flags)),
        "## Ini settings\n",
        table(
            ("name", "type", "meaning"),
            ((f"`{name}`", INI_TYPES.get(kind, kind), text) for name, text, kind in recorder.ini),
        ),
        "## Markers\n",
        *(f"`@pytest.mark.{signature}`\n\n{text.strip()}\n" for signature, _, text in map(_marker, MARKERS)),
        "## Fixtures\n",
        *(f"### {name}\n\n{prose(_fixture_doc(name))}\n" for name in ("rollout", "warm_world")),
        "## Rollouts and episodes\n",
        *map(class_section, USER_CLASSES),
        "## Warm worlds and machines\n",
        *map(class_section, VM_CLASSES),
        "## Sandboxes\n",
        "The guide is [sandboxes](sandboxes.md). A `Sandbox` has all that a `Guest` has, and all `Facts`.\n",
        *map(class_section, SANDBOX_CLASSES),
        "## The microsim command\n",
        "The guide is [the command line](cli.md). Every command has `--help`.\n",
        *(command_section(name, parser) for name, parser in commands(command.parser(), "microsim")),
        "## Template\n",
        f"{prose(inspect.getdoc(spec.Document) or '')}\n",
        struct_table(spec.Document),
        *(f"### {key}\n\n{struct_section(struct)}" for key, struct in TEMPLATE_PARTS.items()),
        "## Scenario files\n",
        "The guide is [scenario files](scenarios.md).\n",
        *scenario_sections(),
        "## Errors\n",
        f"{prose(inspect.getdoc(errors.MicrosimError) or '')}\n",
        table(("error", "is a", "meaning"), error_rows()),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def table(header: tuple[str, ...], rows: Any) -> str:
    """Return a Markdown table."""
    lines = [header, ("---",) * len(header), *rows]
    cells = (" | ".join(str(cell).replace("\n", " ").replace("|", "\\|") for cell in line) for line in lines)
    return "".join(f"| {line} |\n" for line in cells)


def prose(text: str) -> str:
    """Turn a docstring's markup into Markdown; its sections become lists."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text).replace("``", "`")
    blocks = []
    for block in re.split(r"\n\n(?=(?:" + "|".join(SECTIONS) + r"):\n)", text):
        title, colon, body = block.partition(":\n")
        if not colon or title not in SECTIONS:
            blocks.append(block)
            continue
        body = inspect.cleandoc("\n" + body)
        if title in ("Returns", "Yields"):
            blocks.append(f"{title}: {' '.join(body.split())}")
        else:
            items = "\n".join(f"- `{name}`: {meaning}" for name, meaning in items_of(body))
            blocks.append(f"{title}:\n\n{items}")
    return "\n\n".join(blocks)


def items_of(body: str) -> Iterator[tuple[str, str]]:
    """Yield name and meaning of each entry of an Args, Attributes or Raises section."""
    for entry in re.split(r"\n(?=\S)", body.strip()):
        name, _, meaning = entry.partition(":")
        yield name.strip(), " ".join(meaning.split())


def class_section(kind: type) -> str:
    """Describe a class: its docstring, properties and methods."""
    parts = [f"### {kind.__name__}\n", prose(inspect.getdoc(kind) or ""), ""]
    documented = inspect.getdoc(kind) or ""
    if dataclasses.is_dataclass(kind) and "Attributes:" not in documented:
        parts += ["Attributes: " + ", ".join(f"`{field.name}`" for field in dataclasses.fields(kind)) + ".", ""]
    if isinstance(kind, type(msgspec.Struct)) and "Attributes:" not in documented:
        fields = msgspec.structs.fields(kind)
        parts += ["Attributes: " + ", ".join(f"`{field.name}`" for field in fields) + ".", ""]
    for name, attribute in vars(kind).items():
        member = attribute.__func__ if isinstance(attribute, classmethod) else attribute
        if name.startswith("_") or not getattr(member, "__doc__", None):
            continue
        if isinstance(member, property):
            parts += [f"#### {kind.__name__}.{name}\n", prose(inspect.getdoc(member) or ""), ""]
        elif inspect.isfunction(member) and name not in ("adopt", "close_with"):
            parts += [f"#### {kind.__name__}.{name}\n", f"`{name}{_signature(member)}`\n"]
            parts += [prose(inspect.getdoc(member) or ""), ""]
    return "\n".join(parts)


def commands(top: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every command without commands of its own, with its name."""
    children = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
    if not children:
        yield name, top
    for action in children:
        for word, child in action.choices.items():
            yield from commands(child, f"{name} {word}")


def command_section(name: str, parser: argparse.ArgumentParser) -> str:
    """Describe a command: its description and its arguments."""
    rows = []
    for action in parser._actions:
        if action.dest == "help":
            continue
        value = f"{{{','.join(action.choices)}}}" if action.choices else action.metavar or action.dest.upper()
        takes_value = "" if action.nargs == 0 else f" {value}"
        shown = ", ".join(action.option_strings) + takes_value if action.option_strings else value
        rows.append((f"`{shown}`", action.help or ""))
    return f"### {name}\n\n{parser.description}\n\n{table(('argument', 'meaning'), rows)}"


def struct_section(struct: type[msgspec.Struct]) -> str:
    """Describe a part of the template's schema: its docstring without the attributes, and its keys."""
    text = (inspect.getdoc(struct) or "").partition("\n\nAttributes:")[0]
    return f"{prose(text)}\n\n{struct_table(struct)}"


def struct_table(struct: type[msgspec.Struct]) -> str:
    """Return the keys of a part of the schema with types, defaults and meanings."""
    meanings = dict(items_of(inspect.cleandoc("\n" + (inspect.getdoc(struct) or "").partition("Attributes:\n")[2])))
    if struct is spec.Document:
        meanings |= {key: (inspect.getdoc(part) or "").partition("\n")[0] for key, part in TEMPLATE_PARTS.items()}
        meanings |= TOP_LEVEL
    hints = get_type_hints(struct, include_extras=True)
    return table(
        ("key", "value", "default", "meaning"),
        (
            (
                f"`{field.name}`",
                _type(hints[field.name], field.name),
                _default(field),
                prose(meanings.get(field.name, "")),
            )
            for field in msgspec.structs.fields(struct)
        ),
    )


def scenario_sections() -> Iterator[str]:
    """Describe the keys of a scenario file, from its schema."""
    whole = scenario_schema()
    for name, part in {"": whole, **whole["$defs"]}.items():
        if name == "ControllerLimits":
            continue  # which the template's section has
        rows = ((f"`{key}`", _linked(field)) for key, field in part["properties"].items())
        yield (f"### {name}\n\n{part['description']}\n\n" if name else "") + table(("key", "meaning"), rows)


def _linked(field: dict[str, Any]) -> str:
    """Return what a key of a scenario means, with a link to the part that its value is."""
    names = re.findall(r"#/\$defs/(\w+)", str(field))
    links = [f"[{name}](#{'controller' if name == 'ControllerLimits' else name.lower()})" for name in names]
    return " ".join([field["description"], *(f"See {link}." for link in links)])


def error_rows() -> Iterator[tuple[str, str, str]]:
    """Yield every error with its parent and meaning."""
    for module in (errors, plugin_errors):
        for name, kind in vars(module).items():
            if inspect.isclass(kind) and issubclass(kind, errors.MicrosimError) and kind.__module__ == module.__name__:
                meaning = prose(inspect.getdoc(kind) or "").partition("\n\n")[0]
                yield f"`{name}`", f"`{kind.__bases__[0].__name__}`", meaning


def _flag(flag: str, attributes: dict[str, Any]) -> str:
    if "choices" in attributes:
        return f"`{flag} {{{','.join(attributes['choices'])}}}`"
    return f"`{flag} {attributes['metavar']}`" if "metavar" in attributes else f"`{flag}`"


def _marker(line: str) -> tuple[str, str, str]:
    return line.partition("): ")[0] + ")", "", line.partition("): ")[2]


def _fixture_doc(name: str) -> str:
    definition = getattr(fixtures, name)
    return inspect.getdoc(getattr(definition, "__wrapped__", None) or definition._get_wrapped_function()) or ""


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    parameters = [value for key, value in signature.parameters.items() if key != "self"]
    return str(signature.replace(parameters=parameters)).replace("'", "")


def _type(hint: Any, key: str) -> str:
    """Say what a key's value is: the words of the schema where it has some."""
    if key in TEMPLATE_PARTS and struct_in(hint):
        link = f"[{key}](#{key})"
        if get_origin(hint) is dict:
            return f"mapping from {_type(get_args(hint)[0], '')} to {link}"
        return f"list of {link}" if get_origin(hint) is tuple else link
    metadata = [item for item in getattr(hint, "__metadata__", ()) if isinstance(item, msgspec.Meta)]
    for meta in metadata:
        if meta.description:
            return meta.description
        if meta.extra and "check" in meta.extra:
            return prose(re.sub(r"^Accept (.*)\.$", r"\1", meta.extra["check"].__doc__.strip()))
    arguments = [argument for argument in get_args(hint) if argument not in (type(None), Ellipsis)]
    if get_origin(hint) is tuple:
        return f"list of: {_type(arguments[0], '')}"
    if get_origin(hint) is dict:
        value = "any of JSON's values" if arguments[1] is Any else _type(arguments[1], "")
        return f"mapping from {_type(arguments[0], '')} to {value}"
    if len(arguments) == 1 and get_origin(hint) is not None:
        return _type(arguments[0], "")
    if len(arguments) > 1 and not metadata:
        return "text for a shell, or a list of words"
    return {"str": "text", "int": "whole number", "float": "number"}.get(getattr(hint, "__name__", ""), str(hint))


def struct_in(hint: Any) -> bool:
    """Tell whether a type is a struct, or has one in it."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return True
    return any(struct_in(argument) for argument in get_args(hint))


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(default, msgspec.Struct):
        return "its defaults"
    if default in (None, (), {}, ""):
        return "none"
    return f"`{', '.join(default)}`" if isinstance(default, tuple) else f"`{default}`"


def main() -> int:
    """Write the page, or with ``--check`` say whether it is up to date."""
    text = reference()
    if "--check" in sys.argv[1:]:
        if TARGET.read_text(encoding="utf-8") == text:
            return 0
        print(f"{TARGET} is not up to date: run scripts/generate_reference.py", file=sys.stderr)
        return 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
