#!/usr/bin/env python3
"""Draw a command's terminal output, as captured with its colours, as an SVG picture.

pytest example_tests --color=yes | scripts/render_terminal.py --command "pytest example_tests" >docs/run.svg
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from html import escape
from typing import NamedTuple

COLUMNS = 100
CHAR_PX, LINE_PX, MARGIN_PX = 7.8, 18, 16
FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
BACKGROUND, FOREGROUND = "#1b1f24", "#d7dce2"
COLOURS = {
    31: "#ff7b72",
    32: "#7ee787",
    33: "#e3b341",
    34: "#79c0ff",
    35: "#d2a8ff",
    36: "#76e3ea",
    90: "#8b949e",
    91: "#ff7b72",
    92: "#7ee787",
    93: "#e3b341",
    94: "#79c0ff",
    95: "#d2a8ff",
    96: "#76e3ea",
}
_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_OTHER_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]")


class Piece(NamedTuple):
    """A run of characters of one style."""

    text: str
    colour: int
    bold: bool


def pieces_of(text: str) -> Iterator[Piece]:
    """Split text with SGR escapes into pieces of one style."""
    colour, bold, at = 0, False, 0
    for code in [*_SGR.finditer(text), None]:
        plain = text[at : code.start() if code else len(text)]
        if plain:
            yield Piece(plain, colour, bold)
        if code is None:
            return
        at = code.end()
        for number in (int(part or 0) for part in code.group(1).split(";")):
            if number in (0, 39):
                colour = 0
            elif number in COLOURS:
                colour = number
            if number in (0, 1, 22):
                bold = number == 1


def lines_of(text: str) -> list[list[Piece]]:
    """Return screen lines: what is wider than the screen goes on in the next one, as in a terminal."""
    lines: list[list[Piece]] = [[]]
    column = 0
    for piece in pieces_of(_OTHER_ESCAPES.sub("", text).replace("\r\n", "\n").rstrip("\n")):
        for index, part in enumerate(piece.text.split("\n")):
            if index:
                lines.append([])
                column = 0
            while part:
                if column == COLUMNS:
                    lines.append([])
                    column = 0
                taken, part = part[: COLUMNS - column], part[COLUMNS - column :]
                lines[-1].append(piece._replace(text=taken))
                column += len(taken)
    return lines


def svg_of(lines: list[list[Piece]], title: str) -> str:
    """Draw the lines."""
    width = round(COLUMNS * CHAR_PX + 2 * MARGIN_PX)
    height = len(lines) * LINE_PX + 2 * MARGIN_PX
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
        f'<g font-family="{FONT}" font-size="13" fill="{FOREGROUND}" xml:space="preserve">',
    ]
    for number, line in enumerate(lines, 1):
        column = 0
        for piece in line:
            style = f' fill="{COLOURS[piece.colour]}"' if piece.colour else ""
            style += ' font-weight="bold"' if piece.bold else ""
            x, y = MARGIN_PX + column * CHAR_PX, MARGIN_PX + number * LINE_PX - 5
            # A fixed length keeps the columns aligned whatever font the reader has.
            length = f'textLength="{len(piece.text) * CHAR_PX:.1f}"'
            if piece.text.strip():
                rows.append(f'<text x="{x:.1f}" y="{y}" {length}{style}>{escape(piece.text)}</text>')
            column += len(piece.text)
    return "\n".join([*rows, "</g>", "</svg>", ""])


def main() -> None:
    """Read the output from stdin, write the picture to stdout."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--command", required=True, help="the command that was run; shown as the first line")
    command = parser.parse_args().command
    text = f"\x1b[90m$\x1b[0m \x1b[1m{command}\x1b[0m\n{sys.stdin.read()}"
    sys.stdout.write(svg_of(lines_of(text), command))


if __name__ == "__main__":
    main()
