"""A ROS 2 node under test: it drives a simulated robot over /cmd_vel, in a rollout of its own per seed.

pytest example_tests/test_cmd_vel.py
"""

import math
from pathlib import Path

import pytest

pytestmark = pytest.mark.microsim(world="ros2")
FOLLOWER = Path(__file__).parent / "ros2" / "follower.py"


@pytest.fixture
def follower(rollout):
    """The node, in a process of its own beside the simulator, as `ros2 run` would start it."""
    rollout.filesystem.write("/workspace/follower.py", FOLLOWER.read_bytes())
    rollout.exec("python3 follower.py >follower.log 2>&1 &", check=True)


@pytest.mark.seeds(range(16))
def test_follower_reaches_the_goal(rollout, follower):
    """Wherever the seed puts robot and goal: simulated time stands still until the node has answered."""
    x, y, _, goal_x, goal_y = rollout.reset()[0]
    start = math.dist((x, y), (goal_x, goal_y))
    for _ in range(30):  # seconds of simulated time
        (x, y, _, _, _), _, arrived, _, _ = rollout.step(1.0)
        if arrived:
            break
    distance = math.dist((x, y), (goal_x, goal_y))
    rollout.record("distance_to_goal", distance)
    assert start > 2.0
    assert distance < 0.1, rollout.filesystem.read("/workspace/follower.log").decode()
