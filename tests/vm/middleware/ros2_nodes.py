"""ROS 2 nodes that publish their names on one topic and tell which names they hear, until SIGTERM.

Each word of the command line is a process, and each name in it (they are separated by commas) a node with a context of
its own: `ros2_nodes.py 1/a 1/b,1/c` are three nodes in two processes.
"""

import collections
import json
import os
import signal
import sys
import threading

import rclpy
from rclpy.executors import SingleThreadedExecutor
from std_msgs.msg import String

PERIOD_S = float(os.environ.get("PERIOD_S", "0.25"))


class Node:
    """One node, in a thread of its own."""

    def __init__(self, name):
        self.name = name
        self.heard = collections.Counter()
        context = rclpy.Context()
        rclpy.init(context=context, signal_handler_options=rclpy.SignalHandlerOptions.NO)
        self._node = rclpy.create_node("n" + name.replace("/", "_"), context=context)
        self._publisher = self._node.create_publisher(String, "/chatter", 10)
        self._node.create_subscription(String, "/chatter", self._hear, 50)
        self._node.create_timer(PERIOD_S, lambda: self._publisher.publish(String(data=name)))
        executor = SingleThreadedExecutor(context=context)
        executor.add_node(self._node)
        threading.Thread(target=executor.spin, daemon=True).start()

    def _hear(self, message):
        if message.data not in self.heard:
            say(f"{self.name} hears {message.data}")
        self.heard[message.data] += 1


def say(line):
    """Print a line at once: others write to the same file."""
    os.write(1, (line + "\n").encode())


def run(names):
    """Be some nodes until SIGTERM, and print what each has heard how often."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in all threads: the next line but one takes it
    nodes = [Node(name) for name in names]
    signal.sigwait({signal.SIGTERM})
    say(json.dumps({node.name: node.heard for node in nodes}))
    os._exit(0)


def main(words):
    """Start one process per word; what is imported is imported once, and what talks is made in each."""
    children = []
    for word in words:
        child = os.fork()
        if child == 0:
            run(word.split(","))
        children.append(child)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.sigwait({signal.SIGTERM})
    for child in children:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
