"""Pictures of an episode as a file that people can play: MP4 (H.264) through PyAV, GIF through Pillow.

Both libraries are optional: ``pip install 'pytest-microsim[video]'``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from microsim_vm.errors import VideoError
from microsim_vm.film import Film, Shots

MOST_FPS = 30.0
LONGEST_STEP_S = 1.0
WITHOUT_TIME_S = 0.1
LEAST_MS = 20  # players show no picture of a GIF for less
LAST_S = 0.5
"""How long the last picture is shown."""
MOST_GIF_PIXELS = 1 << 29  # of all pictures: they are in memory together, a byte each

INSTALL = "pip install 'pytest-microsim[video]'"
_LIBRARIES = {".mp4": "av", ".gif": "PIL"}


def shots_of(steps: int, step_s: float | None, most: int) -> tuple[Shots, float]:
    """Choose the pictures of an episode, and how long they are shown: in real time, as far as that can be seen.

    Args:
        steps: How many steps it has.
        step_s: Simulated seconds of a step, or None where the world tells no time.
        most: How many pictures there may be.

    Returns:
        Which pictures, and how many seconds a step takes in the video.

    Raises:
        VideoError: ``most`` is no number of pictures.
    """
    pace = WITHOUT_TIME_S if step_s is None else min(step_s, LONGEST_STEP_S)
    try:
        return Shots.over(steps, most, every=max(1, round(1 / MOST_FPS / pace))), pace
    except ValueError as error:
        raise VideoError(str(error)) from None


def check_format(path: Path) -> None:
    """Refuse a file that no video can be written to, before pictures are taken.

    Raises:
        VideoError: Its name ends in neither .mp4 nor .gif, or the library is not installed.
    """
    library = _LIBRARIES.get(path.suffix)
    if library is None:
        raise VideoError(f"{path}: a video is an .mp4 or a .gif", hint="let the name end so")
    if not _installed(library):
        raise VideoError(f"{path}: no library that writes {path.suffix} is installed", hint=INSTALL)


def usual_suffix() -> str:
    """Return ".mp4", or ".gif" where only that can be written.

    Raises:
        VideoError: Neither can.
    """
    for suffix, library in _LIBRARIES.items():
        if _installed(library):
            return suffix
    raise VideoError("no library that writes videos is installed", hint=INSTALL)


def write(path: Path, film: Film, pace: float) -> float:
    """Write a film, and return how many seconds long it is; the file appears as a whole or not at all.

    Args:
        path: An .mp4 or .gif; its folder is made.
        film: The pictures, one at least.
        pace: How many seconds a step takes in it.

    Raises:
        VideoError: It cannot be written.
        AgentError: A picture is malformed.
    """
    check_format(path)
    shown_ms: list[int] = []
    for step in film.steps:
        at = round((step - film.steps[0]) * pace * 1000)
        shown_ms.append(max(at, shown_ms[-1] + LEAST_MS) if shown_ms else at)
    encode: Callable[[Path, Film, list[int]], None] = _mp4 if path.suffix == ".mp4" else _gif
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        encode(partial, film, [*shown_ms, shown_ms[-1] + round(LAST_S * 1000)])
        os.replace(partial, path)
    except OSError as error:
        raise VideoError(f"{path}: the video cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return shown_ms[-1] / 1000 + LAST_S


def _installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def _mp4(path: Path, film: Film, times: list[int]) -> None:
    import av

    if "libx264" not in av.codecs_available:
        raise VideoError(f"{path}: this PyAV has no H.264 encoder", hint=f"write a .gif, or {INSTALL}")
    # Browsers play 4:2:0 only, which has a colour for two pixels by two.
    width, height = film.width + film.width % 2, film.height + film.height % 2
    millisecond = Fraction(1, 1000)
    try:
        with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
            stream: Any = container.add_stream("libx264", rate=round(MOST_FPS))
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            stream.codec_context.time_base = millisecond
            # Without pictures that are coded after later ones, the file's length is that of its pictures.
            stream.options = {"crf": "26", "preset": "veryfast", "threads": "1", "bf": "0"}
            for at, picture in zip(times, _held(film), strict=True):
                frame = _frame(av, picture, film.width, film.height).reformat(width, height, "yuv420p")
                frame.pts, frame.time_base = at, millisecond
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
    except av.error.FFmpegError as error:
        raise VideoError(f"{path}: the video cannot be written: {error.strerror}") from None


def _frame(av: Any, picture: bytes, width: int, height: int) -> Any:
    frame = av.VideoFrame(width, height, "rgb24")
    size, row = frame.planes[0].line_size, width * 3
    lines = (picture[start : start + row] for start in range(0, len(picture), row))
    frame.planes[0].update(b"".join(line.ljust(size, b"\0") for line in lines))
    return frame


def _held(film: Film) -> Iterator[bytes]:
    """Yield each picture, and the last one twice: a player shows a picture until the next one, and none after it."""
    for picture in film:
        yield picture
    yield picture


def _gif(path: Path, film: Film, times: list[int]) -> None:
    from PIL import Image

    if len(film) * film.width * film.height > MOST_GIF_PIXELS:
        raise VideoError(
            f"{path}: {len(film)} pictures of {film.width} x {film.height} pixels are too many for a GIF",
            hint="ask for fewer pictures, or write an .mp4",
        )

    def images() -> Iterator[Any]:
        for picture in film:
            yield Image.frombytes("RGB", (film.width, film.height), picture)

    rest, shown = images(), [later - at for at, later in pairwise(times)]
    next(rest).save(path, format="GIF", save_all=True, append_images=rest, duration=shown, loop=0)
