"""What a controller is on the host's side: a Python file with ``act``, or any program, and its arguments."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from microsim_vm import reset_options
from microsim_vm.errors import ControllerError, LimitsError
from microsim_vm.templates.spec import ControllerLimits

MAX_BYTES = 64 << 20
MOST_SECONDS = 86400  # as in a template
Kind = Literal["python", "program", "recording"]


@dataclass(frozen=True)
class Controller:
    """A controller, ready to be sent to a guest.

    Attributes:
        data: Its file.
        filename: The file's name.
        kind: "python" for a file with ``act``, "program" for anything that can be executed and speaks the line
            protocol, "recording" for actions that the world host takes one after the other.
        words: A program's arguments.
    """

    data: bytes = field(repr=False)
    filename: str
    kind: Kind = "python"
    words: tuple[str, ...] = ()

    def digest(
        self,
        limits: ControllerLimits,
        max_steps: int,
        timeout_seconds: float | None,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Return a digest, in hex, of this and of what else an episode of it is given, but for the seed."""
        given: list[Any] = [self.data, self.kind, self.words, limits, max_steps, timeout_seconds]
        if options:
            given.append(reset_options.text_of(options))
        return hashlib.sha256(msgspec.msgpack.encode(given)).hexdigest()


def kind_of(controller: str | os.PathLike[str] | Sequence[str]) -> Kind:
    """Tell what a test names: a path that ends with .py is Python, any other path and each list a program."""
    if isinstance(controller, str | os.PathLike):
        return "python" if Path(controller).suffix == ".py" else "program"
    return "program"


def split(controller: str | os.PathLike[str] | Sequence[str]) -> tuple[str | os.PathLike[str], tuple[str, ...]]:
    """Return the file of what a test names, and its arguments.

    Raises:
        ControllerError: A list is empty, or has something else than text.
    """
    if isinstance(controller, str | os.PathLike):
        return controller, ()
    words = tuple(controller)
    if not words or not all(isinstance(word, str) and "\0" not in word for word in words):
        raise ControllerError(
            f"a program is a list of its file and its arguments, all of them text, not {controller!r}"
        )
    return words[0], words[1:]


def read(path: Path, kind: Kind, words: Sequence[str] = ()) -> Controller:
    """Read a controller's file, and refuse what cannot work before an episode is spent on it.

    Raises:
        ControllerError: It cannot be read, is too large, does not compile, or a program is none.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ControllerError(f"{path}: the controller is larger than {MAX_BYTES >> 20} MiB")
        data = path.read_bytes()
    except OSError as error:
        raise ControllerError(f"{path}: the controller cannot be read: {error.strerror}") from None
    if kind == "program" and not data.startswith((b"#!", b"\x7fELF")):
        raise ControllerError(
            f"{path}: the controller is no program",
            cause='it begins neither with "#!" nor as a Linux program does',
            hint="name the interpreter in its first line, as in #!/bin/sh, or give a Python file the suffix .py",
        )
    if kind == "python":
        _compile(path, data)
    return Controller(data, path.name, kind, tuple(words))


def _compile(path: Path, source: bytes) -> None:
    """Compile a controller as the guest will, which may have an older Python and reports what only we understand.

    Raises:
        ControllerError: It does not compile.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        text = (error.text or "").rstrip()
        marker = " " * ((error.offset or 1) - 1) + "^" if text else ""
        raise ControllerError(
            f"{path}:{error.lineno}: the controller does not compile: {error.msg}",
            details=f"{text}\n{marker}",
        ) from None
    except (ValueError, MemoryError, RecursionError) as error:
        raise ControllerError(f"{path}: the controller does not compile: {error}") from None


def limited(limits: ControllerLimits, changes: Mapping[str, object]) -> ControllerLimits:
    """Return limits with some of them replaced, by the names of the template's ``controller``.

    Raises:
        LimitsError: There is no such limit, its value is out of range, or it is a part of the image.
    """
    fixed = {"network": "world's image", "readable": "world's image", "machine": "template"}
    known = [name for name in ControllerLimits.__struct_fields__ if name not in fixed]
    for name in changes:
        if name not in known:
            why = f"it is a part of the {fixed[name]}" if name in fixed else ""
            raise LimitsError(f"a controller has no limit {name!r} here", cause=why, hint=f"known: {', '.join(known)}")
    try:
        return msgspec.convert({**msgspec.to_builtins(limits), **changes}, ControllerLimits)
    except msgspec.ValidationError as error:
        raise LimitsError(
            f"limits of a controller: {error}", hint="units and ranges are those of the template"
        ) from None


def check_lengths(max_steps: object, timeout_seconds: object = None) -> None:
    """Refuse what no episode can be as long as.

    Args:
        max_steps: Steps after which it is truncated.
        timeout_seconds: Its wall-clock limit, in seconds; None for that of the limits.

    Raises:
        LimitsError: One of them is out of range, or no number.
    """
    if type(max_steps) is not int or max_steps < 1:
        raise LimitsError(
            f"max_steps is a whole number of steps, at least 1, not {max_steps!r}",
            hint="leave it out for the marker's max_steps, or 1000",
        )
    if timeout_seconds is None:
        return
    is_number = isinstance(timeout_seconds, int | float) and not isinstance(timeout_seconds, bool)
    if not is_number or not 0 < timeout_seconds <= MOST_SECONDS:  # type: ignore[operator]
        raise LimitsError(
            f"timeout_seconds is a number of seconds, more than 0 and at most {MOST_SECONDS}, not {timeout_seconds!r}",
            hint="leave it out for controller.wall_time_s of the template",
        )
