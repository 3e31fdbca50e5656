"""A node that drives the robot of the template `dds` to its goal, by answering each pose with a velocity."""

import math

from cyclonedds.domain import DomainParticipant
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration
from topics import POSE, QOS, VELOCITY, Pose, Velocity

participant = DomainParticipant(0)
poses = DataReader(participant, Topic(participant, POSE, Pose), qos=QOS)
commands = DataWriter(participant, Topic(participant, VELOCITY, Velocity), qos=QOS)
while True:
    for pose in poses.take_iter(timeout=duration(minutes=1)):
        ahead, aside = pose.goal_x - pose.x, pose.goal_y - pose.y
        error = math.remainder(math.atan2(aside, ahead) - pose.heading, 2.0 * math.pi)
        forward = min(1.0, math.hypot(ahead, aside)) * max(0.0, math.cos(error))
        commands.write(Velocity(pose.number, forward, 2.0 * error))
