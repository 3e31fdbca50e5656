"""Films as files: the pictures are there, in their order, at their times."""

from __future__ import annotations

import importlib.util
import zlib
from pathlib import Path

import av
import pytest
from microsim_vm.errors import AgentError, VideoError
from microsim_vm.film import Film, Shots
from PIL import Image

from pytest_microsim.trajectories import video

COLOURS = [(250, 10, 10), (10, 250, 10), (10, 10, 250)]


def film(steps: tuple[int, ...] = (0, 10, 15), width: int = 33, height: int = 17) -> Film:
    packed = tuple(zlib.compress(bytes(colour) * (width * height)) for colour in COLOURS[: len(steps)])
    return Film(width, height, steps, "", 0.1, packed)


def test_an_mp4_shows_each_picture_at_its_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.mp4"
    assert video.write(path, film(), 0.02) == pytest.approx(0.3 + video.LAST_S)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert (stream.width, stream.height) == (34, 18), "an even number of pixels, which H.264 needs"
        frames = [(frame.time, frame.to_image().getpixel((16, 8))) for frame in container.decode(stream)]
        assert container.duration == pytest.approx(0.8e6, abs=0.1e6)
    assert [time for time, _ in frames] == pytest.approx([0.0, 0.2, 0.3, 0.8])
    for (_, seen), colour in zip(frames, [*COLOURS, COLOURS[-1]], strict=True):
        assert max(abs(one - other) for one, other in zip(seen, colour, strict=True)) < 40
    assert [each.name for each in path.parent.iterdir()] == ["a.mp4"]


def test_a_gif_shows_each_picture_for_its_time(tmp_path: Path) -> None:
    path = tmp_path / "a.gif"
    video.write(path, film(), 0.02)
    with Image.open(path) as image:
        seen = []
        for number in range(image.n_frames):
            image.seek(number)
            seen.append((image.info["duration"], image.convert("RGB").getpixel((5, 5))))
        assert image.size == (33, 17)
    assert seen == [(200, COLOURS[0]), (100, COLOURS[1]), (500, COLOURS[2])]


def test_steps_that_are_too_short_to_be_seen_still_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    video.write(path, film((0, 1, 2)), 1e-6)
    with av.open(str(path)) as container:
        assert [frame.time for frame in container.decode(video=0)] == pytest.approx([0.0, 0.02, 0.04, 0.54])


def test_pictures_are_chosen_so_that_time_passes_as_in_the_world() -> None:
    assert video.shots_of(500, 0.02, 1000) == (Shots(2, 1000, 500), 0.02), "25 a second"
    assert video.shots_of(500, 0.02, 101) == (Shots(5, 101, 500), 0.02)
    assert video.shots_of(600, 0.1, 250) == (Shots(3, 250, 600), 0.1)
    assert video.shots_of(50, None, 250) == (Shots(1, 250, 50), video.WITHOUT_TIME_S)
    assert video.shots_of(50, 3600.0, 250)[1] == video.LONGEST_STEP_S
    with pytest.raises(VideoError, match="2 to 2000"):
        video.shots_of(50, 0.1, 1)


def test_what_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VideoError, match=r"an \.mp4 or a \.gif"):
        video.write(tmp_path / "a.avi", film(), 0.1)
    (tmp_path / "file").touch()
    with pytest.raises(VideoError, match="cannot be written"):
        video.write(tmp_path / "file" / "a.mp4", film(), 0.1)
    broken = Film(33, 17, (0,), "", 0.1, (zlib.compress(b"short"),))
    for name in ("a.mp4", "a.gif"):
        with pytest.raises(AgentError, match="not as large"):
            video.write(tmp_path / name, broken, 0.1)
    assert [each.name for each in tmp_path.iterdir()] == ["file"], "nothing is left of what was not written"
    assert video.usual_suffix() == ".mp4"
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "av" else find(name))
    assert video.usual_suffix() == ".gif"
    with pytest.raises(VideoError, match=r"pip install 'pytest-microsim\[video\]'"):
        video.check_format(tmp_path / "a.mp4")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(VideoError, match="pytest-microsim"):
        video.usual_suffix()


def test_a_gif_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    picture = zlib.compress(bytes(1920 * 1200 * 3))
    large = Film(1920, 1200, tuple(range(240)), "", 0.1, (picture,) * 240)
    with pytest.raises(VideoError, match=r"240 pictures of 1920 x 1200 pixels.*\n.*fewer pictures"):
        video.write(tmp_path / "a.gif", large, 0.1)
    assert list(tmp_path.iterdir()) == []
