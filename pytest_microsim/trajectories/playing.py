"""Recorded messages of ROS 2 that are played to the nodes of a world while it runs."""

from __future__ import annotations

import array
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microsim_guest import config, wire
from microsim_vm import answers
from microsim_vm.controllers import MAX_BYTES
from microsim_vm.errors import MicrosimError, RecordingError

from . import bags

if TYPE_CHECKING:
    from microsim_vm.machine import Machine

PATIENCE_S = 30.0  # that the player has for the world's nodes to be found
_LATEST_NS = 1 << 63
SPARE_S = 60.0  # that it has to be started
PROGRAM = f"import sys; sys.path.append({config.GUEST_FOLDER!r}); from microsim_guest import player; player.main()"


@dataclass(frozen=True)
class Messages:
    """Messages of ROS 2, ready to be played.

    Attributes:
        source: The file they are from.
        packed: What the player in the guest reads.
    """

    source: str
    packed: bytes = field(repr=False)

    @classmethod
    def open(cls, path: Path, topics: Sequence[str] | Mapping[str, str], clock: str = "auto") -> Messages:
        """Read the messages of some topics, as they were sent.

        Args:
            path: An MCAP file, a rosbag2's folder, or its .db3 file.
            topics: The recorded topics; as a dict, with the names under which they are played.
            clock: What they follow; see ``Rollout.play``.

        Raises:
            RecordingError: It cannot be read, or has other messages than those of ROS 2.
        """
        if isinstance(topics, str) or not topics:
            raise RecordingError(f"topics is a list of the recorded topics to play, or a dict of them with their names "
                                 f"in the world, not {topics!r}")  # fmt: skip
        names = dict(topics) if isinstance(topics, Mapping) else {topic: topic for topic in topics}
        index, data, kinds = array.array("q"), bytearray(), dict[str, str]()
        order = list(names)
        first_ns = None
        for message in bags.messages(path, order):
            topic = message.topic
            if topic.encoding != "cdr" or topic.type.count("/") != 2:
                raise RecordingError(f"{path}: {topic.name} has no messages of ROS 2, but {topic.encoding}",
                                     hint="rollout.run(Recording.open(...)) takes actions from JSON")  # fmt: skip
            kinds[topic.name] = topic.type
            first_ns = message.logged_ns if first_ns is None else first_ns
            due_ns = message.logged_ns - first_ns
            if due_ns >= _LATEST_NS:
                raise RecordingError(f"{path}: a message of {topic.name} is {due_ns / 1e9:g} s after the first one",
                                     cause="the clock was set meanwhile", hint="cut the recording there")  # fmt: skip
            index.extend((due_ns, order.index(topic.name), len(message.data)))
            data += message.data
            if len(data) > MAX_BYTES:
                raise RecordingError(f"{path} has more than {MAX_BYTES >> 20} MiB of these messages",
                                     hint="choose fewer topics, or cut the recording")  # fmt: skip
        for topic_name in order:
            if topic_name not in kinds:
                raise RecordingError(f"{path} has no message of {topic_name}")
        if sys.byteorder == "big":
            index.byteswap()
        described = [{"name": names[name], "type": kinds[name]} for name in order]
        header = {"topics": described, "clock": clock, "patience_s": PATIENCE_S}
        return cls(str(path), wire.encode(header, [index.tobytes(), bytes(data)]))


class Playing:
    """Messages that are being played in a rollout, while the test goes on.

    Attributes:
        clock: What they follow: "/clock", another topic, or "monotonic".
    """

    def __init__(self, machine: Machine, messages: Messages, timeout_seconds: float) -> None:
        self.clock = ""
        self._machine = machine
        self._source = messages.source
        self._timeout_s = timeout_seconds
        self._pid: int | None = None
        self._played: dict[str, int] | None = None
        self._failed: MicrosimError | None = None
        self._stopped = False
        self._text = ""
        self._heard = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(messages.packed,), name="microsim-player", daemon=True)
        self._thread.start()
        self._heard.wait()
        if self._failed is not None:
            raise self._failed

    def wait(self) -> dict[str, int]:
        """Wait until all have been played; return how many by topic.

        Raises:
            RecordingError: They could not be, or not in time.
        """
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        return self._played or {}

    def stop(self) -> None:
        """Play no more."""
        self._stopped = True
        if self._thread.is_alive():
            self._machine.exec(f"kill {self._pid}")  # a shell's own: an image may have no such program
            self._thread.join()

    def _run(self, packed: bytes) -> None:
        try:
            result = self._machine.exec_stream(
                ["python3", "-c", PROGRAM],
                on_stdout=self._hear,
                stdin=packed,
                timeout_seconds=self._timeout_s + SPARE_S,
            )
            if self._played is None and self._failed is None and not self._stopped:
                how = (
                    f"was still being played after {self._timeout_s:g} s" if result.timed_out else "could not be played"
                )
                self._failed = RecordingError(
                    f"{self._source} {how}",
                    cause="what tells the time stands still" if result.timed_out else "",
                    hint="stop() it, or let the world go on for as long as the recording",
                    details=result.stderr[-4000:],
                )  # fmt: skip
        except MicrosimError as error:  # the guest is gone
            self._failed = error
        finally:
            self._heard.set()

    def _hear(self, text: str) -> None:
        *lines, self._text = (self._text + text).split("\n")
        for line in lines:
            if line.startswith("{"):  # some library may print too
                with answers.read("play"):
                    self._take(json.loads(line))

    def _take(self, said: dict[str, Any]) -> None:
        if "error" in said:
            self._failed = RecordingError(
                f"{self._source} cannot be played: {str(said['error'])[:1000]}",
                hint="play() comes after what makes the world's nodes: reset(), or a command",
            )
        elif "ready" in said:
            self._pid, self.clock = int(said["ready"]), str(said["clock"])[:200]
            self._heard.set()
        elif "played" in said:
            self._played = {str(name): int(count) for name, count in said["played"].items()}
