"""Pictures of an episode as a file that people can play: MP4 (H.264) through PyAV, GIF through Pillow.

Both libraries are optional: ``pip install 'pytest-microsim[video]'``.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from microsim_vm.errors import VideoError
from microsim_vm.film import Film, Shots

MOST_FPS = 30.0
LEAST_FPS = 1.0
WITHOUT_TIME_FPS = 10.0
INSTALL = "pip install 'pytest-microsim[video]'"
_LIBRARIES = {".mp4": "av", ".gif": "PIL"}


def shots_of(steps: int, step_s: float | None, most: int) -> tuple[Shots, float]:
    """Choose the pictures of an episode, and how fast they are shown: in real time, as far as that can be seen.

    Args:
        steps: How many steps it has.
        step_s: Simulated seconds of a step, or None where the world tells no time.
        most: How many pictures there may be.

    Returns:
        Which pictures, and how many of them a second.

    Raises:
        VideoError: ``most`` is no number of pictures.
    """
    try:
        shots = Shots.over(steps, most)
    except ValueError as error:
        raise VideoError(str(error)) from None
    if step_s is None or step_s <= 0:
        return shots, WITHOUT_TIME_FPS
    every = max(shots.every, round(1 / MOST_FPS / step_s))
    return Shots(every, most), min(max(1 / (every * step_s), LEAST_FPS), MOST_FPS)


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


def write(path: Path, film: Film, fps: float) -> None:
    """Write a film; the file appears as a whole or not at all.

    Args:
        path: An .mp4 or .gif; its folder is made.
        film: The pictures, one at least.
        fps: How many of them are shown a second.

    Raises:
        VideoError: It cannot be written.
        AgentError: A picture is malformed.
    """
    check_format(path)
    encode: Callable[[Path, Film, float], None] = _mp4 if path.suffix == ".mp4" else _gif
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        encode(partial, film, fps)
        os.replace(partial, path)
    except OSError as error:  # PyAV's errors too
        raise VideoError(f"{path}: the video cannot be written: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)


def _installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def _mp4(path: Path, film: Film, fps: float) -> None:
    import av

    if "libx264" not in av.codecs_available:
        raise VideoError(f"{path}: this PyAV has no H.264 encoder", hint=f"write a .gif, or {INSTALL}")
    # Browsers play 4:2:0 only, which has a colour for two pixels by two.
    width, height = film.width + film.width % 2, film.height + film.height % 2
    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        stream: Any = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"crf": "26", "preset": "veryfast", "threads": "1"}
        for number, picture in enumerate(film):
            frame = av.VideoFrame(film.width, film.height, "rgb24")
            plane, row = frame.planes[0], film.width * 3
            rows = (picture[start : start + row] for start in range(0, len(picture), row))
            plane.update(b"".join(line.ljust(plane.line_size, b"\0") for line in rows))
            frame = frame.reformat(width, height, "yuv420p")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _gif(path: Path, film: Film, fps: float) -> None:
    from PIL import Image

    def images() -> Iterator[Any]:
        for picture in film:
            yield Image.frombytes("RGB", (film.width, film.height), picture)

    rest = images()
    next(rest).save(path, format="GIF", save_all=True, append_images=rest, duration=round(1000 / fps), loop=0)
