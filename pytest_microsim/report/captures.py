"""Captures of failed rollouts: a pcap file each, in the directory that ``--microsim-pcap`` names."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pytest

from ..state import ITEM, RUN, ItemState
from ..trajectories.naming import named

if TYPE_CHECKING:
    from ..rollout import Rollout

SUFFIX = ".pcap"


def file_name(nodeid: str) -> str:
    """Return the name of a test's file."""
    return named(nodeid, SUFFIX)


def announced(item: pytest.Item, state: ItemState) -> str | None:
    """Have the frames of a failed rollout written when it has ended; return what to say of it, None where nobody asks.

    Nothing is written for a rollout that has no network.
    """
    folder = item.config.stash[RUN].settings.pcap
    if folder is None or state.rollout is None:
        return None
    if state.rollout.machine.island is None:
        return "capture: none, there is no network to capture"
    path = folder / file_name(item.nodeid)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        return f"capture: {path} cannot be written: {error.strerror}"
    state.pcap = path
    forks = f"; of its forks {_of_fork(path, '-child1').name} and so on" if state.rollout.children else ""
    return f"capture: {path}{forks}"


@contextlib.contextmanager
def kept(state: ItemState) -> Iterator[None]:
    """Close the rollout at the end of a block, and hold what was captured of it and its forks until the last report.

    A fork that was closed before then has left nothing.
    """
    rollout = state.rollout
    assert rollout is not None
    try:
        _hold(state, "", rollout)
        yield
        for name, fork in _forks(rollout, ""):
            _hold(state, name, fork)
    finally:
        rollout.close()  # the last frames are written meanwhile, and the names of the files removed


def ended(item: pytest.Item, report: pytest.TestReport) -> None:
    """Write what is held of a rollout that has failed, be it in its tear-down, and add what is to be said of it."""
    state = item.stash.get(ITEM, None)
    if state is None or report.when != "teardown":
        return
    said = announced(item, state) if report.failed and state.pcap is None else None
    lines = [said] if said else []
    for name, (island, frames) in state.frames.items():
        with frames:
            if state.pcap is not None:
                path = _of_fork(state.pcap, name)
                try:
                    _replace(path, frames)
                except OSError as error:
                    lines.append(f"capture: {path} could not be written: {error.strerror}")
                if island.dropped:
                    lines.append(f"capture: {path} lacks {island.dropped} frames, which passed too fast")
    state.frames.clear()
    if lines:
        # So called, it is shown with a test that failed before as well.
        report.sections.append(("microsim teardown", "\n".join(lines)))


def _hold(state: ItemState, name: str, rollout: Rollout) -> None:
    island = rollout.machine.island
    if island is not None and island.pcap is not None:
        with contextlib.suppress(FileNotFoundError):
            state.frames[name] = island, open(island.pcap, "rb")  # noqa: SIM115


def _forks(rollout: Rollout, name: str) -> Iterator[tuple[str, Rollout]]:
    for number, child in enumerate(rollout.children, 1):
        yield f"{name}-child{number}", child
        yield from _forks(child, f"{name}-child{number}")


def _of_fork(path: Path, name: str) -> Path:
    return path.with_name(f"{path.stem}{name}{SUFFIX}")


def _replace(path: Path, frames: BinaryIO) -> None:
    # Two processes may run the same test at the same time.
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        with open(partial, "wb") as target:
            shutil.copyfileobj(frames, target)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
