"""What the test of a scenario does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from microsim_vm.errors import ControllerError, ControllerMachineError, MicrosimError, RecordingError

from ..errors import ScenarioError
from ..state import ITEM, ItemState
from .draws import drawn
from .expectations import misses
from .recorded import opened
from .spec import Scenario

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
    driver = "controller" if scenario.document.recording is None else "recording"
    try:
        episode = rollout.run(_controller(scenario), options=state.parameters or None)
        missed = [f"{place}:{line}: {text}" for line, text in misses(scenario, episode)]
    except ScenarioError as error:  # it says where
        raise _failure(str(error), state) from None
    except (ControllerMachineError, RecordingError) as error:  # not the controller's doing
        raise _failure(f"{place}:{scenario.line(driver)}: {error}", state) from None
    except ControllerError as error:
        missed = [f"{place}:{scenario.line(driver)}: {error}"]
    except MicrosimError as error:
        key = "parameters" if state.parameters else "world"
        raise _failure(f"{place}:{scenario.line(key)}: {error}", state) from None
    if not missed:
        return
    if scenario.document.pass_rate is not None:
        state.missed = "\n".join(missed)
        # With --runxfail this returns, and the seed fails on its own.
        pytest.xfail("; ".join(each.partition("\n")[0] for each in missed))
    raise _failure("\n".join(missed), state) from None


def _controller(scenario: Scenario) -> str | list[str] | Recording:
    """Return the controller by its absolute path, which is relative to the scenario's file alone; or a recording."""
    controller, recording = scenario.document.controller, scenario.document.recording
    folder = scenario.path.parent
    if recording is not None:
        return opened(folder, recording)
    assert controller is not None  # else the file was refused
    if isinstance(controller, str):
        return str(folder / controller)
    return [str(folder / controller[0]), *controller[1:]]


def _failure(text: str, state: ItemState) -> BaseException:
    return pytest.fail.Exception("\n".join([text, *parameter_lines(state.parameters)]), pytrace=False)


def parameter_lines(parameters: Mapping[str, Any]) -> list[str]:
    """Return what the world was given, in one line; none where there is nothing."""
    if not parameters:
        return []
    return ["parameters: " + ", ".join(f"{name}={value!r}" for name, value in parameters.items())]
