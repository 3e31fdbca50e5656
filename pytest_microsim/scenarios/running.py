"""What the test of a scenario does."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from microsim_vm.errors import ControllerError, ControllerMachineError, MicrosimError

from ..state import ITEM, ItemState
from .draws import drawn
from .expectations import misses
from .spec import RecordingFile, Scenario

if TYPE_CHECKING:
    from ..rollout import Rollout
    from ..trajectories.recordings import Recording


def describe(scenario: Scenario, item: pytest.Item, state: ItemState) -> None:
    """Note what a rollout is given, as soon as its seed is known: a test that fails in its set-up says so too."""
    callspec = getattr(item, "callspec", None)
    point = callspec.params.get(POINT, {}) if callspec else {}
    document = scenario.document
    state.scenario, state.tags = item.location[0], document.tags
    state.parameters = drawn(document.parameters, point, state.seed, document.parameters_seed)


POINT = "parameters"
"""The parameter of a test that has grids: one of their points."""


def run(scenario: Scenario, item: pytest.Item, rollout: Rollout) -> None:
    """Run a scenario's episode, and compare it with what is expected.

    Raises:
        pytest.fail.Exception: It is not as expected, or was not finished.
        pytest.xfail.Exception: It missed what is expected, and the group is judged by how many do.
    """
    state = item.stash[ITEM]
    place = item.location[0]
    try:
        episode = rollout.run(_controller(scenario), options=state.parameters or None)
        missed = [f"{place}:{line}: {text}" for line, text in misses(scenario, episode)]
    except ControllerMachineError as error:  # not the controller's doing
        raise _failure(f"{place}:{scenario.line('controller')}: {error}", state) from None
    except ControllerError as error:
        missed = [f"{place}:{scenario.line('controller')}: {error}"]
    except MicrosimError as error:
        raise _failure(
            f"{place}:{scenario.line('parameters' if state.parameters else 'world')}: {error}", state
        ) from None
    if not missed:
        return
    if scenario.document.pass_rate is not None:
        state.missed = "\n".join(missed)
        # With --runxfail this returns, and the seed fails on its own.
        pytest.xfail("; ".join(each.partition("\n")[0] for each in missed))
    raise _failure("\n".join(missed), state) from None


def _controller(scenario: Scenario) -> str | list[str] | Recording:
    """Return the controller by its absolute path, which is relative to the scenario's file alone; or a recording."""
    controller = scenario.document.controller
    folder = scenario.path.parent
    if controller is None:
        return _recording(scenario)
    if isinstance(controller, str):
        return str(folder / controller)
    return [str(folder / controller[0]), *controller[1:]]


@functools.lru_cache(maxsize=4)
def _recording(scenario: Scenario) -> Recording:
    """Read the recording once for all seeds.

    Raises:
        RecordingError: It cannot be used.
    """
    from ..trajectories.recordings import Recording

    written = scenario.document.recording
    assert written is not None  # else the file was refused
    chosen = RecordingFile(file=written) if isinstance(written, str) else written
    how: dict[str, Any] = {name: getattr(chosen, name) for name in chosen.__struct_fields__ if name != "file"}
    return Recording.open(scenario.path.parent / chosen.file, **how)


def _failure(text: str, state: ItemState) -> BaseException:
    return pytest.fail.Exception("\n".join([text, *parameter_lines(state.parameters)]), pytrace=False)


def parameter_lines(parameters: Mapping[str, Any]) -> list[str]:
    """Return what the world was given, in one line; none where there is nothing."""
    if not parameters:
        return []
    return ["parameters: " + ", ".join(f"{name}={value!r}" for name, value in parameters.items())]
