"""A video of an episode that has been: it is run once more, from the same start, with a camera on.

So an episode that nobody wants to see costs nothing, and one that is seen is the one that was.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from microsim_vm.errors import VideoError

from .episode import Episode
from .trajectories import video
from .trajectories.writing import step_seconds

if TYPE_CHECKING:
    from microsim_vm.episode import EpisodeRecord
    from microsim_vm.film import Shots
    from microsim_vm.machine import Machine

PICTURES = 250
"""Most pictures of a video, where nothing else is said."""


class Drive(Protocol):
    """What runs an episode once more, as it was run the first time."""

    def __call__(self, machine: Machine, max_steps: int, shots: Shots | None = None) -> EpisodeRecord:
        """Run it in a machine, for so many steps, and take pictures of it where any are wanted."""


class Video(NamedTuple):
    """A video that has been written.

    Attributes:
        path: The file.
        pictures: How many there are in it.
        seconds: How long it is: as long as the simulated time, where the world tells one, and its end for a moment.
        same: The episode in it is the one that was asked for, bit by bit.
        why: Why it has fewer pictures than it was to have; empty where it does not.
    """

    path: Path
    pictures: int
    seconds: float
    same: bool
    why: str


def film(path: Path, episode: Episode, again: Callable[[], Machine], drive: Drive, *, pictures: int) -> Video:
    """Run an episode again, and write a video of it.

    Args:
        path: An .mp4 or .gif, which is replaced; its folder is made.
        episode: The episode that was. Of one that failed, the steps up to there are run.
        again: Makes another microVM with the same start.
        drive: What drove it.
        pictures: How many there may be, 2 or more.

    Raises:
        VideoError: The world cannot be drawn, or the file not be written.
        MicrosimError: The microVM could not be made, or the world failed.
    """
    video.check_format(path)
    shots, pace = video.shots_of(episode.steps, step_seconds(episode), pictures)
    with again() as machine:
        record = drive(machine, max(episode.steps, 1), shots)
    taken = record.film
    if taken is None or not len(taken):
        raise VideoError(
            "there is no picture of the episode",
            cause=f"in the guest: {taken.why}" if taken is not None else "the guest took none",
            hint="a world is drawn by its render(), which returns (height, width, 3) of uint8",
        )
    seconds = video.write(path, taken, pace)
    return Video(path, len(taken), seconds, Episode(record).fingerprint == episode.fingerprint, taken.why)
