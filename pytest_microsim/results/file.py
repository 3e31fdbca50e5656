"""The results file: a run's results as JSON."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from microsim_vm import digests

from ..errors import ResultsError
from .model import SCHEMA_VERSION, RunResult


def write(path: Path, result: RunResult) -> None:
    """Write a run's results; whoever reads the file at the same time finds the old one or the new one.

    Paths of files are written relative to the results file's folder where they lie in it.

    Raises:
        ResultsError: It cannot be written.
    """
    written = _with_files(result, lambda file: _relative(file, path.parent))
    data = msgspec.json.format(encoded(written), indent=1) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        digests.write_atomically(path, data, durable=False)
    except OSError as error:
        raise ResultsError(
            f"the results cannot be written to {path}: {error.strerror}",
            hint="name a file in a folder that can be written to, with space left",
        ) from None


def encoded(result: RunResult) -> bytes:
    """Return results as JSON.

    Text that is no Unicode, as in names of files, is escaped, and numbers of more than 64 bits become text.
    """
    try:
        return msgspec.json.encode(result)
    except (UnicodeEncodeError, OverflowError):
        return msgspec.json.encode(_plain(msgspec.to_builtins(result)))


def read(path: Path) -> RunResult:
    """Read what :func:`write` has written; paths of files are absolute again.

    Raises:
        ResultsError: There is no such file, or it is no results file of this version.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ResultsError(
            f"the results cannot be read from {path}: {error.strerror}",
            hint="pytest --microsim-results FILE writes such a file",
        ) from None
    try:
        version = msgspec.json.decode(data, type=_Versioned).schema_version
        if version != SCHEMA_VERSION:
            raise ResultsError(
                f"{path} is a results file of version {version}, and this pytest-microsim reads {SCHEMA_VERSION}",
                hint="run the tests again, or use the pytest-microsim that wrote it",
            )
        result = msgspec.json.decode(data, type=RunResult)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ResultsError(
            f"{path} is no results file: {error}", hint="pytest --microsim-results FILE writes one"
        ) from None
    return _with_files(result, lambda file: os.path.join(path.parent.absolute(), file))


class _Versioned(msgspec.Struct):
    schema_version: int


def _with_files(result: RunResult, change: Callable[[str], str]) -> RunResult:
    """Return the same results with each file's path changed."""
    groups = []
    for group in result.groups:
        rollouts = [
            msgspec.structs.replace(rollout, files={what: change(file) for what, file in rollout.files.items()})
            if rollout.files
            else rollout
            for rollout in group.rollouts
        ]
        groups.append(msgspec.structs.replace(group, rollouts=rollouts))
    return msgspec.structs.replace(result, groups=groups)


def _relative(file: str, folder: Path) -> str:
    path, base = os.path.abspath(file), os.path.abspath(folder)
    return os.path.relpath(path, base) if path.startswith(os.path.join(base, "")) else path


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_plain(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return str(value)
    return value
