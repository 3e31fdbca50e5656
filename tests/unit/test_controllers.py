"""Controllers before they reach a guest: their files, and their limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from microsim_vm import controllers
from microsim_vm.errors import ControllerError, LimitsError
from microsim_vm.templates.spec import ControllerLimits


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
