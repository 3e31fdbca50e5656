"""The end of a search: once a schedule has failed, those after it are skipped."""

from __future__ import annotations

import pytest

from ..collection import group_key
from ..state import RUN, ItemState


def skip_needless(item: pytest.Item, state: ItemState) -> None:
    """Skip a test whose schedule comes after one that has failed."""
    param = state.param
    if param is None or param.schedule is None or param.exhaustive:
        return
    first = item.config.stash[RUN].search.first(_key(item, state))
    if first is not None and first < param.run:
        pytest.skip("microsim: a schedule before this one has failed (exhaustive=True runs all of them)")


def note_failed(item: pytest.Item, state: ItemState, report: pytest.TestReport) -> None:
    """Note a schedule that failed, for those that come after it."""
    if report.failed and state.param is not None and state.param.schedule is not None:
        item.config.stash[RUN].search.failed(_key(item, state), state.param.run)


def _key(item: pytest.Item, state: ItemState) -> str:
    return f"{group_key(item)}\0{state.seed}"
