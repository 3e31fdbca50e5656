"""One episode: reset, then observation out and action in, until the end; everything recorded."""

import contextlib
import math
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from microsim_guest import codec, recorder, streams, wire


class ControllerFailed(Exception):
    """The controller did not load, raised, died, or returned something that is no action."""

    kind = "controller"

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message)
        self.traceback_text = traceback_text


class ControllerTimedOut(ControllerFailed):
    """The episode's wall-clock limit passed."""

    kind = "controller_timeout"


class ControllerLink:
    """The world host's side of one controller process."""

    def __init__(self, host: socket.socket, request: Dict[str, Any], source: bytes, seed: int) -> None:
        self._host = wire.SocketLink(host)
        self._deadline = time.monotonic() + request["timeout_s"]
        self._limit = request["timeout_s"]
        ours, theirs = socket.socketpair()
        self._sock = ours
        self._link = wire.SocketLink(ours)
        start = {
            "filename": request["filename"],
            # A stream of its own: the controller must not be able to replay the world's randomness.
            "seed": streams.integer(seed, "controller"),
            "limits": request["limits"],
        }
        with theirs:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, theirs.fileno().to_bytes(4, "little"))]
            host.sendmsg([b"S"], rights)
            self._host.send(start, [source])

    def wait_loaded(self) -> None:
        """Wait until the controller's file has been executed."""
        self._answer("loading")

    def act(self, observation: Any) -> Any:
        """Send one observation and return the action."""
        blobs: List[bytes] = []
        header = {"observation": codec.pack(observation, blobs)}
        with contextlib.suppress(OSError):  # it died: the receive below says so, after any error it still reported
            self._link.send(header, blobs)
        frame = self._answer("acting")
        try:
            return codec.unpack(frame.header.get("action"), frame.blobs)
        except ValueError as error:
            raise ControllerFailed("the controller sent a malformed action: {}".format(error)) from None

    def _answer(self, activity: str) -> wire.Frame:
        remaining = self._deadline - time.monotonic()
        try:
            if remaining <= 0:
                raise socket.timeout
            self._sock.settimeout(remaining)
            frame = self._link.receive()
        except socket.timeout:
            raise ControllerTimedOut(
                "the controller was still {} when the episode's {:g} s were over".format(activity, self._limit)
            ) from None
        except (wire.LinkClosed, wire.ProtocolError, OSError):
            raise ControllerFailed("the controller's process ended while {}".format(activity)) from None
        error = frame.header.get("error")
        if error is not None:
            raise ControllerFailed(
                "the controller raised {}: {}".format(error.get("kind"), error.get("message")),
                str(error.get("traceback", "")),
            )
        return frame

    def finish(self) -> Tuple[Dict[str, Any], List[bytes]]:
        """End the controller's process; return its exit code, limit events and captured output."""
        self._sock.close()
        self._host.sock.sendall(b"F")
        self._host.send({})
        frame = self._host.receive()
        return frame.header["ok"], list(frame.blobs)


def to_action(action: Any, space: Any) -> Any:
    """Turn what a controller returned into what ``step`` takes.

    Raises:
        ControllerFailed: Not numeric, not finite, or of the wrong shape.
    """
    np = codec.numpy()
    if action is None:
        raise ControllerFailed("the controller returned None instead of an action")
    dtype, shape = getattr(space, "dtype", None), getattr(space, "shape", None)
    try:
        if np is not None and shape is not None and dtype is not None:
            array = np.asarray(action, dtype=dtype if np.dtype(dtype).kind in "iub" else np.float64)
            if array.shape != tuple(shape):
                raise ControllerFailed(
                    "the controller returned an action of shape {}, the world takes {}".format(
                        list(array.shape), list(shape)
                    )
                )
            if not np.isfinite(array).all():
                raise ControllerFailed("the controller returned an action that is not finite: {}".format(action))
            return array.item() if array.shape == () else array.astype(dtype)
        flat = action if isinstance(action, (list, tuple)) else [action]
        if not all(math.isfinite(float(item)) for item in flat):
            raise ControllerFailed("the controller returned an action that is not finite: {}".format(action))
    except (TypeError, ValueError, OverflowError) as error:
        raise ControllerFailed(
            "the controller returned {!r}, which is no action: {}".format(str(action)[:80], error)
        ) from None
    return action


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
            observation, reward, terminated, truncated, info = world.step(action)
            rows.append("action", action)
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
