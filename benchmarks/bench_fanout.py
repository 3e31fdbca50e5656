"""A fan-out of episodes from one sandbox: time, memory of all guests, and that no two children are copies."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import common
import psutil
from microsim_vm import Sandbox
from microsim_vm.guest import Guest
from microsim_vm.options import Options
from microsim_vm.sandbox import saved
from microsim_vm.world import WarmWorld

sys.path.append(str(common.CONTROLLERS.parent))
import fanout

SAMPLE_S = 2.0
RUNSC_STARTS = {"run", "restore"}  # its other calls do not hold a guest
FIRST_SEED = 1000
WARM_DRAWS = "/workspace/controller/draws.json"
# In front of the controller: the interpreter that runs it was forked from one that lies in the snapshot, warm.
DRAWING_CONTROLLER = f"""
import json, random
import numpy
with open("{WARM_DRAWS}", "w") as file:
    json.dump({{"random.random": random.random(), "numpy's global": float(numpy.random.random())}}, file)
"""
FRESH_DRAWS = """
import json, os, uuid
print(json.dumps({"/dev/urandom": os.urandom(16).hex(), "uuid4": str(uuid.uuid4()), "hash('x')": hash("x")}))
"""


class Drawing:
    """A sandbox whose forks are asked for random numbers before they end.

    Args:
        parent: The sandbox.
    """

    def __init__(self, parent: Sandbox) -> None:
        self._parent = parent
        self.draws: list[dict[str, Any]] = []
        self.spent_s: list[float] = []

    @contextlib.contextmanager
    def fork(self) -> Iterator[Guest]:
        """Yield a fork."""
        with self._parent.fork() as child:
            yield child
            started = time.monotonic()
            fresh = json.loads(child.exec(["python3", "-c", FRESH_DRAWS], timeout_seconds=600, check=True).stdout)
            self.draws.append({**fresh, **json.loads(child.filesystem.read(WARM_DRAWS))})
            self.spent_s.append(time.monotonic() - started)

    def repeated(self) -> list[str]:
        """Return the kinds of number that two forks have drawn alike."""
        kinds = sorted({kind for drawn in self.draws for kind in drawn})
        return [kind for kind in kinds if len({drawn[kind] for drawn in self.draws}) < len(self.draws)]


class Cold:
    """Stands where the sandbox does: each "fork" of it boots a guest and loads the world."""

    def __init__(self, base: WarmWorld, name: str) -> None:
        self._base = base
        self._name = name

    @contextlib.contextmanager
    def fork(self) -> Iterator[Guest]:
        """Yield a guest with the world loaded."""
        with common.cold(self._base) as machine:
            _load(machine, self._name)
            yield machine


class MemoryWatch:
    """Looks again and again at the memory of all engines that this process has started; a context manager.

    Attributes:
        peaks: The most seen of "private" and "PSS", MiB, and of "guests".
    """

    def __init__(self) -> None:
        self.peaks: Counter[str] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            found: Counter[str] = Counter()
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error, OSError):  # it ends in this moment
                    if child.name().startswith("qemu") or not RUNSC_STARTS.isdisjoint(child.cmdline()):
                        private, proportional, _ = common.memory_mib(child.pid)
                        found.update({"private": round(private), "PSS": round(proportional), "guests": 1})
            self.peaks |= found


def main() -> None:
    """Print the tables."""
    options = common.arguments(__doc__ or "", n=256, workers=32, cold=os.cpu_count() or 1, controller="dock.py")
    base = common.world("base", options.engine)
    source = (common.CONTROLLERS / options.controller).read_bytes()
    run_episode: Callable[..., dict[str, Any]] = fanout.run_episode  # its parent is whatever has a fork()
    episode = partial(run_episode, controller=DRAWING_CONTROLLER.encode() + source)

    started = time.monotonic()
    with Sandbox.create(
        "base", ttl_seconds=None, templates=[common.REPOSITORY / "templates"], options=Options(engine=options.engine)
    ) as parent:
        _load(parent, options.world)
        saved.delete(base.forker.cache, parent.snapshot().id)  # its forks keep what they use
        warmed = time.monotonic() - started
        drawing = Drawing(parent)
        with MemoryWatch() as memory:
            forked, results = _run(partial(episode, drawing), options.n, options.workers)
    booted = partial(run_episode, Cold(base, options.world), source)
    some, cold_results = _run(booted, options.cold, options.cold)
    _check(results, cold_results, drawing)

    cold = some / options.cold * options.n

    def row(label: str, seconds: float, note: str) -> list[str]:
        return [label, f"{seconds:.0f}", f"{seconds / (warmed + forked):.2f}", note]

    together = f"{options.workers} at a time"
    common.table(
        [f"{options.n} episodes of {options.world}", "seconds", "ratio", "how"],
        [
            row("one warm-up, then forks", warmed + forked, f"measured, {together}"),
            row("of that, the forks and episodes", forked, f"measured, {together}"),
            row("boot and warm-up for each", cold, f"extrapolated from {options.cold} at a time"),
        ],
    )
    peaks = memory.peaks
    common.table(
        ["all guests together", "most seen"],
        [["guests alive", str(peaks["guests"])], ["private memory (MiB)", str(peaks["private"])],
         ["PSS (MiB)", str(peaks["PSS"])]],
    )  # fmt: skip
    kinds = ", ".join(sorted(drawing.draws[0]))
    print(
        f"{len(results)} of {options.n} episodes succeeded, no two alike; no two forks drew alike from {kinds}. "
        f"Drawing took {statistics.median(drawing.spent_s):.1f} s per fork (p50), which is part of the forks' time."
    )


def _load(guest: Guest, name: str) -> None:
    guest.exec(f"bash /opt/sim/warmup.sh --world {name}", timeout_seconds=900, check=True)


def _run(episode: Callable[..., dict[str, Any]], count: int, workers: int) -> tuple[float, list[dict[str, Any]]]:
    """Run as many episodes, several at a time; return seconds and their results."""
    started = time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(lambda seed: episode(seed=seed), range(FIRST_SEED, FIRST_SEED + count)))
    return time.monotonic() - started, results


def _check(results: list[dict[str, Any]], cold: list[dict[str, Any]], drawing: Drawing) -> None:
    """End the program if an episode failed, two are copies, or two forks drew a number alike."""
    failed = [result for result in [*results, *cold] if not result["ok"]]
    if failed:
        raise SystemExit(f"{len(failed)} episodes failed, the first of them so: {failed[0]['error']}")
    fingerprints = [json.loads(result["result"])["fingerprint"] for result in results]
    if len(set(fingerprints)) < len(fingerprints):
        raise SystemExit(f"{len(fingerprints)} episodes, and only {len(set(fingerprints))} of them distinct")
    if fingerprints[: len(cold)] != [json.loads(result["result"])["fingerprint"] for result in cold]:
        raise SystemExit("the forks' episodes are not those of the guests that were booted")
    if drawing.repeated():
        raise SystemExit(f"two forks drew the same number from {', '.join(drawing.repeated())}")


if __name__ == "__main__":
    main()
