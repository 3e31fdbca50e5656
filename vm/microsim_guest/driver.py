"""What drives a world through an episode, as the episode sees it: a controller, or a recording of actions."""

from typing import Any, Callable, Dict, List, Optional, Tuple

from microsim_guest import wire

Clock = Callable[[], Optional[float]]


class DriverFailed(wire.KnownError):
    """No usable action came. The episode ends with it, and the steps up to it are worth having."""

    kind = "controller"

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message)
        self.traceback_text = traceback_text


class Ended(Exception):
    """There are no more actions, and need not be."""


class Driver:
    """One source of actions, for one episode.

    Attributes:
        kind: Of the error where an action is none.
    """

    kind = DriverFailed.kind

    def wait_ready(self, space: Any, clock: Clock) -> None:
        """Wait until it can be asked. The world has been reset.

        Args:
            space: The world's action space, or None.
            clock: Returns the simulated seconds since the reset; None where the world tells no time.
        """
        raise NotImplementedError

    def grant(self, seconds: float) -> None:
        """Give it the time that something else has spent."""

    def act(self, observation: Any, step: int) -> Tuple[Any, bool]:
        """Return the step's action, and whether it has not come in time.

        Raises:
            DriverFailed: There is none.
            Ended: There need not be one.
        """
        raise NotImplementedError

    def described(self) -> str:
        """Say whose the last action was, as the beginning of a sentence about it."""
        raise NotImplementedError

    def finish(self) -> Tuple[Dict[str, Any], List[bytes]]:
        """End it; return what is to be said of its end, and its captured output."""
        raise NotImplementedError
