"""What the plugin adds to a rollout beyond the work of the microVM layer below it."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import common
import pytest
from microsim_vm.machine import Machine
from microsim_vm.world import WarmWorld

TEST = """
import pytest

@pytest.mark.seeds(range({count}))
def test_rollout(rollout):
    rollout.run({controller!r}, max_steps=50)
"""


class Meter:
    """A pytest plugin that takes the time of each test, and of what the layer below does in it."""

    def __init__(self) -> None:
        self.tests: list[float] = []
        self.below: list[float] = []
        self._spent = 0.0

    def wrap(self, owner: type, name: str) -> Callable[[], None]:
        """Count the time spent in a method; return what undoes it."""
        original = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._spent += (time.perf_counter() - started) * 1000.0

        setattr(owner, name, timed)
        return lambda: setattr(owner, name, original)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        """Time one test with all its phases."""
        self._spent = 0.0
        started = time.perf_counter()
        result = yield
        self.tests.append((time.perf_counter() - started) * 1000.0)
        self.below.append(self._spent)
        return result


def main() -> None:
    """Print the table."""
    options = common.arguments(__doc__ or "", count=40)
    options.world = "cartpole" if options.world == "warehouse" else options.world
    common.world(options.world, options.engine)
    meter = Meter()
    undo = [meter.wrap(WarmWorld, "fork"), meter.wrap(Machine, "run_episode"), meter.wrap(Machine, "close")]
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder, "test_overhead.py")
        test.write_text(TEST.format(count=options.count, controller=str(common.CONTROLLERS / "balance.py")))
        status = pytest.main(
            [str(test), "-q", "-p", "no:cacheprovider", "--microsim-world", options.world,
             "--microsim-engine", options.engine, "--rootdir", folder],
            plugins=[meter],
        )  # fmt: skip
    for restore in undo:
        restore()
    assert status == 0, "the measured tests failed"
    # The first test pays for warming the world.
    tests, below = meter.tests[1:], meter.below[1:]
    overhead = [whole - part for whole, part in zip(tests, below, strict=True)]
    common.table(
        ["per rollout (ms)", "p50", "p99", "n"],
        [["whole test", *common.summary(tests)], ["microVM layer", *common.summary(below)],
         ["plugin and pytest", *common.summary(overhead)]],
    )  # fmt: skip
    print(f"share of the whole: {statistics.median(overhead) / statistics.median(tests):.2%}")


if __name__ == "__main__":
    main()
