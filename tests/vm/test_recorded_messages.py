"""Recorded messages of ROS 2, played to the nodes of a real guest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosting import ON_ANY_ENGINE, REPOSITORY, Warmed
from mcap.writer import Writer
from microsim_vm.errors import RecordingError
from microsim_vm.world import WarmWorld
from rosbags.typesys import Stores, get_typestore

from pytest_microsim.rollout import Rollout
from pytest_microsim.trajectories import playing

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("middleware"), ON_ANY_ENGINE]

FOLLOWER = (REPOSITORY / "example_tests/ros2/follower.py").read_text()
SENDS = "        self.commands.publish(command)\n"
NOTES = (
    SENDS
    + "        print(message.header.stamp.sec, message.header.stamp.nanosec, serialize(command).hex(), flush=True)\n"
)
IMPORT = "from rclpy.serialization import serialize_message as serialize\n"
TWIST = "geometry_msgs/msg/Twist"
SECONDS = 2  # of simulated time
# Simulated time at ten times the pace of real time.
CLOCK = """
import rclpy, time
from rosgraph_msgs.msg import Clock
rclpy.init()
clock = rclpy.create_node("clock").create_publisher(Clock, "clock", 10)
for tick in range(100000):
    message = Clock()
    message.clock.sec, message.clock.nanosec = 1000 + tick // 2, tick % 2 * 5 * 10**8
    clock.publish(message)
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def ros2(warmed: Warmed) -> WarmWorld:
    return warmed("ros2")


@pytest.fixture
def rollouts(ros2: WarmWorld) -> Iterator[list[Rollout]]:
    """Two of one seed."""
    made = [Rollout(ros2.fork(5), seed=5, world="ros2", controller_folders=[REPOSITORY]) for _ in range(2)]
    yield made
    for rollout in made:
        rollout.close()


def write(path: Path, messages: dict[int, bytes]) -> Path:
    """Write an MCAP file of the topic /recorded, by nanoseconds."""
    definition, _ = get_typestore(Stores.ROS2_JAZZY).generate_msgdef(TWIST, ros_version=2)
    with path.open("wb") as stream:
        writer = Writer(stream)
        writer.start("ros2")
        channel = writer.register_channel(
            "/recorded", "cdr", writer.register_schema(TWIST, "ros2msg", definition.encode())
        )
        for moment, data in messages.items():
            writer.add_message(channel, log_time=moment, data=data, publish_time=moment)
        writer.finish()
    return path


def drive(rollout: Rollout) -> list[Any]:
    return [rollout.step(1.0)[0] for _ in range(SECONDS)]


def test_what_a_node_has_sent_drives_the_robot_along_the_same_way_again(
    rollouts: list[Rollout], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = rollouts
    assert SENDS in FOLLOWER
    first.filesystem.write("/workspace/follower.py", (IMPORT + FOLLOWER.replace(SENDS, NOTES)).encode())
    first.exec("python3 follower.py >sent 2>log &", check=True)
    start = first.reset()[0]
    way = drive(first)
    sent: dict[int, bytes] = {}
    for line in first.filesystem.read("/workspace/sent").decode().splitlines():
        sec, nanosec, data = line.split()
        sent[int(sec) * 10**9 + int(nanosec)] = bytes.fromhex(data)
    assert len(sent) == SECONDS * 20, "a command for each tick"
    file = write(tmp_path / "drive.mcap", sent)

    with monkeypatch.context() as patched:
        patched.setattr(playing, "PATIENCE_S", 0.5)
        with pytest.raises(RecordingError, match=r"no node of the world listens to /cmd_vel, after 0\.5 s"):
            second.play(file, {"/recorded": "/cmd_vel"})  # before its node is there
    assert second.reset()[0] == start
    running = second.play(file, {"/recorded": "/cmd_vel"}, clock="/odom")
    assert running.clock == "/odom"
    assert drive(second) == way
    assert running.wait()["/cmd_vel"] >= len(sent)

    second.filesystem.write("/workspace/clock.py", CLOCK.encode())
    second.exec("python3 clock.py >clock.log 2>&1 &", check=True)
    long = write(tmp_path / "long.mcap", {0: sent[0], 10**15: sent[0]})
    endless = second.play(long, {"/recorded": "/cmd_vel"}, clock="monotonic")
    endless.stop()
    assert endless.wait() == {}
    began = time.monotonic()
    timed = second.play(write(tmp_path / "timed.mcap", {0: sent[0], 40 * 10**9: sent[0]}), {"/recorded": "/cmd_vel"})
    assert timed.clock == "/clock", "it has been there for as long as another player was"
    assert timed.wait() == {"/cmd_vel": 2}
    assert time.monotonic() - began < 40, "it waited for real seconds"
    assert len(second.controllers) == 4


def test_a_world_without_ros_says_so(cartpole: WarmWorld, tmp_path: Path) -> None:
    rollout = Rollout(cartpole.fork(1), seed=1, world="cartpole", controller_folders=[tmp_path])
    try:
        with pytest.raises(RecordingError, match="the guest has no rclpy"):
            rollout.play(write(tmp_path / "a.mcap", {0: b"\0\1\0\0"}).name, {"/recorded": "/cmd_vel"})
    finally:
        rollout.close()
