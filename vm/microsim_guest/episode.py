"""One episode: reset, then observation out and action in, until the end; everything recorded."""

import contextlib
import math
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from microsim_guest import codec, recorder, streams, wire

MAX_ACTION = 16 * 1024 * 1024


class ControllerFailed(wire.KnownError):
    """The controller did not load, raised, died, or returned something that is no action."""

    kind = "controller"

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message)
        self.traceback_text = traceback_text


class ControllersGone(wire.KnownError):
    """The controller host is dead: no episode can be run any more."""

    kind = "agent"

    def __init__(self) -> None:
        super().__init__("the process that starts controllers died")


class ControllerTimedOut(ControllerFailed):
    """The episode's wall-clock limit passed."""

    kind = "controller_timeout"


class ControllerLink:
    """The world host's side of one controller process.

    Args:
        host: Socket to the controller host.
        request: ``filename``, ``limits``, ``timeout_s``, and ``env`` (additional environment) where there is any.
        source: The controller's file.
        seed: The episode's; None leaves the controller's generators as the snapshot had them.
    """

    def __init__(self, host: socket.socket, request: Dict[str, Any], source: bytes, seed: Optional[int]) -> None:
        self._host = wire.SocketLink(host)
        self._deadline = time.monotonic() + request["timeout_s"]
        self._limit = request["timeout_s"]
        ours, theirs = socket.socketpair()
        self._sock = ours
        self._link = wire.SocketLink(ours, max_blobs=MAX_ACTION, read_ahead=True)
        start = {
            "filename": request["filename"],
            # A stream of its own: the controller must not be able to replay the world's randomness.
            "seed": None if seed is None else streams.integer(seed, "controller"),
            "limits": request["limits"],
            "env": request.get("env", {}),
        }
        with theirs:
            try:
                wire.send_command(host, b"S", start, [source], theirs)
            except OSError:
                raise ControllersGone from None

    def wait_loaded(self) -> None:
        """Wait until the controller's file has been executed."""
        self._answer("loading")

    def act(self, observation: Any) -> Any:
        """Send one observation and return the action."""
        blobs: List[bytes] = []
        header = {"observation": codec.pack(observation, blobs)}
        # Where it died or does not read, the receive below says so, after any error it still reported.
        with contextlib.suppress(OSError):
            self._link.send(header, blobs, self._deadline)
        frame = self._answer("acting")
        try:
            return codec.unpack(frame.header.get("action"), frame.blobs)
        except ValueError as error:
            raise ControllerFailed("the controller sent a malformed action: {}".format(error)) from None

    def _answer(self, activity: str) -> wire.Frame:
        try:
            frame = self._link.receive(self._deadline)
        except socket.timeout:
            raise ControllerTimedOut(
                "the controller was still {} when the episode's {:g} s were over".format(activity, self._limit)
            ) from None
        except wire.ProtocolError as wrong:
            raise ControllerFailed("the controller wrote to the framework's link: {}".format(wrong)) from None
        except (wire.LinkClosed, OSError):
            raise ControllerFailed("the controller's process ended while {}".format(activity)) from None
        error = frame.header.get("error")
        if isinstance(error, dict):
            raise ControllerFailed(
                "the controller raised {}: {}".format(error.get("kind"), error.get("message")),
                str(error.get("traceback", "")),
            )
        return frame

    def finish(self) -> Tuple[Dict[str, Any], List[bytes]]:
        """End the controller's process; return its exit code, limit events and captured output."""
        self._sock.close()
        try:
            wire.send_command(self._host.sock, b"F", {})
            frame = self._host.receive()
        except (OSError, wire.LinkClosed):
            raise ControllersGone from None
        return frame.header["ok"], list(frame.blobs)


def to_action(action: Any, space: Any) -> Any:
    """Turn what a controller returned into what ``step`` takes.

    Raises:
        ControllerFailed: Not numeric, not finite, or not of the space's shape and type.
    """
    np = codec.numpy()
    if action is None:
        raise ControllerFailed("the controller returned None instead of an action")
    dtype, shape = getattr(space, "dtype", None), getattr(space, "shape", None)
    if np is None or shape is None or dtype is None:
        _require_numbers(action, action)
        return action
    try:
        given = np.asarray(action)
    except ValueError as error:  # a ragged list
        raise _no_action(action, error) from None
    if given.dtype.kind not in "fiub":
        raise _no_action(action, "expected numbers")
    if given.shape != tuple(shape):
        raise ControllerFailed("the controller returned an action of shape {}, the world takes {}".format(
            list(given.shape), list(shape)))  # fmt: skip
    with np.errstate(all="ignore"):  # what does not fit is refused below
        array = given.astype(dtype)
    if not np.isfinite(given).all() or not np.isfinite(array).all():
        raise ControllerFailed("the controller returned an action that is not finite: {}".format(action))
    contains = getattr(space, "contains", None)
    if np.dtype(dtype).kind in "iub" and not ((array == given).all() and (contains is None or contains(array))):
        raise ControllerFailed("the controller returned {}, the world takes {}".format(action, space))
    return array.item() if array.shape == () else array


def _require_numbers(part: Any, action: Any) -> None:
    """Check an action for which there is no space: numbers, or lists, arrays and dicts of them."""
    if hasattr(part, "tolist"):
        part = part.tolist()
    if isinstance(part, (list, tuple, dict)):
        for item in part.values() if isinstance(part, dict) else part:
            _require_numbers(item, action)
    elif not isinstance(part, (bool, int, float)):
        raise _no_action(action, "expected numbers, not {}".format(type(part).__name__))
    elif not math.isfinite(part if isinstance(part, float) else 0.0):
        raise ControllerFailed("the controller returned an action that is not finite: {}".format(action))


def _no_action(action: Any, why: Any) -> ControllerFailed:
    return ControllerFailed("the controller returned {!r}, which is no action: {}".format(str(action)[:80], why))


def run(
    world: Any, seed: Optional[int], max_steps: int, link: ControllerLink
) -> Tuple[Dict[str, Any], recorder.Recorder]:
    """Run one episode in the world.

    Args:
        world: The environment.
        seed: What ``reset`` is given; None replays whatever state the generators are in.
        max_steps: The episode is truncated after this many steps.
        link: The controller.

    Returns:
        Flags, reward, metrics and the recorded columns.

    Raises:
        Exception: Whatever the world raises. A controller's failure is part of the result instead, because
            the steps up to it are worth having.
    """
    rows = recorder.Recorder()
    result: Dict[str, Any] = {
        "steps": 0, "terminated": False, "truncated": False, "total_reward": 0.0, "error": None,
    }  # fmt: skip
    observation, info = world.reset(seed=seed)
    space = getattr(world, "action_space", None)
    state = getattr(world, "state", None)
    rows.append("observation", observation)
    if callable(state):
        rows.append("state", state())
    try:
        link.wait_loaded()
        while result["steps"] < max_steps:
            action = to_action(link.act(observation), space)
            try:
                rows.append("action", action)
            except (recorder.ShapeChanged, TypeError, ValueError) as error:
                raise ControllerFailed("the controller's action cannot be used: {}".format(error)) from None
            observation, reward, terminated, truncated, info = world.step(action)
            rows.append("reward", float(reward))
            rows.append("observation", observation)
            if callable(state):
                rows.append("state", state())
            rows.check_size()
            result["steps"] += 1
            result["total_reward"] += float(reward)
            if terminated or truncated:
                result["terminated"], result["truncated"] = bool(terminated), bool(truncated)
                break
        else:
            result["truncated"] = True
    except ControllerFailed as error:
        result["error"] = wire.error_header(error, error.traceback_text)
    result["metrics"] = metrics_of(world, info)
    return result, rows


def metrics_of(world: Any, info: Any) -> Dict[str, float]:
    """Return the world's ``metrics()``, or the numeric scalars of the last ``info``."""
    declared = getattr(world, "metrics", None)
    values = declared() if callable(declared) else info
    return {str(name): float(value) for name, value in values.items() if _is_scalar(value)}


def _is_scalar(value: Any) -> bool:
    if isinstance(value, (bool, int, float)):
        return True
    return getattr(value, "shape", None) == () and value.dtype.kind in "fiub"
