"""Recorded actions that drive a world: no process, but a table that an episode takes its actions from."""

import array
import bisect
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

from microsim_guest import codec, driver, wire

NOTHING = {"exit_code": 0, "ended": True, "events": {}, "left": 0, "refused": {}, "output": [0, 0]}
"""What there is to say of the end of a controller that there was none of."""


class RecordingTimedOut(driver.DriverFailed):
    """The episode's wall-clock limit passed."""

    kind = "controller_timeout"


class NoClock(wire.KnownError):
    """The recording follows simulated time, and the world does not tell any."""

    kind = "world"
    hint = 'let the world tell it, give the recording step_seconds, or take its rows one by one: by="step"'

    def __init__(self) -> None:
        super().__init__('the recording follows simulated time, and the world tells none: info["time"], or an '
                         "attribute time")  # fmt: skip


class Recorded(driver.Driver):
    """A recording that stands in for a controller.

    Args:
        request: ``filename`` for messages, and ``timeout_s``.
        packed: A frame. Its header has ``columns`` (name, dtype, shape), ``by`` ("step": one row for each; "time":
            what was in force), ``hold`` ("previous" or "linear"), ``step_s`` (seconds of a step, or None for the
            world's own time), ``until_s`` (when the last row ends) and ``tolerance_s`` (by how much a row may come too
            early); its attachments are the rows' times as doubles, and the columns.
    """

    kind = "recording"

    def __init__(self, request: Dict[str, Any], packed: bytes) -> None:
        header_size, _ = wire.parse_prefix(packed[: wire.PREFIX.size])
        start = wire.PREFIX.size + header_size
        frame = wire.decode(packed[wire.PREFIX.size : start], packed[start:])
        how, (times, *data) = frame.header, frame.blobs
        self._file = request["filename"]
        self._limit = request["timeout_s"]
        self._deadline = 0.0
        self._by, self._linear = how["by"], how["hold"] == "linear"
        self._step_s: Optional[float] = how["step_s"]
        self._until_s: float = how["until_s"]
        self._times = array.array("d", times)
        if sys.byteorder == "big":
            self._times.byteswap()
        self._tolerance: float = how["tolerance_s"]
        self._columns = [_Column(spec, data[number]) for number, spec in enumerate(how["columns"])]
        self._row = 0
        self._shape: Any = None
        self._clock: driver.Clock = lambda: None

    def wait_ready(self, space: Any, clock: driver.Clock) -> None:
        """Note how the world wants its actions, and what tells its time."""
        self._deadline = time.monotonic() + self._limit
        self._shape = getattr(space, "shape", None)
        self._clock = clock

    def grant(self, seconds: float) -> None:
        """Give the episode the time that something else has spent."""
        self._deadline += seconds

    def act(self, observation: Any, step: int) -> Tuple[Any, bool]:
        """Return the step's action."""
        if time.monotonic() > self._deadline:
            raise RecordingTimedOut("{} was still being played when the episode's {:g} s were over".format(
                self._file, self._limit))  # fmt: skip
        if self._by == "step":
            if step >= self._columns[0].rows:
                raise driver.Ended
            self._row = step
            return self._action(None), False
        passed = self._clock() if self._step_s is None else step * self._step_s
        if passed is None:
            raise NoClock
        passed += self._tolerance
        if passed >= self._until_s:
            raise driver.Ended
        self._row = max(0, bisect.bisect_right(self._times, passed) - 1)
        return self._action(passed - self._tolerance), False

    def _action(self, passed: Optional[float]) -> Any:
        share = 0.0
        if self._linear and passed is not None and self._row + 1 < len(self._times):
            begun, end = self._times[self._row : self._row + 2]
            share = max(0.0, (passed - begun) / (end - begun))
        parts = {column.name: column.at(self._row, share, self._shape) for column in self._columns}
        if "action" in parts:
            return parts["action"]
        return {name[len("action.") :]: part for name, part in parts.items()}

    def described(self) -> str:
        """Name file and row."""
        return "row {} of {} is".format(self._row, self._file)

    def finish(self) -> Tuple[Dict[str, Any], List[bytes]]:
        """Do nothing: there is no process."""
        return NOTHING, [b"", b""]


class _Column:
    """The rows of one part of the action."""

    def __init__(self, spec: Dict[str, Any], raw: bytes) -> None:
        self.name: str = spec["name"]
        self.rows: int = spec["shape"][0]
        self._dtype: str = spec["dtype"]
        self._shape: List[int] = spec["shape"][1:]
        self._raw = raw
        self._size = len(raw) // self.rows

    def at(self, row: int, share: float, wanted: Any) -> Any:
        """Return one row, or what lies by a share of the way between it and the next.

        Args:
            row: Which.
            share: From 0 to 1.
            wanted: The shape that the world takes, or None; a row of as many numbers is given that shape.
        """
        flat = self._flat(row)
        if share > 0.0:
            following = self._flat(row + 1)
            flat = [each + (following[number] - each) * share for number, each in enumerate(flat)]
        np = codec.numpy()
        if np is None:
            return _shaped(flat, self._shape)
        shape = list(self._shape)
        if wanted is not None and np.prod(wanted, dtype=int) == len(flat):
            shape = list(wanted)
        return flat[0] if not shape else np.array(flat, self._dtype).reshape(shape)

    def _flat(self, row: int) -> List[Any]:
        raw = self._raw[row * self._size : (row + 1) * self._size]
        flat: List[Any] = codec.nested(self._dtype, [self._size // int(self._dtype[2:])], raw)
        return flat


def _shaped(flat: List[Any], shape: List[int]) -> Any:
    for size in reversed(shape[1:]):
        flat = [flat[start : start + size] for start in range(0, len(flat), size)] if size else []
    return flat if shape else flat[0]
