"""Options for a world's ``reset``: what JSON can hold, in one form, so that equal options have one digest."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from microsim_vm.errors import OptionsError

MOST_BYTES = 1 << 20  # of their text
DEEPEST = 16


def checked(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return options as plain values, with sorted names; empty where there are none.

    Raises:
        OptionsError: They are not what JSON can hold, or too much.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise _unusable("options", options, "a dict by name")
    plain: dict[str, Any] = _plain("options", options, 0)
    if len(text_of(plain)) > MOST_BYTES:
        raise OptionsError(
            f"the options are larger than {MOST_BYTES >> 10} KiB",
            hint="write a file with rollout.filesystem.write, and give its name",
        )
    return plain


def text_of(options: Mapping[str, Any]) -> bytes:
    """Return checked options as text, the same for equal ones."""
    return json.dumps(options, separators=(",", ":"), sort_keys=True).encode()


def _plain(where: str, value: Any, depth: int) -> Any:
    if depth > DEEPEST:
        raise OptionsError(f"{where} is nested more than {DEEPEST} deep")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):  # numpy's too
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        if not math.isfinite(number):
            raise _unusable(where, number, "a finite number")
        return number
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise _unusable(f"a name in {where}", name, "text")
        return {name: _plain(f"{where}[{name!r}]", value[name], depth + 1) for name in sorted(value)}
    if isinstance(value, list | tuple):
        return [_plain(f"{where}[{index}]", item, depth + 1) for index, item in enumerate(value)]
    raise _unusable(where, value, "None, a bool, number, text, list or dict")


def _unusable(where: str, value: Any, expected: str) -> OptionsError:
    return OptionsError(
        f"{where} is {repr(value)[:80]}, and has to be {expected}",
        cause="options go to the world's reset as JSON",
    )
