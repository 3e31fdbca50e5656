"""DDS participants that publish their names on one topic and tell which names they hear, until SIGTERM.

Each word of the command line is a process, and each name in it (they are separated by commas) a participant:
`dds_nodes.py 1/a 1/b,1/c` are three participants in two processes.
"""

import collections
import json
import os
import signal
import sys
from dataclasses import dataclass

from cyclonedds.core import Policy, Qos
from cyclonedds.domain import DomainParticipant
from cyclonedds.idl import IdlStruct
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic

PERIOD_S = float(os.environ.get("PERIOD_S", "0.25"))


@dataclass
class Chatter(IdlStruct, typename="Chatter"):
    """What is said."""

    name: str


class Participant:
    """One participant of the domain."""

    def __init__(self, name):
        self.name = name
        self.heard = collections.Counter()
        participant = DomainParticipant(int(os.environ.get("ROS_DOMAIN_ID", "0")))
        topic = Topic(participant, "chatter", Chatter)
        self._writer = DataWriter(participant, topic)
        # By default a reader keeps one sample, whoever wrote it.
        self._reader = DataReader(participant, topic, qos=Qos(Policy.History.KeepAll))

    def talk(self):
        """Publish the name, and take what has been heard."""
        self._writer.write(Chatter(self.name))
        for message in self._reader.take(N=100):
            if message.name not in self.heard:
                say(f"{self.name} hears {message.name}")
            self.heard[message.name] += 1


def say(line):
    """Print a line at once: others write to the same file."""
    os.write(1, (line + "\n").encode())


def run(names):
    """Be some participants until SIGTERM, and print what each has heard how often."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    participants = [Participant(name) for name in names]
    while signal.sigtimedwait({signal.SIGTERM}, PERIOD_S) is None:
        for participant in participants:
            participant.talk()
    say(json.dumps({participant.name: participant.heard for participant in participants}))
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
