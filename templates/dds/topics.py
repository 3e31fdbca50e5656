"""What the robot and the nodes that drive it say to each other, over DDS."""

from dataclasses import dataclass

from cyclonedds.core import Policy, Qos
from cyclonedds.idl import IdlStruct
from cyclonedds.idl.types import float64, int64

POSE, VELOCITY = "pose", "velocity"
QOS = Qos(Policy.Reliability.Reliable(1_000_000_000), Policy.History.KeepLast(1))


@dataclass
class Pose(IdlStruct, typename="Pose"):
    """Where the robot is, and where it is to go: metres and radians."""

    number: int64
    x: float64
    y: float64
    heading: float64
    goal_x: float64
    goal_y: float64


@dataclass
class Velocity(IdlStruct, typename="Velocity"):
    """A command: metres and radians per second. Its number is that of the pose that it answers."""

    number: int64
    forward: float64
    turn: float64
