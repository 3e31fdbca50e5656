"""One episode: reset, then observation out and action in, until the end; everything recorded."""

import copy
import math
from typing import Any, Dict, Optional, Tuple

from microsim_guest import codec, recorder, resetting, wire
from microsim_guest.camera import Camera
from microsim_guest.controllerlink import ControllerFailed, ControllerLate
from microsim_guest.driver import Driver, DriverFailed, Ended


def to_action(action: Any, space: Any, whose: str = "the controller returned") -> Any:
    """Turn what a controller returned into what ``step`` takes.

    Args:
        action: What it returned.
        space: The world's action space, or None.
        whose: The beginning of a sentence on it.

    Raises:
        DriverFailed: Not numeric, not finite, or not of the space's shape and type.
    """
    np = codec.numpy()
    if action is None:
        raise DriverFailed("{} None instead of an action".format(whose))
    dtype, shape = getattr(space, "dtype", None), getattr(space, "shape", None)
    if np is None or shape is None or dtype is None:
        _require_numbers(action, action, whose)
        return action
    try:
        given = np.asarray(action)
    except ValueError as error:  # a ragged list
        raise _no_action(action, error, whose) from None
    if given.dtype.kind not in "fiub":
        raise _no_action(action, "expected numbers", whose)
    if given.shape != tuple(shape):
        raise DriverFailed("{} an action of shape {}, the world takes {}".format(
            whose, list(given.shape), list(shape)))  # fmt: skip
    with np.errstate(all="ignore"):  # what does not fit is refused below
        array = given.astype(dtype)
    if not np.isfinite(given).all() or not np.isfinite(array).all():
        raise DriverFailed("{} an action that is not finite: {}".format(whose, action))
    contains = getattr(space, "contains", None)
    if np.dtype(dtype).kind in "iub" and not ((array == given).all() and (contains is None or contains(array))):
        raise DriverFailed("{} {}, the world takes {}".format(whose, action, space))
    return array.item() if array.shape == () else array


def _require_numbers(part: Any, action: Any, whose: str, depth: int = 0) -> None:
    """Check an action for which there is no space: numbers, or lists, arrays and dicts of them."""
    if depth > codec.MAX_DEPTH:
        raise DriverFailed("{} an action that is nested too deeply".format(whose))
    if hasattr(part, "tolist"):
        part = part.tolist()
    if isinstance(part, (list, tuple, dict)):
        for item in part.values() if isinstance(part, dict) else part:
            _require_numbers(item, action, whose, depth + 1)
    elif not isinstance(part, (bool, int, float)):
        raise _no_action(action, "expected numbers, not {}".format(type(part).__name__), whose)
    elif not math.isfinite(part if isinstance(part, float) else 0.0):
        raise DriverFailed("{} an action that is not finite: {}".format(whose, action))


def _no_action(action: Any, why: Any, whose: str) -> DriverFailed:
    return DriverFailed("{} {!r}, which is no action: {}".format(whose, str(action)[:80], why))


class NoTime(wire.KnownError):
    """The episode has a limit of simulated time, and the world does not tell its time."""

    kind = "world"

    def __init__(self) -> None:
        super().__init__(
            'the episode has a limit of simulated time, and the world tells none: info["time"], or an attribute time'
        )


def run(
    world: Any, seed: Optional[int], limits: Dict[str, Any], driver: Driver, camera: Optional[Camera] = None
) -> Tuple[Dict[str, Any], recorder.Recorder]:
    """Run one episode in the world.

    Args:
        world: The environment.
        seed: What ``reset`` is given; None replays whatever state the generators are in.
        limits: ``max_steps``, after which the episode is truncated; ``max_time_s``, likewise of simulated time, or
            None; ``late``, what is done where the controller misses a step's deadline: "fail", or take the action
            before ("hold") or no action ("zero"); ``options`` for ``reset``, where there are any.
        driver: The controller, or the recording.
        camera: What takes pictures of it, where any are wanted.

    Returns:
        Flags, metrics, which limit was met, and the recorded columns.

    Raises:
        Exception: Whatever the world raises. The driver's failure is part of the result instead, because
            the steps up to it are worth having.
    """
    rows = recorder.Recorder()
    result: Dict[str, Any] = {
        "terminated": False, "truncated": False, "limit": "", "late_steps": 0, "error": None,
    }  # fmt: skip
    observation, info = resetting.reset(world, seed, limits.get("options"))
    space = getattr(world, "action_space", None)
    state = getattr(world, "state", None)
    began, most = time_of(world, info), limits.get("max_time_s")
    if most is not None and began is None:
        raise NoTime
    rows.append("observation", observation)
    if callable(state):
        rows.append("state", state())
    if camera is not None:
        camera.look(0)
    last: Any = None
    try:
        driver.wait_ready(space, lambda: _since(began, time_of(world, info)))
        for step in range(limits["max_steps"]):
            action, late = driver.act(observation, step)
            if late:
                result["late_steps"] += 1
                action = in_place_of_late(limits["late"], last, space, step)
            else:
                action = to_action(action, space, driver.described())
            try:
                rows.append("action", action)
            except (recorder.ShapeChanged, TypeError, ValueError, OverflowError, RecursionError) as error:
                raise ControllerFailed("the controller's action cannot be used: {}".format(error)) from None
            last = (
                copy.deepcopy(action) if limits.get("late") == "hold" else action
            )  # a world may change what it is given
            observation, reward, terminated, truncated, info = world.step(action)
            rows.append("reward", float(reward))
            rows.append("observation", observation)
            if callable(state):
                rows.append("state", state())
            rows.check_size()
            if camera is not None:
                driver.grant(camera.look(step + 1))
            if terminated or truncated:
                result["terminated"], result["truncated"] = bool(terminated), bool(truncated)
                break
            if most is not None and _passed(began, time_of(world, info)) >= most:
                result["truncated"], result["limit"] = True, "time"
                break
        else:
            result["truncated"], result["limit"] = True, "steps"
    except Ended:
        result["truncated"], result["limit"] = True, "recording"
    except DriverFailed as error:
        result["error"] = wire.error_header(error, error.traceback_text)
        if type(error) is DriverFailed:  # an action that is none, whoever it came from
            result["error"]["kind"] = driver.kind
    if camera is not None:
        camera.look(rows.columns["reward"].rows if "reward" in rows.columns else 0, last=True)
    result["simulated_s"] = _since(began, time_of(world, info))
    result["metrics"] = metrics_of(world, info)
    return result, rows


def in_place_of_late(policy: str, last: Any, space: Any, step: int) -> Any:
    """Return the action of a step whose deadline the controller has missed.

    Raises:
        ControllerLate: There is none: the policy is "fail", or nothing says what no action is.
    """
    if policy == "hold" and last is not None:
        return last
    if policy in ("hold", "zero"):
        zeros = None if last is None else _zeros_like(last)
        if getattr(space, "shape", None) is not None and codec.numpy() is not None:
            zeros = codec.numpy().zeros(space.shape, space.dtype)
        try:
            if zeros is not None:
                return to_action(zeros, space)
            why = "there is no earlier action, nor an action space, to say what stands in for it"
        except DriverFailed:
            why = "zero, which would stand in for it, is no action of this world"
    else:
        why = "controller.late is fail"
    raise ControllerLate("the controller missed the deadline of step {}; {}".format(step, why))


def _zeros_like(action: Any) -> Any:
    if isinstance(action, dict):
        return {key: _zeros_like(item) for key, item in action.items()}
    if isinstance(action, (list, tuple)):
        return [_zeros_like(item) for item in action]
    return action * 0


def time_of(world: Any, info: Any) -> Optional[float]:
    """Return the simulated time that the world tells, in seconds: ``info["time"]``, or its attribute ``time``."""
    told: Any = info.get("time") if isinstance(info, dict) else None
    if told is None:
        told = getattr(world, "time", None)
    seconds = float(told) if _is_scalar(told) and not isinstance(told, bool) else math.nan
    return seconds if math.isfinite(seconds) else None


def _since(began: Optional[float], now: Optional[float]) -> Optional[float]:
    return None if began is None or now is None else now - began


def _passed(began: Optional[float], now: Optional[float]) -> float:
    passed = _since(began, now)
    if passed is None:
        raise NoTime
    return passed


def metrics_of(world: Any, info: Any) -> Any:
    """Return the world's ``metrics()`` as it is, or the numeric scalars of the last ``info``.

    The host decides what is a score: see :mod:`microsim_vm.scores`.
    """
    declared = getattr(world, "metrics", None)
    if callable(declared):
        return declared()
    return {name: value for name, value in info.items() if _is_scalar(value)}


def _is_scalar(value: Any) -> bool:
    if isinstance(value, (bool, int, float)):
        return True
    return getattr(value, "shape", None) == () and value.dtype.kind in "fiub"
