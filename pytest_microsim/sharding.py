"""One part of a suite of several, for jobs that run side by side: the seeds of a group are never torn apart."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from .collection import group_key
from .state import RUN

_EMPTY = pytest.StashKey[bool]()
"""Set where nothing is left of what was collected, so that a run of nothing is no mistake."""

_TOLD = "microsim_empty_shard"


def select_shard(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of the part that is asked for.

    Which those are follows from the tests that were collected, and not from their order: all jobs of a suite have to
    collect the same ones.
    """
    shard = config.stash[RUN].settings.shard
    if shard is None or not items:
        return
    keys = [group_key(item) for item in items]
    mine = shard.of(Counter(keys))
    kept = [item for item, key in zip(items, keys, strict=True) if key in mine]
    if left := [item for item, key in zip(items, keys, strict=True) if key not in mine]:
        config.hook.pytest_deselected(items=left)
    items[:] = kept
    config.stash[_EMPTY] = not kept


def pass_empty_shard(session: pytest.Session) -> None:
    """Let a part without a test pass: there are more parts than groups."""
    empty = session.config.stash.get(_EMPTY, False)
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_TOLD] = empty
    elif empty and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


def note_empty_shard(node: Any) -> None:
    """Note what a worker of pytest-xdist, which has collected in our place, says of its part."""
    if getattr(node, "workeroutput", {}).get(_TOLD):
        node.config.stash[_EMPTY] = True
