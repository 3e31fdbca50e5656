"""A differential-drive robot on DDS topics, in simulated time and in lock-step with the node that drives it."""

import math
import random
import time

from cyclonedds.core import ReadCondition, SampleState, WaitSet
from cyclonedds.domain import DomainParticipant
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from topics import POSE, QOS, VELOCITY, Pose, Velocity

TICK_S = 0.05
MAX_SPEED, MAX_TURN = 1.0, 2.0  # m/s, rad/s
ARRIVED_M = 0.1
AGAIN_S = 0.5


class Robot:
    """Drives as it is told on the topic `velocity`.

    Each tick of 0.05 s publishes a `Pose`, waits for the `Velocity` of the same number, and moves with that. A pose
    that nobody answers within 0.5 s is published again.

    Observation: [x m, y m, heading rad, goal's x m, goal's y m]. Action: seconds to drive on for, of simulated time.
    The seed draws start and goal, 2 m to 4 m apart, and how much the wheels slip in each tick. An episode terminates
    within 0.1 m of the goal.

    Args:
        patience_s: Seconds of real time to wait for a command.
    """

    def __init__(self, patience_s):
        self._patience_s = patience_s
        self._rng = random.Random(0)
        self._participant = None
        self._number = 0
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
        if self._participant is None:
            self._connect()
        self._begin()
        return self._observation(), {}

    def _begin(self):
        self._x, self._y = self._rng.uniform(-1.0, 1.0), self._rng.uniform(-1.0, 1.0)
        self._heading = self._rng.uniform(-math.pi, math.pi)
        away, bearing = self._rng.uniform(2.0, 4.0), self._rng.uniform(-math.pi, math.pi)
        self._goal = (self._x + away * math.cos(bearing), self._y + away * math.sin(bearing))
        self._driven = self._seconds = 0.0

    def _connect(self):
        """Join the domain; not before the fork, as all forks would then be one and the same participant."""
        self._participant = DomainParticipant(0)
        self._poses = DataWriter(self._participant, Topic(self._participant, POSE, Pose), qos=QOS)
        self._commands = DataReader(self._participant, Topic(self._participant, VELOCITY, Velocity), qos=QOS)
        self._arrivals = WaitSet(self._participant)
        self._arrivals.attach(ReadCondition(self._commands, SampleState.NotRead))

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
        self._number += 1
        deadline = time.monotonic() + self._patience_s
        while time.monotonic() < deadline:
            self._poses.write(Pose(self._number, *self._observation()))
            again = time.monotonic() + AGAIN_S
            while time.monotonic() < again:
                self._arrivals.wait(round(AGAIN_S * 1e9))
                for command in self._commands.take(N=10):
                    if command.number == self._number:
                        return command
        raise TimeoutError(f"no velocity in {self._patience_s:g} s: no node answers the poses")

    def _move(self, command):
        slip = self._rng.gauss(1.0, 0.05)
        speed = slip * max(-MAX_SPEED, min(MAX_SPEED, command.forward))
        turn = slip * max(-MAX_TURN, min(MAX_TURN, command.turn))
        self._heading = math.remainder(self._heading + TICK_S * turn, 2 * math.pi)
        self._x += TICK_S * speed * math.cos(self._heading)
        self._y += TICK_S * speed * math.sin(self._heading)
        self._driven += TICK_S * abs(speed)
        self._seconds += TICK_S

    def _observation(self):
        return [self._x, self._y, self._heading, *self._goal]

    def _distance(self):
        return math.dist((self._x, self._y), self._goal)

    def metrics(self):
        """Return the episode's scores: distance to the goal and distance driven in metres, and seconds taken."""
        return {"distance_to_goal": self._distance(), "driven": self._driven, "seconds": self._seconds}

    def generators(self):
        """Return the world's own source of randomness."""
        return {"robot": self._rng}


def make(patience_s=60.0):
    """Build the robot; see `Robot` for the argument."""
    return Robot(patience_s)
