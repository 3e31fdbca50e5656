"""Plays recorded messages of ROS 2 to the nodes of a guest, with the rclpy that the world itself has.

The host starts it. Standard input is one frame: its header has ``topics`` (name and type each), ``clock`` ("auto",
"monotonic" or a topic) and ``patience_s``; its attachments are an index (when each message is due in nanoseconds since
the first, which topic it is of, its length) and the messages. Standard output is lines of JSON: ``ready`` (the process
to signal) with ``clock`` (what tells the time), then ``played`` (how many, by topic); or ``error``.
"""

import array
import importlib
import json
import os
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional

from microsim_guest import wire

CLOCK = "/clock"
MONOTONIC = "monotonic"
LOOK_S = 1.0  # how long /clock is looked for, once the listeners have been found
SETTLE_S = 0.5  # nodes do not find each other at the same moment
ACKNOWLEDGED_S = 5.0
SPIN_S = 0.05
DEPTH = 1000  # messages that a slow listener may be behind


class CannotPlay(Exception):
    """The recording cannot be played in this guest; the text says why."""


class Due(NamedTuple):
    """One message: when, on which topic, and its bytes."""

    due_ns: int
    topic: int
    data: bytes


def unpacked(raw: bytes) -> "tuple[Dict[str, Any], List[Due]]":
    """Take the host's frame apart."""
    header_size, _ = wire.parse_prefix(raw[: wire.PREFIX.size])
    start = wire.PREFIX.size + header_size
    frame = wire.decode(raw[wire.PREFIX.size : start], raw[start:])
    index, data = array.array("q", frame.blobs[0]), frame.blobs[1]
    if sys.byteorder == "big":
        index.byteswap()
    messages: List[Due] = []
    at = 0
    for due_ns, topic, size in zip(index[0::3], index[1::3], index[2::3]):  # noqa: B905 (Python 3.8)
        messages.append(Due(due_ns, topic, data[at : at + size]))
        at += size
    return frame.header, messages


class Schedule:
    """Which messages are due, as time goes on.

    Args:
        messages: In order.
        send: Takes each when it is due.
        again: A time that comes again asks again for each topic's last message.
    """

    def __init__(self, messages: List[Due], send: Any, again: bool) -> None:
        self._messages = messages
        self._send = send
        self._again = again
        self._next = 0
        self._began_ns: Optional[int] = None
        self._now_ns: Optional[int] = None
        self._last: Dict[int, Due] = {}

    @property
    def over(self) -> bool:
        """All have been sent."""
        return self._next == len(self._messages)

    def at(self, now_ns: int) -> None:
        """Send what is due; the first time that is told is when the recording begins."""
        if self._began_ns is None:
            self._began_ns = now_ns
        if self._again and now_ns == self._now_ns:
            for message in self._last.values():
                self._send(message)
        self._now_ns = now_ns
        while not self.over and self._messages[self._next].due_ns <= now_ns - self._began_ns:
            message = self._messages[self._next]
            self._next += 1
            self._last[message.topic] = message
            self._send(message)


class Player:
    """The node that plays.

    Args:
        ros: The module rclpy.
        header: Of the host's frame.
        messages: All of them, in order.
    """

    def __init__(self, ros: Any, header: Dict[str, Any], messages: List[Due]) -> None:
        self._ros = ros
        self._qos: Any = importlib.import_module("rclpy.qos")
        self._patience_s: float = header["patience_s"]
        self._node = ros.create_node("microsim_player")
        self._topics: List[Dict[str, str]] = header["topics"]
        # Whoever asks for less takes it too: listeners that keep what came before them, and those that do not.
        kept = self._qos.QoSProfile(depth=DEPTH, durability=self._qos.DurabilityPolicy.TRANSIENT_LOCAL)
        self._publishers = [
            self._node.create_publisher(type_of(topic["type"]), topic["name"], kept) for topic in self._topics
        ]
        self._counts = [0] * len(self._topics)
        self._messages = messages
        self._find_listeners()
        self.clock = self._find_clock(header["clock"])
        self._schedule = Schedule(messages, self._send, again=self.clock not in (CLOCK, MONOTONIC))
        if self.clock != MONOTONIC:
            self._follow()
        self._spin(lambda: False, SETTLE_S)

    def run(self) -> Dict[str, int]:
        """Play all; return how many messages there were by topic."""
        began_ns = time.monotonic_ns()
        while not self._schedule.over:
            if self.clock == MONOTONIC:
                self._schedule.at(time.monotonic_ns() - began_ns)
            self._ros.spin_once(self._node, timeout_sec=0.001 if self.clock == MONOTONIC else SPIN_S)
        # A listener of a world that stands still takes the last ones when it goes on.
        for publisher in self._publishers:
            publisher.wait_for_all_acked(self._ros.duration.Duration(seconds=ACKNOWLEDGED_S))
        return {topic["name"]: count for topic, count in zip(self._topics, self._counts)}  # noqa: B905 (Python 3.8)

    def _send(self, message: Due) -> None:
        self._publishers[message.topic].publish(message.data)
        self._counts[message.topic] += 1

    def _find_listeners(self) -> None:
        def unheard() -> List[str]:
            return [p.topic_name for p in self._publishers if not p.get_subscription_count()]

        if not self._spin(lambda: not unheard(), self._patience_s):
            raise CannotPlay("no node of the world listens to {}, after {:g} s".format(
                ", ".join(unheard()), self._patience_s))  # fmt: skip

    def _find_clock(self, asked: str) -> str:
        if asked == MONOTONIC:
            return MONOTONIC
        topic, patience_s = (CLOCK, LOOK_S) if asked == "auto" else (asked, self._patience_s)
        if self._spin(lambda: self._node.count_publishers(topic), patience_s):
            return topic
        if asked == "auto":
            return MONOTONIC
        raise CannotPlay("no node of the world tells the time on {}, after {:g} s".format(topic, patience_s))

    def _follow(self) -> None:
        """Let the clock's messages tell the time."""
        found = self._node.get_publishers_info_by_topic(self.clock)[0]
        kind = type_of(found.topic_type)
        fields = kind.get_fields_and_field_types()
        if "clock" not in fields and fields.get("header") != "std_msgs/Header":
            raise CannotPlay("{} is of {}, which has neither a clock nor a header with a stamp".format(
                self.clock, found.topic_type))  # fmt: skip

        def hear(message: Any) -> None:
            stamp = message.clock if "clock" in fields else message.header.stamp
            self._schedule.at(stamp.sec * 10**9 + stamp.nanosec)

        # Of a clock that runs freely only the last matters; each question of a world in lock-step wants its answer.
        depth = 1 if "clock" in fields else DEPTH
        profile = self._qos.QoSProfile(depth=depth, reliability=found.qos_profile.reliability)
        self._node.create_subscription(kind, self.clock, hear, profile)

    def _spin(self, until: Any, limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while not until():
            if time.monotonic() > deadline:
                return False
            self._ros.spin_once(self._node, timeout_sec=SPIN_S)
        return True


def type_of(name: str) -> Any:
    """Return the class of a type of messages, such as "geometry_msgs/msg/Twist".

    Raises:
        CannotPlay: The guest does not have it.
    """
    try:
        package, _, kind = name.split("/")
        return getattr(importlib.import_module(package + ".msg"), kind)
    except (ImportError, AttributeError, ValueError):
        raise CannotPlay("the guest has no messages of type {}".format(name)) from None


def say(**what: Any) -> None:
    """Tell the host."""
    print(json.dumps(what), flush=True)


def main() -> None:
    """Play what is on standard input."""
    header, messages = unpacked(sys.stdin.buffer.read())
    try:
        try:
            rclpy: Any = importlib.import_module("rclpy")
            importlib.import_module("rclpy.duration")
        except ImportError as error:
            raise CannotPlay("the guest has no rclpy to play messages of ROS 2 with: {}".format(error)) from None
        rclpy.init(signal_handler_options=rclpy.SignalHandlerOptions.NO)
        player = Player(rclpy, header, messages)
        say(ready=os.getpid(), clock=player.clock)
        say(played=player.run())
    except CannotPlay as error:
        say(error=str(error))
        sys.stdout.flush()
    os._exit(0)  # taking the middleware down is of no use to anybody
