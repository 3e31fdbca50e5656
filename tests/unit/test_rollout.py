"""What a rollout checks on the host, before its microVM is asked for anything."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from microsim_vm.errors import ControllerError, EngineError, LimitsError
from microsim_vm.islands.island import Island
from microsim_vm.islands.policy import Network, pool_of
from microsim_vm.machine import Machine
from microsim_vm.templates.spec import ControllerLimits

from pytest_microsim.errors import RecordError
from pytest_microsim.rollout import Rollout


def without_a_vm(*folders: Path) -> Rollout:
    return Rollout(cast(Any, None), seed=7, world="w", controller_folders=folders)


@pytest.mark.parametrize("value", [1, 1.5, True, np.float32(0.5), np.int64(3), Decimal("1.25"), np.array(2.0)])
def test_finite_numbers_are_recorded(value: Any) -> None:
    rollout = without_a_vm()
    rollout.record("score", value)
    assert rollout.recorded == {"score": float(value)}
    assert type(rollout.recorded["score"]) is float


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "'score' is NaN"),
        (np.float64("nan"), "'score' is NaN"),
        (float("inf"), "'score' is infinite"),
        (-float("inf"), "'score' is infinite"),
        (10**400, "not a number that can be recorded"),
        ("3", "not a number"),
        (b"3", "not a number"),
        (None, "a NoneType is not a number"),
        ([1.0], "a list is not a number"),
        (1j, "not a number"),
    ],
)
def test_what_is_no_finite_number_is_its_own_error(value: Any, words: str) -> None:
    rollout = without_a_vm()
    with pytest.raises(RecordError, match=words):
        rollout.record("score", value)
    assert rollout.recorded == {}


def test_a_missing_controller_is_reported_with_the_places_looked_at(tmp_path: Path) -> None:
    first, second = tmp_path / "tests", tmp_path
    with pytest.raises(ControllerError) as caught:
        without_a_vm(first, second, second).run("controllers/dock.py")
    text = str(caught.value)
    assert text.count("not a file: ") == 2
    assert text.index(str(first / "controllers/dock.py")) < text.index(str(second / "controllers/dock.py"))


def test_a_folder_is_no_controller(tmp_path: Path) -> None:
    with pytest.raises(ControllerError, match="no controller file"):
        without_a_vm(tmp_path).run(tmp_path)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (b"x = 1\ndef act(observation:\n    return 0\n", "bad.py:2: the controller does not compile"),
        (b"def act(o):\n\treturn 0\n        return 1\n", "bad.py:3: the controller does not compile"),
        (b"\xff\xfe\x00", "the controller does not compile"),
        (b"x = 1\0", "the controller does not compile"),
    ],
)
def test_a_controller_that_does_not_compile_is_refused_with_its_line(tmp_path: Path, source: bytes, words: str) -> None:
    (tmp_path / "bad.py").write_bytes(source)
    with pytest.raises(ControllerError) as caught:
        without_a_vm(tmp_path).run("bad.py")
    assert words in str(caught.value)


def test_no_seed_is_spent_on_a_controller_that_is_refused(tmp_path: Path) -> None:
    rollout = without_a_vm(tmp_path)
    with pytest.raises(ControllerError):
        rollout.run("missing.py")
    assert rollout.episode_seeds == ()
    assert rollout.fingerprint() is None


@pytest.mark.parametrize("given", [{"max_steps": 2.5}, {"timeout_seconds": float("inf")}])
def test_no_seed_is_spent_on_an_episode_of_an_impossible_length(tmp_path: Path, given: dict[str, Any]) -> None:
    (tmp_path / "c.py").write_text("def act(observation):\n    return 0\n")
    rollout = without_a_vm(tmp_path)
    with pytest.raises(LimitsError):
        rollout.run("c.py", **given)
    assert (rollout.episode_seeds, rollout.controllers, rollout.traces()) == ((), [], [])


def test_what_is_published_is_said_with_its_place_on_the_host() -> None:
    with Island(Network("island", publish=(80, 8000)), "published", {"sim": "veth"}, pool=pool_of()) as island:
        machine = Machine(
            cast(Any, None), cast(Any, None), seed=7, limits=ControllerLimits(), berth=island.berth("sim")
        )
        rollout = Rollout(machine, seed=7, world="w", controller_folders=[])
        assert rollout.published == {port: ("127.0.0.1", island.published[port]) for port in (80, 8000)}
        assert len(set(rollout.published.values())) == 2


def test_without_a_network_nothing_is_published() -> None:
    machine = Machine(cast(Any, None), cast(Any, None), seed=7, limits=ControllerLimits())
    rollout = Rollout(machine, seed=7, world="w", controller_folders=[])
    assert rollout.published == {}
    assert dict(rollout.machines) == {"sim": machine}


def test_a_rollout_of_several_machines_shows_them_and_cannot_be_forked() -> None:
    first, second = (
        Machine(cast(Any, None), cast(Any, None), seed=7, limits=ControllerLimits(), branch=lambda n: [])
        for _ in range(2)
    )
    first.machines = second.machines = {"sim": first, "controller": second}
    rollout = Rollout(first, seed=7, world="w", controller_folders=[])
    assert rollout.machines["controller"] is second
    with pytest.raises(TypeError, match="item assignment"):
        rollout.machines["x"] = first  # type: ignore[index]
    with pytest.raises(EngineError, match="of several cannot be forked") as caught:
        rollout.fork(2)
    # Of the plumbing below the call nothing is left to show.
    assert [entry.name for entry in caught.traceback if not entry.ishidden(caught)] == [
        "test_a_rollout_of_several_machines_shows_them_and_cannot_be_forked"
    ]
