"""Recordings that are tables: CSV, and Parquet by pyarrow."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

from microsim_vm.errors import RecordingError

from .rows import INSTALL, Number, Rows, Timeline, names_of

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")


def read(file: Path, fields: list[str] | None, time: str) -> Timeline:
    """Read a table.

    Args:
        file: Ends with .csv or .parquet.
        fields: The columns of an action; None for all but the time.
        time: The column of times, or "" for none.

    Raises:
        RecordingError: It cannot be used.
    """
    return _csv(file, fields, time) if file.suffix.lower() == ".csv" else _parquet(file, fields, time)


def _csv(file: Path, fields: list[str] | None, time: str) -> Timeline:
    moments: list[Number] = []
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            lines = csv.reader(stream, strict=True)
            header = next((line for line in lines if line), None)
            if header is None:
                raise RecordingError(f"{file} is empty", hint="its first line names the columns")
            names = [name.strip() for name in header]
            if fields is None and not time and all(map(_is_number, names)):
                raise RecordingError(f"{file}:{lines.line_num}: the first line has numbers, and no names of columns",
                                     hint="name the columns; if these are names, say field=[...]")  # fmt: skip
            chosen, timed = _choose(file, names, fields, time)
            rows = Rows(str(file), scalar=len(chosen) == 1)
            for line in lines:
                if not line:
                    continue
                where = f"{file}:{lines.line_num}"
                if len(line) != len(header):
                    raise RecordingError(f"{where}: {len(line)} values, and the first line names {len(header)}")
                if timed is not None:
                    moments.append(_number(line[timed], where))
                rows.append([_number(line[index], where) for index in chosen], where)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecordingError(f"{file} cannot be read: {error}") from None
    return Timeline(moments, None, rows)


def _number(text: str, where: str) -> Number:
    try:
        stripped = text.strip()
        return int(stripped) if _WHOLE.fullmatch(stripped) else float(stripped)
    except ValueError:
        raise RecordingError(f"{where}: {text[:80]!r} is no number") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _choose(file: Path, header: list[str], fields: list[str] | None, time: str) -> tuple[list[int], int | None]:
    """Return where in a row the action's numbers are, and the time."""
    if len(set(header)) != len(header):
        twice = sorted({name for name in header if header.count(name) > 1})
        raise RecordingError(f"{file} has several columns of one name: {', '.join(map(repr, twice))}")
    known = names_of(header)
    if time and time not in header:
        raise RecordingError(
            f"{file} has no column {time!r} of times, but {known}",
            hint='name it with time=..., or take a row for each step: by="step"',
        )
    names = [name for name in header if name != (time or "time")] if fields is None else fields
    for name in names:
        if name not in header:
            raise RecordingError(f"{file} has no column {name!r}, but {known}")
    if not names:
        raise RecordingError(f"{file} has no column for an action", hint="name the columns with field=[...]")
    return [header.index(name) for name in names], header.index(time) if time else None


def _parquet(file: Path, fields: list[str] | None, time: str) -> Timeline:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise RecordingError(f"{file}: Parquet is read by pyarrow, which is not installed", hint=INSTALL) from None
    try:
        opened = pyarrow.parquet.ParquetFile(file)
        header = list(opened.schema_arrow.names)
        chosen, timed = _choose(file, header, fields, time)
        table = opened.read(columns=[header[index] for index in chosen] + ([time] if time else []))
    except (OSError, pyarrow.ArrowException) as error:
        raise RecordingError(f"{file} cannot be read: {error}") from None
    columns = [table.column(header[index]).to_pylist() for index in chosen]
    vector = len(chosen) == 1 and any(isinstance(value, list) for value in columns[0][:1])
    rows = Rows(str(file), scalar=len(chosen) == 1 and not vector)
    for number in range(table.num_rows):
        where = f"{file}: row {number}"
        parts = [column[number] for column in columns]
        flat = [item for part in parts for item in (part if isinstance(part, list) else [part])]
        rows.append([_checked(item, where) for item in flat], where)
    if timed is None:
        return Timeline([], None, rows)
    moments, unit = table.column(time), None
    if pyarrow.types.is_timestamp(moments.type) or pyarrow.types.is_duration(moments.type):
        moments, unit = moments.cast(pyarrow.int64()), moments.type.unit
    plain = [_checked(moment, f"{file}: row {number}") for number, moment in enumerate(moments.to_pylist())]
    return Timeline(plain, unit, rows)


def _checked(value: Any, where: str) -> Number:
    if isinstance(value, int | float):
        return int(value) if isinstance(value, bool) else value
    raise RecordingError(f"{where}: {str(value)[:80]!r} is no number")
