"""Answers of a guest, which may be hostile: what is not as it should be is the guest's error, never one of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from microsim_vm.errors import AgentError


@contextlib.contextmanager
def read(op: str) -> Iterator[None]:
    """Take an answer apart in this block, and in it nothing else.

    Args:
        op: What was asked, such as "exec".

    Raises:
        AgentError: Something is missing in the answer, or of another type or form.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise AgentError(f"{op}: the guest's answer is malformed: {error!r:.200}") from None
