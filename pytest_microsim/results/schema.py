"""The JSON Schema of results files, made from their types."""

from __future__ import annotations

from typing import Any

import msgspec

from ..docstrings import documented
from . import model

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the schema, as values of JSON's types."""
    (reference,), parts = msgspec.json.schema_components([model.RunResult], ref_template="#/$defs/{name}")
    for name, part in parts.items():
        text, attributes = documented(getattr(model, name))
        part["description"] = text
        for field, described in part["properties"].items():
            if field in attributes:
                described["description"] = attributes[field]
    return {"$schema": DIALECT, "title": "Results of a run of pytest-microsim", **reference, "$defs": parts}
