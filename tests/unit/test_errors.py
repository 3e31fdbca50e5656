"""Errors: three parts and details in the text, one root, and a way through pickle."""

from __future__ import annotations

import inspect
import pickle

import pytest
from microsim_vm import errors
from microsim_vm.errors import CommandFailedError, MicrosimError

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, MicrosimError) and kind is not CommandFailedError
]


def test_the_text_has_what_cause_next_step_and_details_in_that_order() -> None:
    error = MicrosimError("it broke", cause="too hot", hint="cool it", details="line 1\nline 2\n")
    assert str(error) == "it broke\n  likely cause: too hot\n  next step: cool it\n  | line 1\n  | line 2"


def test_parts_that_are_missing_leave_no_trace() -> None:
    assert str(MicrosimError("it broke")) == "it broke"


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_survives_pickle(kind: type[MicrosimError]) -> None:
    error = kind("it broke", cause="too hot", hint="cool it", details="tail")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)
    assert copy.args == error.args


def test_a_failed_command_carries_its_result_through_pickle() -> None:
    copy = pickle.loads(pickle.dumps(CommandFailedError("it failed", result={"exit_code": 3}, details="stderr")))
    assert copy.result == {"exit_code": 3}
    assert str(copy) == "it failed\n  | stderr"


@pytest.mark.parametrize(
    ("kind", "parent"),
    [
        (errors.LockDriftError, errors.TemplateError),
        (errors.TemplateNotFoundError, errors.TemplateError),
        (errors.EngineUnavailableError, errors.EngineError),
        (errors.BootError, errors.EngineError),
        (errors.NoSpaceError, errors.SnapshotError),
        (errors.ChannelClosedError, errors.AgentError),
        (errors.AgentTimeoutError, errors.AgentError),
        (errors.WorldError, errors.AgentError),
        (errors.ControllerTimeoutError, errors.ControllerError),
    ],
)
def test_a_narrow_error_is_caught_by_its_wider_kind(kind: type[MicrosimError], parent: type[MicrosimError]) -> None:
    assert issubclass(kind, parent)
    assert issubclass(parent, MicrosimError)
