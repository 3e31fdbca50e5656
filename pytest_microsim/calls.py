"""Calls that a test makes: where they go wrong, the report shows the test's line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from microsim_vm.errors import MicrosimError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def raises_at_the_call(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let an error of ours show the line of the test that made the call, not the plumbing below it."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except MicrosimError as error:
            raise error.with_traceback(None)  # noqa: B904 (the same error, not a new one)

    return call
