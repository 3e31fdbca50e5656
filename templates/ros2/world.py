"""A differential-drive robot on ROS 2 topics, in simulated time and in lock-step with the node that drives it."""

import math
import random
import time

import rclpy
from geometry_msgs.msg import PoseStamped, Twist
from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile

TICK_S = 0.05
MAX_SPEED, MAX_TURN = 1.0, 2.0  # m/s, rad/s
ARRIVED_M = 0.1
FRAME = "odom"
AGAIN_S = 1.0


class Robot:
    """Drives as it is told on /cmd_vel.

    Each tick of 0.05 s publishes /odom (`nav_msgs/Odometry`), waits for the one `geometry_msgs/Twist` that answers it
    on /cmd_vel, and moves with that. /goal (`geometry_msgs/PoseStamped`) is published at each reset, and kept for
    nodes that start later.

    Observation: [x m, y m, heading rad, goal's x m, goal's y m]. Action: seconds to drive on for, of simulated time.
    The seed draws start and goal, 2 m to 4 m apart, and how much the wheels slip in each tick. An episode terminates
    within 0.1 m of the goal.

    Args:
        patience_s: Seconds of real time to wait for a command.
    """

    def __init__(self, patience_s):
        self._patience_s = patience_s
        self._rng = random.Random(0)
        self._node = None
        self._command = None
        self._begin()

    def reset(self, seed=None, options=None):
        """Start an episode.

        Args:
            seed: Restarts the world's generator; None goes on where it stands.
            options: Ignored.

        Returns:
            The first observation and an empty info.
        """
        if seed is not None:
            self._rng.seed(seed)
        if self._node is None:
            self._connect()
        self._begin()
        goal = PoseStamped()
        goal.header.frame_id = FRAME
        goal.pose.position.x, goal.pose.position.y = self._goal
        self._goals.publish(goal)
        return self._observation(), {}

    def _begin(self):
        self._x, self._y = self._rng.uniform(-1.0, 1.0), self._rng.uniform(-1.0, 1.0)
        self._heading = self._rng.uniform(-math.pi, math.pi)
        away, bearing = self._rng.uniform(2.0, 4.0), self._rng.uniform(-math.pi, math.pi)
        self._goal = (self._x + away * math.cos(bearing), self._y + away * math.sin(bearing))
        self._speed = self._turn = self._driven = 0.0
        self._ticks = 0

    def _connect(self):
        """Join the network; not before the fork, as all forks would then be one and the same participant."""
        context = rclpy.Context()
        rclpy.init(context=context, signal_handler_options=rclpy.SignalHandlerOptions.NO)
        self._node = rclpy.create_node("robot", context=context)
        kept = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self._goals = self._node.create_publisher(PoseStamped, "goal", kept)
        self._odometry = self._node.create_publisher(Odometry, "odom", 10)
        self._commands = self._node.create_subscription(Twist, "cmd_vel", self._hear, 10)
        self._executor = SingleThreadedExecutor(context=context)
        self._executor.add_node(self._node)

    def _hear(self, command):
        self._command = command

    def step(self, action):
        """Drive on, and stop early at the goal.

        Args:
            action: Seconds of simulated time; at least one tick.

        Returns:
            Observation, reward (minus the distance to the goal in metres), terminated, False, and an empty info.

        Raises:
            TimeoutError: No node drives the robot.
        """
        for _ in range(max(1, round(float(action) / TICK_S))):
            self._move(self._ask())
            if self._distance() < ARRIVED_M:
                break
        return self._observation(), -self._distance(), self._distance() < ARRIVED_M, False, {}

    def _ask(self):
        """Publish where the robot is, and return the command that answers it."""
        deadline = time.monotonic() + self._patience_s
        if self._ticks == 0:
            self._spin(self._has_met, deadline)
        asked, self._command = 0, None
        while self._command is None and time.monotonic() < deadline:
            self._odometry.publish(self._where())
            asked += 1
            # The first answer may be lost: two nodes do not find each other at the same moment.
            patience = min(deadline, time.monotonic() + AGAIN_S) if self._ticks == 0 else deadline
            self._spin(lambda: self._command, patience)
        if self._command is None:
            raise TimeoutError(f"no /cmd_vel in {self._patience_s:g} s: no node answers /odom")
        command = self._command
        if asked > 1:
            self._spin(lambda: False, time.monotonic() + AGAIN_S)  # answers to the others must not pass for later ones
        return command

    def _has_met(self):
        return self._odometry.get_subscription_count() and self._commands.get_publisher_count()

    def _spin(self, until, deadline):
        """Serve the node until something is so, or the deadline passes."""
        while not until() and time.monotonic() < deadline:
            self._executor.spin_once(timeout_sec=0.05)

    def _where(self):
        odometry = Odometry()
        odometry.header.frame_id, odometry.child_frame_id = FRAME, "base_link"
        now = round(self._ticks * TICK_S * 1e9)
        odometry.header.stamp.sec, odometry.header.stamp.nanosec = now // 10**9, now % 10**9
        pose, twist = odometry.pose.pose, odometry.twist.twist
        pose.position.x, pose.position.y = self._x, self._y
        pose.orientation.z, pose.orientation.w = math.sin(self._heading / 2), math.cos(self._heading / 2)
        twist.linear.x, twist.angular.z = self._speed, self._turn
        return odometry

    def _move(self, command):
        slip = self._rng.gauss(1.0, 0.05)
        self._speed = slip * max(-MAX_SPEED, min(MAX_SPEED, command.linear.x))
        self._turn = slip * max(-MAX_TURN, min(MAX_TURN, command.angular.z))
        self._heading = math.remainder(self._heading + TICK_S * self._turn, 2 * math.pi)
        self._x += TICK_S * self._speed * math.cos(self._heading)
        self._y += TICK_S * self._speed * math.sin(self._heading)
        self._driven += TICK_S * abs(self._speed)
        self._ticks += 1

    def _observation(self):
        return [self._x, self._y, self._heading, *self._goal]

    def _distance(self):
        return math.dist((self._x, self._y), self._goal)

    def metrics(self):
        """Return the episode's scores: distance to the goal and distance driven in metres, and seconds taken."""
        return {"distance_to_goal": self._distance(), "driven": self._driven, "seconds": self._ticks * TICK_S}

    def generators(self):
        """Return the world's own source of randomness."""
        return {"robot": self._rng}


def make(patience_s=60.0):
    """Build the robot; see `Robot` for the argument."""
    return Robot(patience_s)
