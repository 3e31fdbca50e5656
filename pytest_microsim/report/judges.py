"""Judges of whole groups beside the gates: a pass rate that was asked for, a baseline.

They see all groups of a run at once, after the last test, in the process whose exit status counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pytest

from ..gates.verdicts import Verdict
from ..results.model import GroupResult


class GroupJudge(Protocol):
    """Says what is to be said of groups. A verdict that fails becomes one more failed report, as a gate's does."""

    def judge(self, groups: Sequence[GroupResult]) -> Mapping[str, Sequence[Verdict]]:
        """Judge all groups of a run; called once.

        Args:
            groups: All of them, with the gates' verdicts, and partial ones too: see
                :func:`pytest_microsim.results.gathering.complete`. A judge may set a group's ``baseline``, and nothing
                else of it.

        Returns:
            Verdicts by a group's key, for any of the groups.
        """


_JUDGES = pytest.StashKey[list[GroupJudge]]()


def add_judge(config: pytest.Config, judge: GroupJudge) -> None:
    """Have a judge asked at the end of the run; to be called while pytest is being configured."""
    config.stash.setdefault(_JUDGES, []).append(judge)


def judges_of(config: pytest.Config) -> list[GroupJudge]:
    """Return all judges, in the order in which they were added."""
    return config.stash.get(_JUDGES, [])
