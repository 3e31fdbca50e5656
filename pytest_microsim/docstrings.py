"""What Google-style docstrings say, for schemas that are made from types."""

from __future__ import annotations

import inspect
import re

_ENTRY = re.compile(r"^ {4}(?P<names>\w+(?:, \w+)*): (?P<text>.*(?:\n {8}.*)*)", re.MULTILINE)


def documented(kind: type) -> tuple[str, dict[str, str]]:
    """Return what a class's docstring says of it, and of each of its attributes, as plain text in one line each."""
    text, _, block = (inspect.getdoc(kind) or "").partition("\nAttributes:\n")
    attributes = {name: _line(found["text"]) for found in _ENTRY.finditer(block) for name in found["names"].split(", ")}
    return _line(text), attributes


def _line(text: str) -> str:
    without_roles = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", text.replace("``", ""))
    return " ".join(without_roles.split())
