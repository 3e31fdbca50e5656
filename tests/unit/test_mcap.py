import json
import math
import struct
from pathlib import Path

import mcap.reader
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from microsim_vm.episode import Column

from pytest_microsim.errors import TrajectoryError
from pytest_microsim.trajectories.mcap import read_episode, write_episode

NAN = struct.pack("<Q", 0x7FF8_0000_DEAD_BEEF)
KINDS = {"<f8": 8, "<f4": 4, "<i8": 8, "<i4": 4, "<i2": 2, "|i1": 1, "<u8": 8, "<u4": 4, "<u2": 2, "|u1": 1, "|b1": 1}


def episode(steps: int = 3) -> dict[str, Column]:
    floats = struct.pack(f"<{2 * steps + 2}f", *range(2 * steps + 2))
    return {
        "observation": Column("observation", "<f4", (steps + 1, 2), floats),
        "action": Column("action", "<i8", (steps,), struct.pack(f"<{steps}q", *[2**62 + 1] * steps)),
        "reward": Column("reward", "<f8", (steps,), struct.pack("<dd", -0.0, math.inf) + NAN),
        "state": Column("state", "<f8", (steps + 1, 0), b""),
    }  # fmt: skip


def test_every_bit_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    write_episode(path, episode(), step_s=0.05, metadata={"seed": "3", "fingerprint": "ab"})
    columns, metadata = read_episode(path)
    assert columns == episode()
    assert metadata == {"seed": "3", "fingerprint": "ab", "time": "seconds", "step_s": "0.05"}
    assert [each.name for each in tmp_path.iterdir()] == ["a.mcap"]


@given(
    st.sampled_from(sorted(KINDS)).flatmap(
        lambda kind: st.tuples(
            st.just(kind), st.lists(st.binary(min_size=2 * KINDS[kind], max_size=2 * KINDS[kind]), max_size=4)
        )
    )
)
@settings(max_examples=200)
def test_any_bytes_of_any_type_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[str, list[bytes]]
) -> None:
    kind, rows = case
    column = Column("observation.a.b", kind, (len(rows), 2), b"".join(rows))
    path = tmp_path_factory.getbasetemp() / "any.mcap"
    write_episode(path, {column.name: column}, step_s=None, metadata={})
    assert read_episode(path) == ({column.name: column}, {"time": "steps"})


def test_a_type_that_python_has_no_code_for_keeps_its_bytes(tmp_path: Path) -> None:
    column = Column("state", "<f2", (2, 2), b"\x00\x3c\x00\x40\x00\x42\x00\x44")
    write_episode(tmp_path / "h.mcap", {"state": column}, step_s=1.0, metadata={})
    assert read_episode(tmp_path / "h.mcap")[0] == {"state": column}


def test_the_same_episode_gives_the_same_bytes(tmp_path: Path) -> None:
    columns = episode()
    write_episode(tmp_path / "a", columns, step_s=0.05, metadata={"a": "1", "b": "2"})
    write_episode(tmp_path / "b", dict(reversed(columns.items())), step_s=0.05, metadata={"b": "2", "a": "1"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_viewer_finds_topics_times_and_schemas(tmp_path: Path) -> None:
    write_episode(tmp_path / "a.mcap", episode(), step_s=0.05, metadata={})
    with (tmp_path / "a.mcap").open("rb") as stream:
        reader = mcap.reader.make_reader(stream)
        seen = [
            (channel.topic, message.log_time, json.loads(message.data))
            for _, channel, message in reader.iter_messages()
        ]
        summary = reader.get_summary()
    assert summary is not None
    assert {channel.topic for channel in summary.channels.values()} == {"/action", "/observation", "/reward", "/state"}
    assert [time for topic, time, _ in seen if topic == "/observation"] == [0, 50_000_000, 100_000_000, 150_000_000]
    assert [time for topic, time, _ in seen if topic == "/reward"] == [50_000_000, 100_000_000, 150_000_000]
    assert [time for _, time, _ in seen] == sorted(time for _, time, _ in seen)
    assert ("/observation", 50_000_000, {"value": [2.0, 3.0]}) in seen
    assert ("/reward", 150_000_000, {"value": [None], "bits": NAN.hex()}) in seen
    schemas = {schema.name: (schema.encoding, json.loads(schema.data)) for schema in summary.schemas.values()}
    assert schemas["action"][0] == "jsonschema"
    assert schemas["action"][1]["properties"]["value"] == {"type": "array", "items": {"type": "integer"}}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-20],
        lambda data: data[:200] + b"\xff" * 40 + data[240:],
        lambda data: b"no mcap" * 40,
    ],
)
def test_a_damaged_file_is_an_error_of_ours(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "a.mcap"
    write_episode(path, episode(), step_s=0.05, metadata={"seed": "3"})
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(TrajectoryError, match=r"a\.mcap is no episode"):
        read_episode(path)


def test_names_that_are_no_text_are_written_all_the_same(tmp_path: Path) -> None:
    column = Column("observation.\udc80", "|u1", (1,), b"\x07")
    write_episode(tmp_path / "a.mcap", {column.name: column}, step_s=None, metadata={"test": "\udcff"})
    columns, metadata = read_episode(tmp_path / "a.mcap")
    assert list(columns) == ["observation.\\udc80"]
    assert metadata["test"] == "\\udcff"
