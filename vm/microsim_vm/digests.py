"""SHA-256 of files and of structured data, and writing a file so that it is whole or absent."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any


def of_file(path: Path) -> str:
    """Return a file's SHA-256, hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def of_data(data: Any) -> str:
    """Return the SHA-256 (hex) of JSON-able data, independent of key order."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file that other processes see either whole or not at all; a durable one after a power cut too."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    if not durable:
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically, readable and in a stable order."""
    text = json.dumps(data, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    write_atomically(path, text.encode())


def read_json(path: Path) -> Any:
    """Return a JSON file's data, or None where it is missing or not whole."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
