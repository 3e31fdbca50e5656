"""A world of nodes that talk: `reset` starts two, each in a process of its own, and `step` ends them.

What they import is part of the snapshot; what talks is made after the fork.
"""

import os
import signal
import sys

import nodes

HEARD = "/workspace/heard"  # what they say


class Talk:
    """Two nodes; the seed is a part of their names."""

    def __init__(self):
        self._children = []

    def reset(self, seed=None, options=None):
        """Start both."""
        for letter in "ab":
            child = os.fork()
            if child == 0:
                log = os.open(HEARD, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(log, 1)
                os.dup2(log, 2)
                try:
                    nodes.run([f"{seed}/{letter}"])
                except BaseException as error:
                    print(error, file=sys.stderr)
                finally:
                    os._exit(1)
            self._children.append(child)
        return [0.0], {}

    def step(self, action):
        """End both; what they have heard is in the file then."""
        for child in self._children:
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
        self._children.clear()
        return [0.0], 0.0, True, False, {}


def make():
    """Build the world."""
    return Talk()
