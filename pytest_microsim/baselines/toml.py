"""Just as much TOML as baselines are written in; ``tomllib`` reads it.

Each fact has a line of its own and each seed a heading, so that a change of one number is a change of one line, and two
branches that changed different seeds can be merged.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

_BARE = re.compile(r"[A-Za-z0-9_-]+")

Value = str | int | float | bool | list[str]


def key(name: str) -> str:
    """Return a key: as it is where it can be, else in quotes."""
    return name if _BARE.fullmatch(name) else text(name)


def text(words: str) -> str:
    """Return a string in quotes, with every character that needs it escaped."""
    printable = words.encode("utf-8", "backslashreplace").decode()
    return json.dumps(printable, ensure_ascii=False).replace("\x7f", "\\u007f")


def value(given: Value) -> str:
    """Return a value in one line; a float has as many digits as tell it from all others."""
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, str):
        return text(given)
    if isinstance(given, list):
        return f"[{', '.join(map(text, given))}]"
    if isinstance(given, float):
        return repr(given) if math.isfinite(given) else "nan"
    return str(given)


def lines(facts: Mapping[str, Value], prefix: str = "") -> list[str]:
    """Return a line for each fact, in the order of their names."""
    return [f"{prefix}{key(name)} = {value(facts[name])}" for name in sorted(facts)]
