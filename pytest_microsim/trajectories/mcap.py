"""Episodes as MCAP files, which Foxglove and PlotJuggler open, and from which every bit can be read back.

A column is a topic: ``/observation``, ``/action``, or ``/observation/<key>`` for one key of a dict. A row is a message
``{"value": [...]}`` of JSON, flat, and its time is simulated time since the reset: row *i* of a column that has the
start in it, and action *i*, are at step *i*; reward *i* is at step *i + 1*, when it is earned. A row that JSON cannot
tell (NaN, an infinity) has its bytes beside that, as hex digits under ``bits``.
"""

from __future__ import annotations

import array
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
from microsim_guest.codec import TYPECODES
from microsim_vm.episode import Column

from ..errors import TrajectoryError

if TYPE_CHECKING:
    from ..gates.fingerprints import ColumnLike

RECORD = "microsim"
"""The name of the file's metadata record that says what the episode was."""

LIBRARY = "pytest-microsim"
_NS = 1_000_000_000
_WITHOUT_TIME_S = 1.0


class _Message(msgspec.Struct, omit_defaults=True):
    value: list[Any]
    bits: str = ""


def write_episode(
    path: Path, columns: Mapping[str, ColumnLike], *, step_s: float | None, metadata: Mapping[str, str]
) -> None:
    """Write one episode; the same columns and metadata give the same bytes. The file appears as a whole or not at all.

    Args:
        path: Where; its folder has to exist.
        columns: The trajectory, by name.
        step_s: Simulated seconds of a step. None where the world tells no time: a step then counts as one second, and
            the metadata say ``time: steps``.
        metadata: What the file says of the episode, beside that: text by name.

    Raises:
        OSError: It cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            _write(stream, columns, step_s, metadata)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_episode(path: Path) -> tuple[dict[str, Column], dict[str, str]]:
    """Read an episode that :func:`write_episode` wrote.

    Returns:
        The columns by name, bit by bit as they were, and the metadata.

    Raises:
        TrajectoryError: It is no such file, or is damaged.
        OSError: It cannot be read.
    """
    from mcap.exceptions import McapError
    from mcap.reader import SeekingReader

    try:
        with path.open("rb") as stream:
            return _read(SeekingReader(stream, validate_crcs=True))
    except (McapError, msgspec.MsgspecError, LookupError, TypeError, ValueError, OverflowError, EOFError) as error:
        raise TrajectoryError(
            f"{path} is no episode that can be read: {error}",
            cause="it was cut short or changed, or another program wrote it",
        ) from None
    except Exception as error:  # the library's, and those of its decompressors, have no common root
        if isinstance(error, OSError | MemoryError):
            raise
        raise TrajectoryError(
            f"{path} is no episode that can be read: {type(error).__name__}: {error}", cause="the file is damaged"
        ) from None


def _write(stream: IO[bytes], columns: Mapping[str, ColumnLike], step_s: float | None, told: Mapping[str, str]) -> None:
    from mcap.writer import Writer

    writer = Writer(stream)
    writer.start(profile="", library=LIBRARY)
    time = {"time": "steps"} if step_s is None else {"time": "seconds", "step_s": repr(float(step_s))}
    described = {_printable(name): _printable(text) for name, text in {**told, **time}.items()}
    writer.add_metadata(RECORD, dict(sorted(described.items())))
    rows: list[tuple[int, int, int, bytes]] = []
    for name in sorted(columns):
        column = columns[name]
        schema = writer.register_schema(_printable(name), "jsonschema", _schema(name, column))
        channel = writer.register_channel(
            _topic(name),
            "json",
            schema,
            {"column": _printable(name), "dtype": column.dtype, "shape": ",".join(map(str, column.shape))},
        )
        first = 1 if name.partition(".")[0] == "reward" else 0
        for number, message in enumerate(_messages(column)):
            rows.append((_nanoseconds(number + first, step_s), channel, number, message))
    rows.sort(key=lambda row: row[:3])
    for at, channel, number, message in rows:
        writer.add_message(channel, log_time=at, data=message, publish_time=at, sequence=number)
    writer.finish()  # type: ignore[no-untyped-call]


def _nanoseconds(step: int, step_s: float | None) -> int:
    return round(step * (_WITHOUT_TIME_S if step_s is None else step_s) * _NS)


def _messages(column: ColumnLike) -> Iterator[bytes]:
    encoder = msgspec.json.Encoder()
    per_row, code = math.prod(column.shape[1:]), TYPECODES.get(column.dtype)
    size = len(column.data) // column.shape[0] if column.shape[0] else 0
    for number in range(column.shape[0]):
        row = column.data[number * size : (number + 1) * size]
        value: list[Any] = list(_numbers(code, row)) if code is not None else []
        whole = len(value) == per_row and (code not in ("d", "f") or all(map(math.isfinite, value)))
        yield encoder.encode(_Message(value) if whole else _Message(value, row.hex()))


def _numbers(code: str, data: bytes) -> array.array[Any]:
    numbers = array.array(code, data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _read(reader: Any) -> tuple[dict[str, Column], dict[str, str]]:
    summary = reader.get_summary()
    if summary is None:
        raise ValueError("it has no summary")
    records = [record for record in reader.iter_metadata() if record.name == RECORD]
    if not records:
        raise ValueError(f"it has no record {RECORD!r}")
    decoder = msgspec.json.Decoder(_Message)
    found: dict[int, list[bytes]] = {number: [] for number in summary.channels}
    for _, channel, message in reader.iter_messages(log_time_order=False):
        rows = found[channel.id]
        if message.sequence != len(rows):
            raise ValueError(f"{channel.topic} has message {message.sequence} where {len(rows)} is due")
        rows.append(_row(decoder.decode(message.data), channel.metadata["dtype"]))
    columns = {}
    for number, channel in sorted(summary.channels.items()):
        name, dtype = channel.metadata["column"], channel.metadata["dtype"]
        shape = tuple(int(size) for size in channel.metadata["shape"].split(","))
        columns[name] = Column.checked(name, dtype, shape, b"".join(found[number]))
    return columns, dict(records[0].metadata)


def _row(message: _Message, dtype: str) -> bytes:
    if message.bits:
        return bytes.fromhex(message.bits)
    numbers = array.array(TYPECODES[dtype], message.value)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _schema(name: str, column: ColumnLike) -> bytes:
    """Describe a column's messages; viewers know objects, lists and numbers, and no unions of types."""
    number = "number" if "f" in column.dtype else "integer"
    return msgspec.json.encode(
        {
            "type": "object",
            "title": _printable(name),
            "description": f"{column.dtype} {list(column.shape[1:])}, flat; bits are a row's bytes as hex digits",
            "properties": {"value": {"type": "array", "items": {"type": number}}, "bits": {"type": "string"}},
        }
    )


def _topic(name: str) -> str:
    return "/" + _printable(name).replace(".", "/", 1)


def _printable(text: str) -> str:
    """Replace what is no text to UTF-8: names come from guests."""
    return text.encode("utf-8", "backslashreplace").decode()
