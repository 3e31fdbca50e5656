"""Controllers before they reach a guest: their files, and their limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from microsim_guest import simctl
from microsim_vm import controllers
from microsim_vm.errors import ControllerError, LimitsError
from microsim_vm.machine import Machine
from microsim_vm.templates.spec import ControllerLimits
from microsim_vm.world import WarmWorld

BAD_STEPS = ["5", 2.5, -1, 0, True, None]
BAD_SECONDS = [float("inf"), float("nan"), 0, -1.0, 86401, True, "5"]


def test_a_name_tells_python_from_a_program(tmp_path: Path) -> None:
    kinds = [
        controllers.kind_of(given) for given in ("a/dock.py", Path("dock.py"), "a/dock", "dock.sh", ["dock.py", "-v"])
    ]
    assert kinds == ["python", "python", "program", "program", "program"]
    script = tmp_path / "dock"
    script.write_text("#!/bin/sh\n")
    read = controllers.read(script, "program", ["-v"])
    assert (read.data, read.filename, read.kind, read.words) == (b"#!/bin/sh\n", "dock", "program", ("-v",))
    script.write_text("echo 1\n")
    with pytest.raises(ControllerError, match="no program"):
        controllers.read(script, "program")
    with pytest.raises(ControllerError, match="cannot be read"):
        controllers.read(tmp_path / "none", "program")


def test_limits_are_replaced_by_name() -> None:
    limits = controllers.limited(ControllerLimits(memory_mib=128), {"step_deadline_s": 1, "late": "hold"})
    assert (limits.memory_mib, limits.step_deadline_s, limits.late) == (128, 1.0, "hold")
    assert controllers.limited(limits, {"step_deadline_s": None}).step_deadline_s is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory": 64}, "no limit 'memory'"), ({"network": "guest"}, "part of the world's image"),
        ({"machine": "pilot"}, "part of the template"),
        ({"memory_mib": 1}, "memory_mib"), ({"memory_mib": "64"}, "memory_mib"), ({"late": "skip"}, "late"),
        ({"cpu_s": 0}, "cpu_s"), ({"wall_time_s": float("nan")}, "wall_time_s"),
    ],
)  # fmt: skip
def test_limits_that_are_none_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(LimitsError) as caught:
        controllers.limited(ControllerLimits(), changes)
    assert message in str(caught.value)


def test_what_rollout_sh_allows_a_controller_are_the_defaults_of_a_template() -> None:
    of_the_host = {"wall_time_s", "simulated_time_s", "step_deadline_s", "late", "network", "readable", "machine"}
    defaults = msgspec.structs.asdict(ControllerLimits())
    assert {name: value for name, value in defaults.items() if name not in of_the_host} == simctl.LIMITS


@pytest.mark.parametrize(
    ("lengths", "named"),
    [({"max_steps": value}, "max_steps is a whole number") for value in BAD_STEPS]
    + [({"timeout_seconds": value}, "timeout_seconds is a number") for value in BAD_SECONDS],
)
def test_what_no_episode_can_be_as_long_as_is_the_callers_mistake(lengths: dict[str, Any], named: str) -> None:
    machine = Machine(cast(Any, None), cast(Any, None), seed=7, limits=ControllerLimits())
    with pytest.raises(LimitsError, match=named) as caught:
        machine.run_episode(b"", filename="c.py", **lengths)
    assert caught.value.hint
    if "max_steps" in lengths:
        with pytest.raises(LimitsError, match=named):
            WarmWorld.map(cast(Any, None), "missing.py", [1], **lengths)


def test_a_digest_tells_all_that_an_episode_is_given() -> None:
    given, limits = controllers.Controller(b"x", "c.py"), ControllerLimits()
    digests = [
        given.digest(limits, 10, None), given.digest(limits, 11, None), given.digest(limits, 10, 5.0),
        given.digest(controllers.limited(limits, {"late": "hold"}), 10, None),
        *(replace(given, **change).digest(limits, 10, None)
          for change in ({"data": b"y"}, {"kind": "program"}, {"words": ("a", "b")}, {"words": ("a b",)})),
    ]  # fmt: skip
    assert len(set(digests)) == len(digests)
    assert replace(given, filename="d.py").digest(limits, 10, None) == digests[0]
