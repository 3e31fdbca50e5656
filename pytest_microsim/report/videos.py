"""Videos of failed rollouts, in the directory that ``--microsim-video`` names: of each the last episode.

They are made after a rollout has ended: its memory is free then for the microVM that the episode is run again in.
"""

from __future__ import annotations

from collections import Counter

import pytest
from microsim_vm.errors import MicrosimError

from ..state import ITEM, RUN, ItemState
from ..trajectories.video import usual_suffix
from .sections import shown
from .trajectories import place_of, test_of

MOST_PER_TEST = 16
"""How many failed seeds of one test get a video, in each process: an hour of videos is no help."""

_MADE = pytest.StashKey[Counter[str]]()


def announced(item: pytest.Item, state: ItemState, report: pytest.TestReport) -> None:
    """Have a video made of a rollout that failed, or missed what a scenario expects, when it has ended."""
    folder = item.config.stash[RUN].settings.video
    if folder is None or state.rollout is None or not (report.failed or state.missed):
        return
    made = item.config.stash.setdefault(_MADE, Counter())
    if made[test_of(item)] >= MOST_PER_TEST:
        state.remarks.append(
            f"video: none, {MOST_PER_TEST} seeds of this test have one; add --microsim-video to its replay"
        )
    elif not state.rollout.episodes:
        state.remarks.append("video: none, no episode of run() was recorded")
    else:
        made[test_of(item)] += 1
        state.film = place_of(folder, item, state, suffix=usual_suffix())
        state.remarks.append(f"video: {state.film}")


def made(state: ItemState) -> None:
    """Make the video of a rollout that has ended, if it is to have one; what went wrong is kept to be said."""
    if state.film is None or state.rollout is None:
        return
    try:
        video = state.rollout.video(state.film)
    except (MicrosimError, OSError) as error:
        state.afterwards.append(f"video: none: {_plain(str(error))}")
        return
    state.files["video"] = video.path
    if not video.same:
        state.afterwards.append(
            "video: it shows another episode than the one that failed: run again, it did not come out the same"
        )
    if video.why:
        state.afterwards.append(f"video: it ends early: {_plain(video.why)}")


def _plain(text: str) -> str:
    """Return a text that a guest may have written, safe in a terminal and in XML."""
    return shown(text.encode("utf-8", "replace"))


def ended(item: pytest.Item, report: pytest.TestReport) -> None:
    """Note the last video that a test has made itself, and add to its last report what went wrong with ours."""
    state = item.stash.get(ITEM, None)
    if state is None or report.when != "teardown":
        return
    if state.rollout is not None and state.rollout.videos:
        state.files.setdefault("video", state.rollout.videos[-1])
    if state.afterwards:
        # So called, it is shown with a test that failed before as well.
        report.sections.append(("microsim teardown", "\n".join(state.afterwards)))
