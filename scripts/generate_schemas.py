#!/usr/bin/env python3
"""Write the JSON Schemas of the files that pytest-microsim reads and writes, from their types.

Usage: python scripts/generate_schemas.py [--check]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_microsim.results.schema import schema as results
from pytest_microsim.scenarios.jsonschema import schema as scenario

FOLDER = Path(__file__).resolve().parents[1] / "schemas"
SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {"results": results, "scenario": scenario}


def text_of(name: str) -> str:
    """Return what a schema's file has to hold."""
    return json.dumps(SCHEMAS[name](), indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    """Write the files, or check that they are up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a file is not up to date, and write nothing")
    check = parser.parse_args().check
    stale = [name for name in SCHEMAS if not (path := _path(name)).exists() or path.read_text("utf-8") != text_of(name)]
    for name in stale:
        if check:
            print(f"{_path(name)} is not up to date")
        else:
            _path(name).write_text(text_of(name), "utf-8")
    return 1 if check and stale else 0


def _path(name: str) -> Path:
    return FOLDER / f"{name}.schema.json"


if __name__ == "__main__":
    raise SystemExit(main())
