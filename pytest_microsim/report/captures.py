"""Captures of failed rollouts: a pcap file each, in the directory that ``--microsim-pcap`` names."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from ..state import RUN, ItemState

SUFFIX = ".pcap"
MOST_BYTES = 100
HASH_DIGITS = 16


def file_name(nodeid: str) -> str:
    """Return a test's file name: at most 100 bytes of ASCII, and another one for each test."""
    tail = f"-{hashlib.sha256(nodeid.encode('utf-8', 'surrogatepass')).hexdigest()[:HASH_DIGITS]}{SUFFIX}"
    words = re.sub(r"[^A-Za-z0-9.-]+", "_", nodeid).strip("._-")
    room = MOST_BYTES - len(tail)
    if len(words) > room:
        half = room // 2 - 1
        words = f"{words[:half]}--{words[-half:]}"  # where it is, and its seed
    return words + tail


def announced(item: pytest.Item, state: ItemState) -> str | None:
    """Have the frames of a failed rollout written when it ends; return what to say of it, None where nothing is asked.

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
    return f"capture: {path}"


@contextlib.contextmanager
def kept(state: ItemState) -> Iterator[None]:
    """Copy the rollout's frames at the end of a block that closes it, if it was announced.

    Raises:
        OSError: They cannot be written.
    """
    source = state.rollout.machine.island.pcap if state.rollout and state.rollout.machine.island else None
    if source is None:
        yield
        return
    with open(source, "rb") as frames:  # the last ones are written while the rollout closes, which removes the name
        yield
        if state.pcap is not None:
            _replace(state.pcap, frames)


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
