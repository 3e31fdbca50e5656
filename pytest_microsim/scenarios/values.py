"""What a scenario's file says, as far as it can be read: what its checks look at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from microsim_vm.templates.yaml import Mapping, Node

from ..seeds import check_seeds, parse_seeds
from .spec import SUFFIX


@dataclass(frozen=True)
class Values:
    """What a file says, as far as each key can be read on its own.

    Attributes:
        path: The file, absolute.
        node: Its top level.
        written: The values of the schema, by key.
    """

    path: Path
    node: Mapping
    written: dict[str, Any]

    def at(self, *keys: str) -> Node:
        """Return where something is written: the key for a value, the file's beginning where it is not there."""
        node: Mapping = self.node
        found: Node = node
        for key in keys:
            if key not in node.keys:
                break
            found = node.keys[key]
            following = node.values[key]
            if not isinstance(following, Mapping):
                break
            node = following
        return found


def name_of(values: Values) -> str:
    """Return the test's name."""
    written: str | None = values.written.get("name")
    if written is not None:
        return written
    name = values.path.name
    return name.removesuffix(SUFFIX) if name.endswith(SUFFIX) else name.partition(".")[0]


def seeds_of(values: Values) -> tuple[int, ...]:
    """Return the seeds; none where the file has none.

    Raises:
        SeedError: They are none.
    """
    seeds = values.written.get("seeds")
    if seeds is None:
        return ()
    if isinstance(seeds, int):
        return tuple(range(seeds))
    return tuple(parse_seeds(seeds) if isinstance(seeds, str) else check_seeds(seeds))


def limits_of(values: Values) -> dict[str, Any]:
    """Return the limits that are written, by name; the rest is the template's."""
    node = values.node.values.get("limits")
    limits = values.written.get("limits")
    return {key: getattr(limits, key) for key in node.keys} if limits is not None and isinstance(node, Mapping) else {}
