"""Recordings in the formats that robots are recorded in."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcap.writer import Writer
from microsim_vm.episode import Column
from microsim_vm.errors import RecordingError
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as BagWriter
from rosbags.typesys import Stores, get_typestore

from pytest_microsim.trajectories.mcap import write_episode
from pytest_microsim.trajectories.recordings import Recording

STORE = get_typestore(Stores.ROS2_HUMBLE)
TWIST = "geometry_msgs/msg/Twist"
STAMPED = "geometry_msgs/msg/TwistStamped"
START_NS = 1_700_000_000_123_456_789


def twist(forward: float, turn: float) -> Any:
    vector = STORE.types["geometry_msgs/msg/Vector3"]
    return STORE.types[TWIST](linear=vector(forward, 0.0, 0.0), angular=vector(0.0, 0.0, turn))


def cdr(message: Any, kind: str = TWIST) -> bytes:
    return bytes(STORE.serialize_cdr(message, kind))


def definition(kind: str) -> bytes:
    text, _ = STORE.generate_msgdef(kind, ros_version=2)
    return text.encode()


def mcap(path: Path, *topics: tuple[str, str, str, list[tuple[int, bytes]]]) -> Path:
    """Write an MCAP file of (topic, type, encoding, [(ns, data)])."""
    with path.open("wb") as stream:
        writer = Writer(stream)
        writer.start()
        for topic, kind, encoding, messages in topics:
            schema = writer.register_schema(kind, "ros2msg" if encoding == "cdr" else "jsonschema",
                                            definition(kind) if encoding == "cdr" else b"{}")  # fmt: skip
            channel = writer.register_channel(topic, encoding, schema)
            for moment, data in messages:
                writer.add_message(channel, log_time=moment, data=data, publish_time=moment)
        writer.finish()
    return path


def rows_of(recording: Recording) -> list[Any]:
    return recording.columns["action"].tolist()


NUMBERS = st.integers(-(10**17), 10**17) | st.floats(allow_nan=False, allow_infinity=False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=20))
def test_every_number_of_a_csv_comes_out_as_it_was(tmp_path: Path, rows: list[tuple[float, float]]) -> None:
    file = tmp_path / "a.csv"
    file.write_text("time, left ,right\n" + "".join(f"{n * 0.1},{a!r},{b!r}\n" for n, (a, b) in enumerate(rows)))
    read = Recording.open(file)
    assert (read.by, len(read), read.times[0]) == ("time", len(rows), 0.0)
    assert read.columns["action"].dtype == ("<i8" if all(type(n) is int for row in rows for n in row) else "<f8")
    assert rows_of(read) == [list(map(float, row)) for row in rows]


def test_columns_times_and_units_of_a_table_are_chosen(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("\ufeffstamp,left,right,note\n1700000000000000000,1,2,x\n\n1700000000250000000,3,4,y\n")
    read = Recording.open(file, field=["right", "left"], time="stamp", time_unit="ns", step_seconds=0.1)
    assert (read.times, rows_of(read), read.step_seconds) == ([0.0, 0.25], [[2, 1], [4, 3]], 0.1)
    alone = Recording.open(file, field="left", by="step")
    assert (alone.by, alone.columns["action"].shape, rows_of(alone)) == ("step", (2,), [1, 3])
    file.write_text("gas\n0\n1\n")
    assert rows_of(Recording.open(file, by="step")) == [0, 1]
    assert rows_of(Recording.open(file.rename(tmp_path / "A.CSV"), by="step")) == [0, 1]
    file.write_text("0\n0\n1\n")
    assert rows_of(Recording.open(file, by="step", field="0")) == [0, 1]
    file.write_text("time,gas\n0,0\n1,1\n")
    assert Recording.open(file, hold="linear").columns["action"].dtype == "<f8"


@pytest.mark.parametrize(
    ("text", "how", "words"),
    [
        ("", {}, "a.csv is empty"),
        ("time,gas\n", {}, "not one action"),
        (f"time,gas\n0,{'9' * 400}\n", {}, "a.csv:2: inf is no number"),
        ("time,gas\n0,1\n1,nan\n", {}, "a.csv:3: nan is no number that a world can be driven with"),
        ("time,gas\n0,1\n1,\n", {}, "a.csv:3: '' is no number"),
        ("time,gas\n0,1\n1,2,3\n", {}, "a.csv:3: 3 values, and the first line names 2"),
        ("time,gas\n0,1\n0,2\n", {}, "row 1 is 0 s after row 0"),
        ("t,gas\n0,1\n", {}, "no column 'time' of times, but 't', 'gas'"),
        ("time,gas\n0,1\n", {"field": "brake"}, "no column 'brake', but 'time', 'gas'"),
        ("time,time\n0,1\n", {}, "several columns of one name: 'time'"),
        ("time\n0\n", {}, "no column for an action"),
        ('time,gas\n0,"1\n', {}, "cannot be read"),
        ("time,gas\n0,1\n", {"time_unit": "min"}, "time_unit is one of s, ms, us, ns"),
        ("time,gas\n0,1\n", {"by": "row"}, "by is one of time, step, not 'row'"),
        ("time,gas\n0,1\n", {"topic": "/gas"}, "a.csv is a table, and has no topic '/gas'"),
        ("time,gas\n0,1\n", {"step_seconds": True}, "step_seconds is a number of seconds"),
        ("0.5\n1\n", {"by": "step"}, "a.csv:1: the first line has numbers, and no names of columns"),
    ],
)
def test_what_is_wrong_with_a_csv_is_said_with_file_and_line(
    tmp_path: Path, text: str, how: dict[str, Any], words: str
) -> None:
    file = tmp_path / "a.csv"
    file.write_text(text)
    with pytest.raises(RecordingError) as caught:
        Recording.open(file, **how)
    assert words in str(caught.value)


def test_parquet(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    moments = pa.array([START_NS, START_NS + 20_000_000], pa.timestamp("ns"))
    pa.parquet.write_table(
        pa.table({"time": moments, "action": pa.array([[1.0, 2.5], [3.0, 4.0]]), "on": pa.array([True, False])}), file
    )
    read = Recording.open(file, field="action")
    assert (read.times, rows_of(read)) == ([0.0, 0.02], [[1.0, 2.5], [3.0, 4.0]])
    assert rows_of(Recording.open(file, field=["on", "action"])) == [[1.0, 1.0, 2.5], [0.0, 3.0, 4.0]]
    pa.parquet.write_table(pa.table({"time": [0.0, 1.0], "gas": [1.0, None]}), file)
    with pytest.raises(RecordingError, match=r"a\.parquet: row 1: 'None' is no number"):
        Recording.open(file)
    file.write_bytes(b"PAR1")
    with pytest.raises(RecordingError, match="cannot be read"):
        Recording.open(file)


def test_messages_of_ros_in_mcap(tmp_path: Path) -> None:
    sent = [(START_NS + n * 50_000_000, cdr(twist(0.1 * n, -n))) for n in range(3)]
    file = mcap(tmp_path / "a.mcap", ("/cmd_vel", TWIST, "cdr", sent), ("/other", TWIST, "cdr", sent))
    read = Recording.open(file, topic="/cmd_vel", field=["linear.x", "angular.z"])
    assert read.times == pytest.approx([0.0, 0.05, 0.1], abs=1e-15)
    assert rows_of(read) == [[0.1 * n, float(-n)] for n in range(3)]


def test_a_definition_that_is_none_is_said_so(tmp_path: Path) -> None:
    file = tmp_path / "a.mcap"
    with file.open("wb") as stream:
        writer = Writer(stream)
        writer.start()
        channel = writer.register_channel("/a", "cdr", writer.register_schema("a/msg/B", "ros2msg", b"int32 x y\n==="))
        writer.add_message(channel, log_time=0, data=b"", publish_time=0)
        writer.finish()
    with pytest.raises(RecordingError, match=r"the definition of a/msg/B in \S+ cannot be read"):
        Recording.open(file)


def test_messages_are_placed_by_their_own_stamps_where_that_is_asked_for(tmp_path: Path) -> None:
    time, header = STORE.types["builtin_interfaces/msg/Time"], STORE.types["std_msgs/msg/Header"]
    sent = [
        (START_NS + n, cdr(STORE.types[STAMPED](header=header(time(100, 500 * n), "base"), twist=twist(n, 0)), STAMPED))
        for n in range(2)
    ]
    file = mcap(tmp_path / "a.mcap", ("/cmd", STAMPED, "cdr", sent))
    read = Recording.open(file, field="twist.linear.x", time="header.stamp")
    assert (read.times, rows_of(read)) == ([0.0, 5e-7], [0.0, 1.0])


def test_messages_of_json_in_mcap(tmp_path: Path) -> None:
    sent = [(n * 10**9, json.dumps({"at": n * 0.5, "wheels": [n, -n], "on": True}).encode()) for n in range(2)]
    file = mcap(tmp_path / "a.mcap", ("wheels", "Wheels", "json", sent))
    assert rows_of(Recording.open(file, field="wheels")) == [[0, 0], [1, -1]]
    assert rows_of(Recording.open(file, field="wheels.1")) == [0, -1]
    assert Recording.open(file, field="wheels", time="at").times == [0.0, 0.5]
    mcap(file, ("wheels", "Wheels", "json", [(n, f'{{"at": {n + 1}{"0" * 400}, "x": 1}}'.encode()) for n in range(2)]))
    with pytest.raises(RecordingError, match="out of all range"):
        Recording.open(file, field="x", time="at")
    with pytest.raises(RecordingError, match=r"no field 'x\.²'"):
        Recording.open(file, field="x.²")
    mcap(file, ("wheels", "Wheels", "json", [(n, b"[1, 2]") for n in range(2)]))
    with pytest.raises(RecordingError, match=r"has no fields, but is '\[1, 2\]'"):
        Recording.open(file)
    assert rows_of(Recording.open(file, field=["1", "0"])) == [[2, 1], [2, 1]]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({}, "message 0 of /a in {file} has several fields: 'x', 'text'"),
        ({"field": "y"}, "message 0 of /a in {file} has no field 'y'"),
        ({"field": "text"}, "message 0 of /a in {file}: the field 'text' is 'hm', and no number"),
        ({"field": "x"}, "message 1 of /a in {file}"),
        ({"topic": "/b", "field": "x"}, "has no topic '/b', but '/a'"),
    ],
)
def test_what_is_wrong_with_messages_is_said_with_file_and_message(
    tmp_path: Path, how: dict[str, Any], words: str
) -> None:
    sent = [(n, json.dumps({"x": n, "text": "hm"}).encode()) for n in range(2)]
    file = mcap(tmp_path / "a.mcap", ("/a", "A", "json", [sent[0], (1, b'{"x": ' + b"9" * 5000 + b', "text": ""}')]))
    with pytest.raises(RecordingError) as caught:
        Recording.open(file, **how)
    assert words.format(file=file) in str(caught.value)


@pytest.mark.parametrize("storage", [StoragePlugin.SQLITE3, StoragePlugin.MCAP])
def test_rosbag2(tmp_path: Path, storage: StoragePlugin) -> None:
    bag = tmp_path / "bag"
    with BagWriter(bag, version=9, storage_plugin=storage) as writer:
        connection = writer.add_connection("/cmd_vel", TWIST, typestore=STORE)
        for n in range(3):
            writer.write(connection, START_NS + n * 10**9, cdr(twist(n, 0.5)))
    read = Recording.open(bag, topic="/cmd_vel", field=["linear.x", "angular.z"])
    assert (read.times, rows_of(read)) == ([0.0, 1.0, 2.0], [[0.0, 0.5], [1.0, 0.5], [2.0, 0.5]])
    with pytest.raises(RecordingError, match="has no topic '/odom', but '/cmd_vel'"):
        Recording.open(bag, topic="/odom")


def test_an_episodes_file_needs_nothing_said_and_keeps_every_bit(tmp_path: Path) -> None:
    action = Column("action", "<f4", (2, 1), b"\x01\x02\x03\x04\x05\x06\x07\x08")
    columns = {"action": action, "observation": Column("observation", "<i8", (3,), bytes(24)),
               "reward": Column("reward", "<f8", (2,), bytes(16))}  # fmt: skip
    file = tmp_path / "e.mcap"
    write_episode(file, columns, step_s=0.02, metadata={})
    assert Recording.open(file) == Recording(str(file), {"action": action})
    timed = Recording.open(file, by="time")
    assert (timed.by, timed.times) == ("time", [0.0, 0.02])
    write_episode(file, columns, step_s=None, metadata={})
    assert Recording.open(file).columns == {"action": action}
    with pytest.raises(RecordingError, match="tells no time"):
        Recording.open(file, by="time")
    with pytest.raises(RecordingError, match="taken whole"):
        Recording.open(file, field="action")
    write_episode(file, {**columns, "action": Column("action", "<i8", (2,), bytes(16))}, step_s=0.02, metadata={})
    with pytest.raises(RecordingError, match="whole numbers, with nothing between"):
        Recording.open(file, by="time", hold="linear")


@pytest.mark.parametrize("name", ["a.mcap", "a.db3", "a.txt", "bag"])
def test_what_is_no_recording_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordingError, match="there is no recording"):
        Recording.open(tmp_path / name)
    (tmp_path / name).write_bytes(b"\x89MCAP0\r\nxx" if name == "a.mcap" else b"xx")
    with pytest.raises(RecordingError, match="cannot be read"):
        Recording.open(tmp_path / name)


def test_what_is_not_installed_is_said_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = mcap(tmp_path / "a.mcap", ("/cmd", TWIST, "cdr", [(0, cdr(twist(0, 0)))]))
    (tmp_path / "bag").mkdir()
    (tmp_path / "a.parquet").write_bytes(b"")
    for module in ("pyarrow", "rosbags.typesys", "rosbags.rosbag2"):
        monkeypatch.setitem(sys.modules, module, None)
    for path in (file, tmp_path / "bag", tmp_path / "a.parquet"):
        with pytest.raises(RecordingError, match="which is not installed") as caught:
            Recording.open(path)
        assert "pip install 'pytest-microsim[recordings]'" in str(caught.value)


def test_infinity_is_no_action(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f"time,gas\n0,{math.inf}\n")
    with pytest.raises(RecordingError, match=r"a\.csv:2: inf"):
        Recording.open(file)
