"""The pictures of an episode, as the host takes them from a guest that may be anything's by now."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from microsim_guest.camera import MAX_BYTES, MAX_PIXELS, MAX_SIDE

from microsim_vm.errors import AgentError

MOST_PICTURES = 2000


@dataclass(frozen=True)
class Shots:
    """Which steps of an episode a guest is asked for pictures of.

    Attributes:
        every: Steps from one picture to the next.
        most: How many pictures there may be.
        steps: How many steps the episode will have.
    """

    every: int
    most: int
    steps: int

    @classmethod
    def over(cls, steps: int, most: int, *, every: int = 1) -> Shots:
        """Return at most ``most`` pictures, evenly over an episode of so many steps, its start and end among them.

        Args:
            steps: The episode's.
            most: How many pictures.
            every: Steps from one picture to the next, at least.

        Raises:
            ValueError: ``most`` is no number of pictures from 2 to 2000.
        """
        if type(most) is not int or not 2 <= most <= MOST_PICTURES:
            raise ValueError(f"a video has 2 to {MOST_PICTURES} pictures, not {most!r}")
        return cls(max(every, -(-steps // (most - 1))), most, steps)


class _Facts(msgspec.Struct):
    """What the guest says of its pictures."""

    steps: Annotated[list[int], msgspec.Meta(max_length=MOST_PICTURES)]
    size: tuple[int, int]
    why: Annotated[str, msgspec.Meta(max_length=2000)]
    seconds: float


@dataclass(frozen=True)
class Film:
    """Pictures of one episode.

    Attributes:
        width, height: Of each, in pixels.
        steps: The step after which each was taken, ascending; 0 is the start.
        why: Why there are none, or no more; empty where all that were asked for are there.
        seconds: How long the guest took for them.
    """

    width: int
    height: int
    steps: tuple[int, ...] = field(repr=False)
    why: str
    seconds: float
    packed: tuple[bytes, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[bytes]:
        """Yield each picture: rows from the top, three bytes (red, green, blue) a pixel.

        Raises:
            AgentError: A picture is not as large as the guest said.
        """
        size = self.width * self.height * 3
        for step, packed in zip(self.steps, self.packed, strict=True):
            unpacking = zlib.decompressobj()
            try:
                picture = unpacking.decompress(packed, size)
            except zlib.error as error:
                raise AgentError(f"world.episode: the picture of step {step} is malformed: {error}") from None
            if len(picture) != size or unpacking.unconsumed_tail:
                raise AgentError(f"world.episode: the picture of step {step} is not as large as the guest says")
            yield picture


def from_answer(result: dict[str, Any], blobs: Sequence[bytes], asked: Shots) -> tuple[Film, tuple[bytes, ...]]:
    """Take the film off a world host's answer; return it and the other attachments.

    Raises:
        LookupError, TypeError, ValueError: It is not as it was asked for, or out of bounds.
    """
    facts = msgspec.convert(result["film"], _Facts)
    count = len(facts.steps)
    packed = tuple(blobs[len(blobs) - count :])
    height, width = facts.size
    if count > asked.most or len(packed) != count or sum(map(len, packed)) > MAX_BYTES:
        raise ValueError(f"{count} pictures, and {asked.most} were asked for")
    if count and not (min(facts.size) > 0 and max(facts.size) <= MAX_SIDE and height * width <= MAX_PIXELS):
        raise ValueError(f"pictures of {width} x {height} pixels")
    if any(later <= earlier for earlier, later in zip([-1, *facts.steps], facts.steps, strict=False)):
        raise ValueError("the pictures' steps do not ascend")
    if count and facts.steps[-1] > max(asked.steps, 1):
        raise ValueError(f"a picture of step {facts.steps[-1]}, in an episode of {asked.steps}")
    return Film(width, height, tuple(facts.steps), facts.why, facts.seconds, packed), tuple(blobs[: len(blobs) - count])
