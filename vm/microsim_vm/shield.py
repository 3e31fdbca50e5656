"""Wait for what is being made elsewhere, so that Ctrl-C leaves nothing half-made behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def outcome(future: Future[T], discard: Callable[[T], None]) -> T:
    """Return a future's result; where the wait is interrupted, have the result discarded as soon as there is one."""

    def unwanted(done: Future[T]) -> None:
        if not done.cancelled() and done.exception() is None:
            discard(done.result())

    try:
        return future.result()
    except BaseException:  # the future's own failure is one of these too, and leaves nothing to discard
        future.add_done_callback(unwanted)
        raise


def made(make: Callable[[], T], discard: Callable[[T], None]) -> T:
    """Make something in a thread, where no signal arrives in the midst of it; see :func:`outcome`."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(make())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="microsim-making", daemon=True).start()
    return outcome(future, discard)
