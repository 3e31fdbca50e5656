"""Copying a running fork: whatever goes wrong, it runs on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from microsim_vm.cache import Cache
from microsim_vm.engines.base import Boot
from microsim_vm.errors import EngineError
from microsim_vm.forks import Forker
from microsim_vm.templates.spec import ControllerLimits


class Engine:
    """Fails at one step, and notes all."""

    memory_file = "ram"

    def __init__(self, failing: str) -> None:
        self.failing = failing
        self.steps: list[str] = []

    def branch(self, vm: object, folder: Path) -> None:
        self.step("branch")

    def resume(self, vm: object) -> None:
        self.step("resume")

    def step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.failing:
            raise EngineError(f"{name} failed")


class Client:
    """An agent that has nothing in flight."""

    @contextlib.contextmanager
    def quiesced(self) -> Iterator[None]:
        yield


def test_a_fork_that_could_not_be_copied_runs_on(tmp_path: Path) -> None:
    engine = Engine("branch")
    boot = Boot(tmp_path, tmp_path, {}, memory_mib=1, vcpus=1)
    forker = Forker("cart", ControllerLimits(), cast(Any, engine), boot, Cache(tmp_path))
    with pytest.raises(EngineError, match="branch failed"):
        forker.copy(cast(Any, object()), cast(Any, Client()), tmp_path)
    assert engine.steps[-2:] == ["branch", "resume"]
