"""Data inside a page: compressed, and in letters that no HTML can be made of."""

from __future__ import annotations

import base64
import gzip
import json
import math
from typing import Any


def packed(data: bytes) -> str:
    """Return data compressed, in base64; the same data gives the same text."""
    return base64.b64encode(gzip.compress(data, compresslevel=6, mtime=0)).decode("ascii")


def packed_json(document: Any) -> str:
    """Return a document as compressed JSON. Text of any kind survives, lone surrogates too."""
    return packed(json.dumps(document, separators=(",", ":"), allow_nan=False).encode("ascii"))


def number(value: float | None, digits: int = 7) -> float | None:
    """Return a number with so many significant digits, and None for what JSON has no number for."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def as_text(value: Any) -> str:
    """Return any of JSON's values as a reader would write it: text without quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def bounded(text: str, limit: int) -> str:
    """Return a text of at most about so many characters: its beginning and, three times as much, its end."""
    if len(text) <= limit:
        return text
    head = limit // 4
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[head - limit :]}"
