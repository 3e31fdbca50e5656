"""How long a test waits for its rollout where the fork was started while the one before ran, and where it was not."""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import pytest
from microsim_vm.engines import select
from microsim_vm.errors import MicrosimError
from microsim_vm.world import WarmWorld

TEST = """
import pytest

@pytest.mark.seeds(range({count}))
def test_rollout(rollout):
    for _ in range({episodes}):
        rollout.run({controller!r}, max_steps=100)
"""


class Meter:
    """A pytest plugin that takes the time of each rollout's set-up, of the test's body, and of all of it."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.bodies: list[float] = []
        self.tests: list[float] = []
        self.ahead = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """Time the fixture rollout."""
        started = time.perf_counter()
        result: Any = yield
        if fixturedef.argname == "rollout":
            self.waits.append((time.perf_counter() - started) * 1000.0)
            self.ahead += "fork.resume" in result.machine.timings
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Time a test's body."""
        started = time.perf_counter()
        result = yield
        self.bodies.append((time.perf_counter() - started) * 1000.0)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        """Time one test with all its phases."""
        started = time.perf_counter()
        result = yield
        self.tests.append((time.perf_counter() - started) * 1000.0)
        return result


@contextlib.contextmanager
def without_preparing() -> Iterator[None]:
    """Let the plugin ask for the next fork in vain."""
    original = WarmWorld.prepare
    WarmWorld.prepare = lambda self: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        WarmWorld.prepare = original  # type: ignore[method-assign]


def measured(world: str, engine: str, count: int, episodes: int) -> Meter:
    """Run the tests; the first of them, which finds the world and can have no fork started ahead, does not count."""
    meter = Meter()
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder, f"test_{time.monotonic_ns()}.py")  # a module of that name may be imported once
        controller = str(common.CONTROLLERS / "balance.py")
        test.write_text(TEST.format(count=count + 1, controller=controller, episodes=episodes))
        with contextlib.redirect_stdout(sys.stderr):  # standard output is the result alone
            status = pytest.main(
                [str(test), "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--rootdir", folder,
                 "--microsim-world", world, "--microsim-engine", engine],
                plugins=[meter],
            )  # fmt: skip
    assert status == 0, "the measured tests failed"
    for times in (meter.waits, meter.bodies, meter.tests):
        del times[0]
    return meter


def main() -> None:
    """Print a table per engine."""
    options = common.arguments(__doc__ or "", count=20, episodes="1,3,9")
    world = "cartpole" if options.world == "warehouse" else options.world
    engines = [engine for engine in select.ENGINES if engine != "auto"]
    for engine in engines if options.engine == "auto" else [options.engine]:
        try:
            common.world(world, engine)
        except MicrosimError as error:
            print(f"{engine} does not work here: {error}\n")
            continue
        rows = []
        for episodes in map(int, options.episodes.split(",")):
            with without_preparing():
                alone = measured(world, engine, options.count, episodes)
            ahead = measured(world, engine, options.count, episodes)
            assert (alone.ahead, ahead.ahead) == (0, options.count), "not the forks that were to be measured"
            waits, tests = (
                (statistics.median(one), statistics.median(other))
                for one, other in ((alone.waits, ahead.waits), (alone.tests, ahead.tests))
            )
            rows.append(
                [str(episodes), f"{statistics.median(alone.bodies):.0f}", *(f"{wait:.0f}" for wait in waits),
                 f"{waits[1] / waits[0]:.2f}", *(f"{test:.0f}" for test in tests), f"{tests[1] / tests[0]:.2f}"]
            )  # fmt: skip
        common.table(
            ["episodes of 100 steps", "test body (ms)", "wait, on demand", "wait, prepared", "ratio",
             "whole test, on demand", "whole test, prepared", "ratio"],
            rows,
        )  # fmt: skip


if __name__ == "__main__":
    main()
