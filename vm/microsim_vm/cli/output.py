"""What a command prints: its result on stdout, all else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from microsim_vm.errors import MicrosimError


class Output:
    """Prints results for people, or as one JSON document.

    Args:
        json: The latter.
    """

    def __init__(self, *, json: bool = False) -> None:
        self.json = json

    def progress(self, line: str) -> None:
        """Say on stderr what is happening."""
        print(line, file=sys.stderr, flush=True)

    def error(self, text: str) -> None:
        """Say on stderr what went wrong."""
        print(f"microsim: {text}", file=sys.stderr, flush=True)

    def failure(self, error: MicrosimError, prefix: str = "") -> None:
        """Say on stderr what went wrong, and what to do, in the words of the command."""
        from microsim_vm.cli import wording

        self.error(prefix + wording.message(error))

    def result(self, document: Any, text: str) -> None:
        """Print the result: the document as JSON, or the text; an empty text prints nothing."""
        if self.json:
            print(json.dumps(document, indent=2, ensure_ascii=False))
        elif text:
            print(text)

    def table(self, document: Any, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print the result: the document as JSON, or a table, of which only the header is left without rows."""
        self.result(document, table(header, rows))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return lines with aligned columns; what would break a line or move the cursor is shown as an escape."""
    lines = [tuple(header), *(tuple(printable(cell) for cell in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def counted(number: int, what: str) -> str:
    """Return a number of things in words: ``1 group``, ``2 groups``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return a text in which what would break a line or move the cursor is shown as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
