"""The JSON Schema of scenario files, for editors, made from the types that the reader walks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from microsim_vm.templates.spec import ControllerLimits

from ..docstrings import documented
from . import spec
from .spec import Document

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_STRUCTS = (
    ControllerLimits,
    Document,
    spec.Baseline,
    spec.Bound,
    spec.Difference,
    spec.Expectations,
    spec.Normal,
    spec.Parameter,
    spec.PassRate,
    spec.RecordingFile,
    spec.Tolerance,
)
_NOT_HERE = ("network", "readable", "machine")
"""Limits that are a part of a template: a scenario cannot change them."""


def schema() -> dict[str, Any]:
    """Return the schema, as values of JSON's types."""
    (reference,), components = msgspec.json.schema_components(
        [Document], ref_template="#/$defs/{name}", schema_hook=_custom
    )
    for struct in _STRUCTS:
        _explain(components[struct.__name__], struct)
    limits = components["ControllerLimits"]["properties"]
    for name in _NOT_HERE:
        del limits[name]
    for field in limits.values():
        field.pop("default", None)  # which is the template's business
    components["Parameter"] |= {"minProperties": 1, "maxProperties": 1}
    del components["Document"]["properties"]["expect"]["default"]
    components["Bound"] |= {"minProperties": 1}
    root = components.pop(reference["$ref"].rpartition("/")[2])
    del root["required"]
    root["oneOf"] = [{"required": ["controller"]}, {"required": ["recording"]}]
    return {"$schema": DIALECT, **_plain(root), "title": "A scenario of pytest-microsim", "$defs": _plain(components)}


def _custom(kind: type) -> dict[str, Any]:
    assert issubclass(kind, Path)
    return {"type": "string"}


def _explain(described: dict[str, Any], struct: type) -> None:
    """Say in a struct's schema, and in that of each of its fields, what its docstring says."""
    text, attributes = documented(struct)
    described["description"] = text
    for name, field in described["properties"].items():
        constraint = field.pop("description", "")
        said = [attributes.get(name, ""), f"It is {constraint}." if constraint else ""]
        if any(said):
            field["description"] = " ".join(filter(None, said))


def _plain(node: Any) -> Any:
    """Return a schema without what is only Python's: null for a key that is left out, and anchors of its patterns."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    plain = {key: _plain(value) for key, value in node.items() if key != "default" or value not in (None, {}, [], "")}
    if isinstance(pattern := plain.get("pattern"), str):
        plain["pattern"] = pattern.replace(r"\A", "^").replace(r"\Z", "$")
    if isinstance(choices := plain.get("anyOf"), list):
        left = [each for each in choices if each != {"type": "null"}]
        plain.pop("anyOf")
        plain = {**left[0], **plain} if len(left) == 1 else {**plain, "anyOf": left}
    return plain
