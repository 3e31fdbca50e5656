"""Pictures of an episode: what the world's ``render`` returns, every so many steps, compressed and bounded.

Where pictures take long there are fewer of them: what all of them may take is spread over the episode.

The controller has no part in it, and what goes wrong with a picture ends the pictures, never the episode.
"""

import time
import zlib
from typing import Any, Dict, List, Optional, Tuple

MAX_PIXELS = 1920 * 1200  # of one picture
MAX_SIDE = 4096
MAX_BYTES = 48 * 1024 * 1024  # of all of them, compressed: one answer carries them beside the trajectory
MAX_S = 120.0  # that all of them may take


class Camera:
    """Takes pictures of a world.

    Args:
        world: The environment, whose ``render()`` returns ``(height, width, 3)`` of uint8: an array, or any other
            object with such a buffer.
        every: Steps from one picture to the next.
        most: How many pictures.
        steps: How many steps the episode will have.
    """

    def __init__(self, world: Any, every: int, most: int, steps: int) -> None:
        self._world = world
        self._every = every
        self._most = most
        self._total = max(steps, 1)
        self._steps: List[int] = []
        self._pictures: List[bytes] = []
        self._size: Optional[Tuple[int, int]] = None
        self._bytes = 0
        self._seconds = self._first = 0.0
        self._why = ""

    def look(self, step: int, last: bool = False) -> float:
        """Take the picture of a step, if it is due or the last one; return how many seconds that took."""
        if self._why or step in self._steps[-1:] or not (last or (step % self._every == 0 and self._affords(step))):
            return 0.0
        began = time.monotonic()
        try:
            if len(self._steps) >= self._most:
                raise ValueError("there were {} pictures, as many as were asked for".format(self._most))
            self._add(step, self._taken())
        except Exception as error:  # whatever a world's render raises
            self._why = "{}: {}".format(type(error).__name__, error)[:1000]
        spent = time.monotonic() - began
        if len(self._steps) == 1:
            self._first = spent
        self._seconds += spent
        return spent

    def _affords(self, step: int) -> bool:
        """Tell whether the pictures so far took no longer than is right up to a step; the first one gets ready."""
        return self._seconds - self._first <= MAX_S * step / self._total

    def _taken(self) -> bytes:
        render = getattr(self._world, "render", None)
        if not callable(render):
            raise TypeError("the world has no render()")
        picture = render()
        if picture is None:
            raise TypeError("render() returned None; a Gymnasium world needs kwargs: {render_mode: rgb_array}")
        try:
            view = memoryview(picture)
        except TypeError:
            raise TypeError("render() returned a {}, not (height, width, 3) of uint8".format(
                type(picture).__name__)) from None  # fmt: skip
        shape = view.shape or ()
        if view.format != "B" or len(shape) != 3 or shape[2] != 3:
            raise TypeError("render() returned {} of type {!r}, not (height, width, 3) of uint8".format(
                list(shape), view.format))  # fmt: skip
        size = (shape[0], shape[1])
        if not (min(size) > 0 and max(size) <= MAX_SIDE and size[0] * size[1] <= MAX_PIXELS):
            raise ValueError("a picture of {1} x {0} pixels is empty, or too large".format(*size))
        if self._size not in (None, size):
            raise ValueError("a picture has {1} x {0} pixels, and those before it had others".format(*size))
        self._size = size
        return zlib.compress(view.tobytes(), 1)

    def _add(self, step: int, picture: bytes) -> None:
        if self._bytes + len(picture) > MAX_BYTES:
            raise ValueError("the pictures are larger than {} MiB".format(MAX_BYTES >> 20))
        self._bytes += len(picture)
        self._steps.append(step)
        self._pictures.append(picture)

    def describe(self) -> Tuple[Dict[str, Any], List[bytes]]:
        """Return the steps that there are pictures of, their size, and why there are no more; and the pictures."""
        facts = {"steps": self._steps, "size": list(self._size or (0, 0)), "why": self._why, "seconds": self._seconds}
        return facts, self._pictures
