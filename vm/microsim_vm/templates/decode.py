"""From YAML nodes to values of a schema made of structs, with file and line in each complaint.

``spec.py`` has the schema of templates; other files of ours are read by theirs in the same way.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import inspect

from microsim_vm.templates.checks import Complaint
from microsim_vm.templates.yaml import Mapping, Node, Scalar, Sequence, refuse

# Numbers as JSON writes them: the one form that every YAML reader agrees on.
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_MAX_INTEGER = 1 << 63
_CONSTANTS = {"true": True, "false": False, "null": None}


def fields(node: Mapping, struct: type[msgspec.Struct], where: str = "") -> dict[str, Any]:
    """Return the fields of a struct that a mapping writes, as the struct's types.

    Args:
        node: The mapping.
        struct: Which part of the schema it is.
        where: Dotted path of the mapping, for messages.

    Raises:
        TemplateError: An unknown key, or a value of the wrong type or out of range.
    """
    known = _schema(struct)
    for key, scalar in node.keys.items():
        if key not in known:
            place = f" in {where}" if where else ""
            refuse(scalar, Complaint(f"unknown key {key!r}{place}", _choices("key", key, known)))
    return {
        key: _value(value, known[key].type, f"{where}.{key}" if where else key) for key, value in node.values.items()
    }


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the most similar name, or an empty string."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)), "")


def _choices(kind: str, name: str, names: Iterable[str]) -> str:
    near = nearest(name, names)
    question = f'did you mean "{near}"? ' if near else ""
    return f"{question}valid {kind}s: {', '.join(sorted(names))}"


@functools.cache
def _schema(struct: type[msgspec.Struct]) -> dict[str, inspect.Field]:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return {field.name: field for field in info.fields}


def _value(node: Node, kind: inspect.Type, where: str) -> Any:
    """Return a node's value as the type that the schema has at this place."""
    meaning, check = "", None
    if isinstance(kind, inspect.Metadata):
        meaning = (kind.extra_json_schema or {}).get("description", "")
        check = (kind.extra or {}).get("check")
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        return _value(node, _branch(node, kind), where)
    if isinstance(kind, inspect.StructType):
        return _struct(_mapping(node, where), kind.cls, where)
    if isinstance(kind, inspect.DictType):
        mapping = _mapping(node, where)
        for key in mapping.keys.values():
            _text(key, kind.key_type, f"key {key.text!r} of {where}")
        return {key: _value(value, kind.value_type, f"{where}.{key}") for key, value in mapping.values.items()}
    if isinstance(kind, inspect.VarTupleType):
        if not isinstance(node, Sequence):
            refuse(node, Complaint(f"{where} must be {meaning or 'a list'}, not {_name(node)}", "write [a, b]"))
        if not (kind.min_length or 0) <= len(node.items) <= (kind.max_length or len(node.items)):
            what = f"has {len(node.items)} entries" if node.items else "is empty"
            refuse(node, Complaint(f"{where} {what}, and must be {meaning}"))
        return tuple(_value(item, kind.item_type, f"{where}[{index}]") for index, item in enumerate(node.items))
    if isinstance(kind, inspect.AnyType):
        return _free(node, where)
    if not isinstance(node, Scalar):
        expected = meaning or ("a number" if isinstance(kind, inspect.IntType | inspect.FloatType) else "text")
        refuse(node, Complaint(f"{where} must be {expected}, not {_name(node)}"))
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        return _bounded(node, _number(node, kind, where, meaning), kind, where, meaning)
    if isinstance(kind, inspect.BoolType):
        return _truth(node, where)
    return _checked(node, kind, where, meaning, check)


def _struct(node: Mapping, struct: type[msgspec.Struct], where: str) -> msgspec.Struct:
    values = fields(node, struct, where)
    for name, field in _schema(struct).items():
        if field.required and name not in values:
            refuse(node, Complaint(f"{where} has no {name}", f"add {name}: ... to it"))
    return struct(**values)


def _branch(node: Node, union: inspect.UnionType) -> inspect.Type:
    """Choose by how a value is written; ``None`` in a union only says that the key may be absent."""
    kinds = [kind for kind in union.types if not isinstance(kind, inspect.NoneType)]
    wanted: type | None = None
    if isinstance(node, Sequence):
        wanted = inspect.VarTupleType
    elif isinstance(node, Mapping):
        wanted = inspect.StructType
    elif node.plain and _INTEGER.fullmatch(node.text):
        wanted = inspect.IntType
    fitting = [kind for kind in kinds if wanted is not None and isinstance(_bare(kind), wanted)]
    special = inspect.VarTupleType | inspect.StructType | inspect.IntType
    others = [kind for kind in kinds if not isinstance(_bare(kind), special)]
    return (fitting or others or kinds)[0]


def _bare(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def _mapping(node: Node, where: str) -> Mapping:
    if not isinstance(node, Mapping):
        refuse(
            node,
            Complaint(f"{where} must be a mapping, not {_name(node)}", "write keys with values below it"),
        )
    return node


def _name(node: Node) -> str:
    if isinstance(node, Mapping):
        return "a mapping"
    if isinstance(node, Sequence):
        return "a list"
    if not node.text and node.plain:
        return "nothing"
    return node.text if node.plain else f"the text {node.quoted}"


def _checked(node: Scalar, kind: inspect.Type, where: str, meaning: str, check: Any) -> Any:
    """Return text, or a path resolved against the file that wrote it."""
    if node.reading:
        leaf = "-" if where.endswith("]") else where.rpartition(".")[2] + ":"
        value = f"{node.text!r} is" if node.text else "an empty value is"
        refuse(
            node,
            Complaint(f"{value} read as {node.reading}, and {where} is text", f"quote it: {leaf} {node.quoted}"),
        )
    if check is not None:
        try:
            check(node.text)
        except Complaint as complaint:
            refuse(
                node,
                Complaint(f"{where}: {complaint.what}", complaint.hint, unsupported=complaint.unsupported),
            )
    if isinstance(kind, inspect.CustomType):
        return node.file.parent / node.text
    _text(node, kind, where, meaning)
    return node.text


def _text(node: Scalar, kind: inspect.Type, where: str, meaning: str = "") -> None:
    """Apply the length and pattern of a text field."""
    if isinstance(kind, inspect.Metadata):
        meaning = (kind.extra_json_schema or {}).get("description", "")
        kind = kind.type
    assert isinstance(kind, inspect.StrType)
    if len(node.text) < (kind.min_length or 0) or not re.search(kind.pattern or "", node.text):
        refuse(node, Complaint(f"{where} is {node.quoted}, and must be {meaning}"))


def _truth(node: Scalar, where: str) -> bool:
    if not node.plain or node.text not in ("true", "false"):
        hint = "write true or false, in small letters and without quotes"
        refuse(node, Complaint(f"{where} must be true or false, not {_name(node)}", hint))
    return node.text == "true"


def _number(node: Scalar, kind: inspect.Type, where: str, meaning: str) -> int | float:
    whole = isinstance(kind, inspect.IntType)
    form = _INTEGER if whole else _NUMBER
    if not node.plain and form.fullmatch(node.text):
        leaf = where.rpartition(".")[2]
        refuse(
            node,
            Complaint(f"{where} must be {meaning}, not {_name(node)}", f"remove the quotes: {leaf}: {node.text}"),
        )
    if not node.plain or not form.fullmatch(node.text):
        hint = "write it in plain decimal digits" if node.reading and node.text else ""
        refuse(node, Complaint(f"{where} must be {meaning}, not {_name(node)}", hint))
    # The length is bounded before int() sees it: Python refuses very long numbers in its own way.
    return int(node.text) if whole and len(node.text) < 20 else float(node.text)


def _bounded(node: Scalar, number: float, kind: inspect.Type, where: str, meaning: str) -> int | float:
    assert isinstance(kind, inspect.IntType | inspect.FloatType)
    low = number < kind.ge if kind.ge is not None else kind.gt is not None and number <= kind.gt
    high = number > kind.le if kind.le is not None else kind.lt is not None and number >= kind.lt
    if low or high:
        refuse(node, Complaint(f"{where} must be {meaning}, not {node.text}"))
    return number if isinstance(kind, inspect.IntType) else float(number)


def _free(node: Node, where: str) -> object:
    """Return a value of any of JSON's types."""
    if isinstance(node, Mapping):
        return {key: _free(value, f"{where}.{key}") for key, value in node.values.items()}
    if isinstance(node, Sequence):
        return [_free(item, f"{where}[{index}]") for index, item in enumerate(node.items)]
    if node.plain and node.text in _CONSTANTS:
        return _CONSTANTS[node.text]
    if not node.reading:
        return node.text
    if _INTEGER.fullmatch(node.text):
        if len(node.text) <= 20 and abs(int(node.text)) < _MAX_INTEGER:
            return int(node.text)
    elif _NUMBER.fullmatch(node.text) and math.isfinite(float(node.text)):
        return float(node.text)
    value = f"{node.text!r} is" if node.text else "an empty value is"
    return refuse(
        node,
        Complaint(
            f"{value} ambiguous in {where}: YAML readers take it for {node.reading}",
            f"write a number as JSON does, true, false or null, or quote the text: {node.quoted}",
        ),
    )
