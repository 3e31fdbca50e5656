"""Recorded messages on their way into a guest, and when the guest's player sends each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcap.writer import Writer
from microsim_guest import player
from microsim_vm.errors import RecordingError

from pytest_microsim.rollout import Rollout
from pytest_microsim.trajectories.playing import Messages, Playing

TWIST = "geometry_msgs/msg/Twist"


def recorded(path: Path, *messages: tuple[str, int, bytes], encoding: str = "cdr") -> Path:
    with path.open("wb") as stream:
        writer = Writer(stream)
        writer.start()
        channels: dict[str, int] = {}
        for topic, logged_ns, data in messages:
            if topic not in channels:
                channels[topic] = writer.register_channel(
                    topic, encoding, writer.register_schema(TWIST, "ros2msg", b"")
                )
            writer.add_message(channels[topic], log_time=logged_ns, data=data, publish_time=logged_ns)
        writer.finish()
    return path


def test_chosen_topics_travel_in_order_under_the_worlds_names(tmp_path: Path) -> None:
    file = recorded(tmp_path / "a.mcap", ("/a", 1007, b"one"), ("/b", 1020, b""), ("/c", 1, b"x"), ("/a", 1010, b"two"))
    header, messages = player.unpacked(Messages.open(file, {"/b": "/b", "/a": "/robot/a"}, "/odom").packed)
    assert header["topics"] == [{"name": "/b", "type": TWIST}, {"name": "/robot/a", "type": TWIST}]
    assert header["clock"] == "/odom"
    assert [tuple(message) for message in messages] == [(0, 1, b"one"), (3, 1, b"two"), (13, 0, b"")]


@pytest.mark.parametrize(
    ("topics", "encoding", "words"),
    [
        (["/z"], "cdr", "has no topic '/z', but '/a'"),
        ("/a", "cdr", "topics is a list of the recorded topics"),
        ([], "cdr", "topics is a list of the recorded topics"),
        (["/a"], "json", "/a has no messages of ROS 2, but json"),
    ],
)
def test_what_cannot_be_played_is_refused(tmp_path: Path, topics: Any, encoding: str, words: str) -> None:
    file = recorded(tmp_path / "a.mcap", ("/a", 0, b"{}"), encoding=encoding)
    with pytest.raises(RecordingError) as caught:
        Messages.open(file, topics)
    assert words in str(caught.value)


def test_a_message_that_comes_after_centuries_is_refused(tmp_path: Path) -> None:
    file = recorded(tmp_path / "a.mcap", ("/a", 0, b"one"), ("/a", (1 << 64) - 1, b"two"))
    with pytest.raises(RecordingError, match=r"a message of /a is 1\.84467e\+10 s after the first one"):
        Messages.open(file, ["/a"])


def test_a_recording_that_is_not_there_is_reported_with_the_places_looked_at(tmp_path: Path) -> None:
    rollout = Rollout(None, seed=1, world="w", controller_folders=[tmp_path])  # type: ignore[arg-type]
    with pytest.raises(RecordingError, match=r"there is no recording 'a\.mcap'"):
        rollout.play("a.mcap", ["/a"])
    assert rollout.controllers == []


def sent(due: list[int], told: list[int], *, again: bool = False) -> tuple[list[int], bool]:
    order: list[int] = []
    messages = [player.Due(each, 0, b"") for each in due]
    schedule = player.Schedule(messages, lambda message: order.append(message.due_ns), again)
    for now in told:
        schedule.at(now)
    return order, schedule.over


def test_messages_are_sent_once_they_are_due_from_the_first_time_told() -> None:
    assert sent([0, 5, 10, 10], [1000]) == ([0], False)
    assert sent([0, 5, 10, 10], [1000, 1004, 1009, 1009, 1010]) == ([0, 5, 10, 10], True)
    assert sent([0, 5], [1000, 7]) == ([0], False)  # a clock that was set back


def test_a_stamp_that_comes_again_asks_again() -> None:
    assert sent([0, 5], [50, 50, 55, 55, 56], again=True) == ([0, 0, 5, 5], True)


@given(st.lists(st.integers(0, 100), min_size=1), st.lists(st.integers(0, 300), min_size=1))
def test_whatever_the_clock_tells_each_is_sent_once_and_in_order(due: list[int], told: list[int]) -> None:
    due.sort()
    order, over = sent(due, [told[0], *told, told[0] + 100])
    assert (order, over) == (due, True)


class Node:
    """Knows who publishes what."""

    def __init__(self, *topics: str) -> None:
        self.topics = topics

    def count_publishers(self, topic: str) -> int:
        return self.topics.count(topic)

    def spin_once(self, node: Any, timeout_sec: float) -> None:
        pass


def clock_of(node: Node, asked: str) -> str:
    made: Any = object.__new__(player.Player)
    made._node, made._ros, made._patience_s = node, node, 0.0
    clock: str = made._find_clock(asked)
    return clock


def test_the_clock_is_the_worlds_where_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player, "LOOK_S", 0.0)
    assert clock_of(Node("/clock", "/odom"), "auto") == "/clock"
    assert clock_of(Node("/odom"), "auto") == "monotonic"
    assert clock_of(Node("/clock"), "monotonic") == "monotonic"
    assert clock_of(Node("/clock", "/odom"), "/odom") == "/odom"
    with pytest.raises(player.CannotPlay, match="no node of the world tells the time on /odom"):
        clock_of(Node("/clock"), "/odom")


class Machine:
    """Runs no player, but says what one would."""

    def __init__(self, *said: str) -> None:
        self.said = said

    def exec_stream(self, command: list[str], *, on_stdout: Any, **how: Any) -> Any:
        for text in self.said:
            on_stdout(text)
        return type("Result", (), {"timed_out": "late" in how["stdin"].decode(), "stderr": "trace"})


def test_what_the_player_says_is_taken_apart_whatever_its_pieces() -> None:
    machine: Any = Machine('noise\n{"ready": 7, ', '"clock": "/clock"}\n', '{"played": {"/a": 3}}\n')
    playing = Playing(machine, Messages("a.mcap", b""), 5.0)
    assert (playing.clock, playing.wait()) == ("/clock", {"/a": 3})


@pytest.mark.parametrize(
    ("packed", "said", "words"),
    [
        (b"", '{"error": "no node listens"}\n', "a.mcap cannot be played: no node listens"),
        (b"", "", "a.mcap could not be played"),
        (b"late", "", "a.mcap was still being played after 5 s"),
        (b"", '{"ready": "x", "clock": 1}\n', "play: the guest's answer is malformed"),
        (b"", "{]\n", "play: the guest's answer is malformed"),
    ],
)
def test_a_player_that_fails_fails_the_call(packed: bytes, said: str, words: str) -> None:
    machine: Any = Machine(said)
    with pytest.raises(Exception, match="play") as caught:
        Playing(machine, Messages("a.mcap", packed), 5.0)
    assert words in str(caught.value)
