"""The node under test: drives to /goal, by answering each /odom with a /cmd_vel."""

import math

import rclpy
from geometry_msgs.msg import PoseStamped, Twist
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile


class Follower(Node):
    """Turns towards the goal, and drives the faster the better it looks that way."""

    def __init__(self):
        super().__init__("follower")
        self.goal = None
        kept = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self.create_subscription(PoseStamped, "goal", self.on_goal, kept)
        self.create_subscription(Odometry, "odom", self.on_odometry, 10)
        self.commands = self.create_publisher(Twist, "cmd_vel", 10)

    def on_goal(self, message):
        """Remember where to go."""
        self.goal = message.pose.position

    def on_odometry(self, message):
        """Answer with the next command, once there is a goal."""
        if self.goal is None:
            return
        pose = message.pose.pose
        heading = 2.0 * math.atan2(pose.orientation.z, pose.orientation.w)
        ahead, aside = self.goal.x - pose.position.x, self.goal.y - pose.position.y
        error = math.remainder(math.atan2(aside, ahead) - heading, 2.0 * math.pi)
        command = Twist()
        command.linear.x = min(1.0, math.hypot(ahead, aside)) * max(0.0, math.cos(error))
        command.angular.z = 2.0 * error
        self.commands.publish(command)


def main():
    """Run the node until it is told to stop."""
    rclpy.init()
    rclpy.spin(Follower())


if __name__ == "__main__":
    main()
