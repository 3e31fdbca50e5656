"""Recordings that are messages: MCAP files by mcap, and rosbag2 by rosbags, which also reads what ROS 2 serialized."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from microsim_vm.errors import MicrosimError, RecordingError

from .rows import INSTALL, Number, Rows, Timeline, names_of

SHOWN = 40  # fields that an error lists


class Topic(NamedTuple):
    """What is recorded of a topic.

    Attributes:
        name: Its name.
        type: Of its messages, such as "geometry_msgs/msg/Twist".
        encoding: "cdr" (ROS 2), "json", or one that is not read.
        definition: The type's definition and of all that it is made of, where the recording has it.
        dialect: Of the definition: "ros2msg" or "ros2idl".
    """

    name: str
    type: str
    encoding: str
    definition: str
    dialect: str


class Message(NamedTuple):
    """One recorded message.

    Attributes:
        topic: Its topic.
        logged_ns: When it was recorded, in nanoseconds of the recording's clock.
        data: As it was sent.
    """

    topic: Topic
    logged_ns: int
    data: bytes


def is_episode(file: Path) -> bool:
    """Tell whether an MCAP file is an episode that this project wrote.

    Raises:
        RecordingError: It is no MCAP file.
    """
    from mcap.reader import make_reader

    from .mcap import RECORD

    with _reading(file), file.open("rb") as stream:
        return any(record.name == RECORD for record in make_reader(stream).iter_metadata())


def messages(path: Path, topics: Collection[str]) -> Iterator[Message]:
    """Return the recorded messages of topics, in the order of the times at which they were logged.

    Args:
        path: An MCAP file, a rosbag2's folder, or its .db3 file.
        topics: Their names; none for all.

    Raises:
        RecordingError: It cannot be read, or a topic is not in it.
    """
    with _reading(path):
        yield from _of_mcap(path, topics) if path.suffix.lower() == ".mcap" else _of_rosbag(path, topics)


def read(path: Path, topic: str | None, fields: Sequence[str] | None, time: str | None) -> Timeline:
    """Read the numbers of one topic's messages.

    Args:
        path: As for :func:`messages`.
        topic: The topic; None where there is but one.
        fields: Where in a message the action's numbers are; None for a message that has but one field.
        time: Where its time is; None for when it was logged.

    Raises:
        RecordingError: It cannot be used.
    """
    moments: list[Number] = []
    unit: str | None = "ns"
    rows: Rows | None = None
    decode: Callable[[bytes], Any] | None = None
    for count, message in enumerate(messages(path, [] if topic is None else [topic])):
        where = f"message {count} of {message.topic.name} in {path}"
        if topic is None:
            topic = message.topic.name
        if message.topic.name != topic:
            raise RecordingError(f"{path} has several topics: {topic}, {message.topic.name}, ...",
                                 hint="choose one with topic=...")  # fmt: skip
        if decode is None:
            decode = _decoder(path, message.topic)
        with _at(where):
            whole = decode(message.data)
        chosen = fields or _only_field(where, whole)
        parts = [_numbers(where, name, _field(where, whole, name)) for name in chosen]
        if rows is None:
            rows = Rows(str(path), scalar=len(parts) == 1 and not isinstance(parts[0], list))
        rows.append([number for part in parts for number in (part if isinstance(part, list) else [part])], where)
        if time is None:
            moments.append(message.logged_ns)
        else:
            moment, unit = _moment(where, time, _field(where, whole, time))
            moments.append(moment)
    if rows is None:
        raise RecordingError(f"{path} has no message" + (f" of {topic}" if topic else ""))
    return Timeline(moments, unit, rows)


def _of_mcap(path: Path, topics: Collection[str]) -> Iterator[Message]:
    from mcap.reader import make_reader

    with path.open("rb") as stream:
        reader = make_reader(stream)
        summary = reader.get_summary()
        if summary is not None:
            _require(path, topics, {channel.topic for channel in summary.channels.values()})
        known: dict[int, Topic] = {}
        for schema, channel, message in reader.iter_messages(topics=list(topics) or None):
            if channel.id not in known:
                text = b"" if schema is None else schema.data
                known[channel.id] = Topic(
                    channel.topic, "" if schema is None else schema.name, channel.message_encoding,
                    text.decode("utf-8", "replace"), "" if schema is None else schema.encoding,
                )  # fmt: skip
            yield Message(known[channel.id], message.log_time, message.data)


def _of_rosbag(path: Path, topics: Collection[str]) -> Iterator[Message]:
    try:
        from rosbags.interfaces import MessageDefinitionFormat
        from rosbags.rosbag2 import Reader
    except ImportError:
        raise RecordingError(f"{path}: a rosbag2 is read by rosbags, which is not installed", hint=INSTALL) from None
    dialects = {MessageDefinitionFormat.MSG: "ros2msg", MessageDefinitionFormat.IDL: "ros2idl"}
    with Reader(path) as reader:
        _require(path, topics, {connection.topic for connection in reader.connections})
        chosen = {
            connection.id: Topic(
                connection.topic, connection.msgtype, "cdr",
                connection.msgdef.data, dialects.get(connection.msgdef.format, ""),
            )
            for connection in reader.connections if not topics or connection.topic in topics
        }  # fmt: skip
        wanted = [connection for connection in reader.connections if connection.id in chosen]
        for connection, logged_ns, data in reader.messages(wanted):
            yield Message(chosen[connection.id], logged_ns, bytes(data))


def _require(path: Path, topics: Collection[str], there: Collection[str]) -> None:
    for topic in topics:
        if topic not in there:
            raise RecordingError(f"{path} has no topic {topic!r}, but {names_of(sorted(there))}")


def _decoder(path: Path, topic: Topic) -> Callable[[bytes], Any]:
    """Return what makes an object of a message's bytes."""
    if topic.encoding == "json":
        return msgspec.json.Decoder().decode
    if topic.encoding != "cdr":
        raise RecordingError(f"{path}: messages of {topic.name} are encoded as {topic.encoding!r}",
                             hint="cdr, as ROS 2 has it, and json are read")  # fmt: skip
    try:
        from rosbags.typesys import Stores, get_types_from_msg, get_typestore
    except ImportError:
        raise RecordingError(f"{path}: messages of ROS 2 are read by rosbags, which is not installed",
                             hint=INSTALL) from None  # fmt: skip
    if topic.dialect == "ros2msg" and topic.definition:
        store = get_typestore(Stores.EMPTY)
        with _at(f"the definition of {topic.type} in {path}"):
            store.register(get_types_from_msg(topic.definition, topic.type))
    else:  # without a definition that is read, what the last release of ROS 2 has under that name
        store = get_typestore(Stores.LATEST)
    if topic.type not in store.fielddefs:
        raise RecordingError(f"{path} does not define {topic.type}, the type of {topic.name}")
    return lambda data: store.deserialize_cdr(data, topic.type)


def _only_field(where: str, message: Any) -> list[str]:
    names = _names(message)
    if len(names) == 1:
        return names
    if not names:
        raise RecordingError(f"{where} has no fields, but is {str(message)[:80]!r}",
                             hint="of a list, choose what is in it by number: field=['0', '1']")  # fmt: skip
    known = names_of(names[:SHOWN])
    raise RecordingError(f"{where} has several fields: {known}", hint="choose the action's with field=[...], in order")


def _names(message: Any) -> list[str]:
    if isinstance(message, dict):
        return list(message)
    return [name for name in getattr(message, "__dataclass_fields__", {}) if not name.startswith("__")]


def _field(where: str, message: Any, path: str) -> Any:
    """Return what a path with dots leads to; a number in it is an index."""
    part = message
    for name in path.split("."):
        if isinstance(part, dict) and name in part:
            part = part[name]
        elif name in _names(part):
            part = getattr(part, name)
        elif name.isdecimal() and hasattr(part, "__getitem__") and not isinstance(part, dict) and int(name) < len(part):
            part = part[int(name)]
        else:
            there = names_of(_names(part)[:SHOWN])
            raise RecordingError(f"{where} has no field {path!r}", cause=f"instead of {name!r} there is {there}")
    return part


def _numbers(where: str, name: str, value: Any) -> Number | list[Number]:
    """Return a number, or a flat list of them."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        nested = [_numbers(where, name, item) for item in value]
        return [number for part in nested for number in (part if isinstance(part, list) else [part])]
    if isinstance(value, int | float):
        return int(value) if isinstance(value, bool) else value
    raise RecordingError(f"{where}: the field {name!r} is {str(value)[:80]!r}, and no number")


def _moment(where: str, name: str, value: Any) -> tuple[Number, str | None]:
    """Return a time, and its unit where it has one: a stamp of ROS is whole seconds and nanoseconds."""
    seconds, rest = (_part(value, names) for names in (("sec", "secs"), ("nanosec", "nsec", "nsecs")))
    if isinstance(seconds, int) and isinstance(rest, int):
        return seconds * 10**9 + rest, "ns"
    number = _numbers(where, name, value)
    if isinstance(number, list):
        raise RecordingError(f"{where}: the time {name!r} is a list")
    return number, None


def _part(value: Any, names: Sequence[str]) -> Any:
    for name in names:
        found = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
        if found is not None:
            return found
    return None


@contextlib.contextmanager
def _at(where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the libraries' errors have no common root
        raise RecordingError(f"{where} cannot be read: {type(error).__name__}: {error}") from None


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (MicrosimError, MemoryError):
        raise
    except Exception as error:
        raise RecordingError(
            f"{path} cannot be read: {type(error).__name__}: {error}",
            cause="it was cut short, is damaged, or is of another format",
            hint="a recording is .csv, .parquet, .mcap, or a rosbag2: its folder or its .db3",
        ) from None
