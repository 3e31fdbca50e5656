"""Strict YAML: a file becomes a tree of mappings, lists and scalars that know their line.

Scalars stay text exactly as written, because YAML's own guesses change values: ``no`` becomes false, ``3.10``
becomes 3.1 and an unquoted MAC address becomes a base-60 number. The schema decides what a scalar means.
Left out of the language: duplicate keys, anchors and aliases (a few lines of them expand to gigabytes, and
``extends`` does their job), tags, directives and several documents in a file.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import yaml

from microsim_vm.errors import TemplateError, UnsupportedWorldError
from microsim_vm.templates.checks import Complaint

MAX_BYTES = 1 << 20
MAX_DEPTH = 32

# What some YAML reader, of version 1.1 or 1.2, would not take for text; the first match names it.
_AMBIGUOUS = (
    ("null", re.compile(r"(~|null|Null|NULL)?")),
    ("a boolean", re.compile(r"yes|no|on|off|true|false", re.IGNORECASE)),
    ("an octal number", re.compile(r"[-+]?0o?[0-7_]+")),
    ("a base-60 number", re.compile(r"[-+]?[0-9][0-9_]*(:[0-9]+)+(\.[0-9_]*)?")),
    ("a date", re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?")),
    (
        "a number",
        re.compile(
            r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?"
            r"|[-+]?0x[0-9a-fA-F_]+|[-+]?0b[01_]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
        ),
    ),
    ("a merge key or a default value", re.compile(r"<<|=")),
)


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value.

    Attributes:
        text: What was written, quotes and escapes resolved.
        plain: True where it was written without quotes.
    """

    text: str
    plain: bool
    file: Path
    line: int

    @property
    def reading(self) -> str:
        """What a YAML reader might take this for, other than text; empty where it can only be text."""
        if not self.plain:
            return ""
        return next((name for name, form in _AMBIGUOUS if form.fullmatch(self.text)), "")

    @property
    def quoted(self) -> str:
        """The text as it is to be written to be nothing but text."""
        return json.dumps(self.text, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list of values."""

    items: tuple[Node, ...]
    file: Path
    line: int


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys with values, in the order written, and the scalar that each key was."""

    values: dict[str, Node]
    keys: dict[str, Scalar]
    file: Path
    line: int


Node = Scalar | Sequence | Mapping


def refuse(node: Node, complaint: Complaint, details: str = "") -> NoReturn:
    """Raise a complaint about a node.

    Raises:
        TemplateError: Always; with the node's file and line.
    """
    kind = UnsupportedWorldError if complaint.unsupported else TemplateError
    raise kind(f"{node.file}:{node.line}: {complaint.what}", hint=complaint.hint, details=details) from None


def read(path: Path) -> Mapping:
    """Read a file whose top level is a mapping.

    Raises:
        TemplateError: Unreadable, too large, not UTF-8, not YAML, or YAML that is left out here.
    """
    return parse(_text(path), path)


def parse(text: str, path: Path) -> Mapping:
    """Parse text as :func:`read` does; ``path`` is for error messages."""
    builder = _Builder(text, path)
    try:
        return builder.document()
    except yaml.MarkedYAMLError as error:
        _refuse_syntax(error, path)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # ValueError: an escape such as "\UFFFFFFFF" that is no character.
        raise TemplateError(f"{path}:{builder.line}: not valid YAML: {error}") from None


def _text(path: Path) -> str:
    try:
        # A pipe would block the open.
        if not stat.S_ISREG(path.stat().st_mode):
            raise TemplateError(f"{path}:1: not a regular file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TemplateError(f"{path}:1: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise TemplateError(f"{path}:1: larger than {MAX_BYTES >> 20} MiB", hint="name large files by their paths")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TemplateError(
            f"{path}:{line}: not valid UTF-8: byte 0x{data[error.start]:02x}", hint="save the file as UTF-8"
        ) from None


def _refuse_syntax(error: yaml.MarkedYAMLError, path: Path) -> NoReturn:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    problem = error.problem or "unreadable"
    hint = ""
    if "'\\t'" in problem:
        problem, hint = "a tab", "use spaces: YAML does not allow tabs between or before values"
    elif "mapping values are not allowed" in problem:
        hint = 'check the indentation; quote a value that contains ": "'
    elif "cannot start any token" in problem or "alphabetic" in problem:
        hint = "quote a value that starts with a special character"
    elif error.context_mark is not None and error.context_mark.line != line - 1:
        hint = f"look also at line {error.context_mark.line + 1}: {error.context}"
    raise TemplateError(f"{path}:{line}: not valid YAML: {problem}", hint=hint) from None


class _Builder:
    """Builds the tree from PyYAML's events: unlike nodes, they still show tags, anchors and aliases."""

    def __init__(self, text: str, path: Path) -> None:
        self._path = path
        try:
            self._loader = yaml.SafeLoader(text)
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise TemplateError(
                f"{path}:{line}: character U+{ord(text[error.position]):04X} is not allowed in YAML",
                hint='write it as an escape in double quotes, such as "\\x07"',
            ) from None

    @property
    def line(self) -> int:
        """The line that is being read, from 1."""
        return int(self._loader.line) + 1

    def document(self) -> Mapping:
        """Return the file's only document."""
        events = self._events()
        event = next(events, None)
        if event is None:
            raise TemplateError(f"{self._path}:1: the file is empty", hint='start with "name: ..."')
        node = self._node(event, events, 0)
        if not isinstance(node, Mapping):
            refuse(
                node,
                Complaint("the file is not a mapping", 'write keys with values, such as "name: warehouse"'),
            )
        for _ in events:
            pass  # what follows the document must be YAML, and no second document
        return node

    def _events(self) -> Iterator[yaml.Event]:
        """Yield the events that carry content, having refused what is left out of the language."""
        documents = 0
        while True:
            event = self._loader.get_event()  # type: ignore[no-untyped-call]
            if isinstance(event, yaml.StreamEndEvent):
                return
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(event, "a second document", "keep one document per file: remove the line ---")
                if event.version or event.tags:
                    self._refuse(event, "a directive", "remove the line that starts with %")
            if isinstance(event, yaml.AliasEvent):
                self._refuse(
                    event,
                    f"alias *{event.anchor}",
                    "aliases are not supported: write the value out, or quote the text",
                )
            if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
                self._refuse(event, f"anchor &{event.anchor}", "anchors are not supported: remove it")
            if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
                self._refuse(event, f"tag {event.tag}", "tags are not supported: remove it, or quote the text")
            if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent | yaml.CollectionEndEvent):
                yield event

    def _node(self, event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Node:
        line = _line(event)
        if isinstance(event, yaml.ScalarEvent):
            scalar = Scalar(event.value, event.style is None, self._path, line)
            if "\0" in scalar.text or any(0xD800 <= ord(char) < 0xE000 for char in scalar.text):
                refuse(
                    scalar,
                    Complaint("text with a null character or half a surrogate pair", "remove the escape"),
                )
            return scalar
        if depth == MAX_DEPTH:
            self._refuse(event, f"nesting deeper than {MAX_DEPTH} levels", "write it flatter")
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(item := next(events), yaml.SequenceEndEvent):
                items.append(self._node(item, events, depth + 1))
            return Sequence(tuple(items), self._path, line)
        values: dict[str, Node] = {}
        keys: dict[str, Scalar] = {}
        while not isinstance(item := next(events), yaml.MappingEndEvent):
            key = self._node(item, events, depth + 1)
            if not isinstance(key, Scalar):
                refuse(key, Complaint("a key that is not text", "write keys as plain text"))
            if key.reading:
                refuse(key, Complaint(f"key {key.text!r} is read as {key.reading}", f"quote it: {key.quoted}:"))
            if key.text in keys:
                refuse(
                    key,
                    Complaint(
                        f"key {key.text!r} is there twice, on lines {keys[key.text].line} and {key.line}",
                        "keep one of them",
                    ),
                )
            keys[key.text] = key
            values[key.text] = self._node(next(events), events, depth + 1)
        return Mapping(values, keys, self._path, line)

    def _refuse(self, event: yaml.Event, what: str, hint: str) -> NoReturn:
        raise TemplateError(f"{self._path}:{_line(event)}: {what}", hint=hint)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1
