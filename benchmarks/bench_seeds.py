"""64 seeds of one scenario: forks, against a cold boot per seed, against plain processes that load the world."""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor

import common
from alternatives import Plain
from microsim_vm.world import WarmWorld


def main() -> None:
    """Print the table."""
    options = common.arguments(
        __doc__ or "", seeds=64, cold=4, plain=16, workers=os.cpu_count() or 1, controller="dock.py", max_steps=500
    )
    controller = common.CONTROLLERS / options.controller
    world = common.world(options.world, options.engine)

    started = time.monotonic()
    episodes = world.map(controller, range(options.seeds), workers=options.workers, max_steps=options.max_steps)
    forked = time.monotonic() - started
    warm_up = (world.snapshot.manifest.warmup.boot_ms + world.snapshot.manifest.warmup.load_ms) / 1000.0

    cold = _cold(world, controller.read_bytes(), options) * options.seeds / options.cold
    plain, plain_steps = _plain(Plain(world.template, controller, options.max_steps), options)
    assert plain_steps == [episode.steps for episode in episodes[: options.plain]], "the worlds are not the same"
    plain = plain * options.seeds / options.plain

    def row(label: str, seconds: float, note: str) -> list[str]:
        return [label, f"{seconds:.0f}", f"{seconds / forked:.2f}", note]

    common.table(
        [f"{options.seeds} seeds, {options.workers} at a time", "seconds", "ratio", "how"],
        [
            row("forks of a snapshot that is there", forked, "measured"),
            row("the same, first warm-up included", forked + warm_up, "measured"),
            row("boot and load for every seed", cold, f"extrapolated from {options.cold}"),
            row("plain host processes, native speed", plain, f"extrapolated from {options.plain}"),
        ],
    )


def _cold(world: WarmWorld, source: bytes, options: argparse.Namespace) -> float:
    """Return seconds for a few seeds that each boot and load, as many at a time as the forks had."""

    def run(seed: int) -> None:
        with common.cold(world, seed) as machine:
            machine.run_episode(source, filename="controller.py", max_steps=options.max_steps)

    started = time.monotonic()
    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(run, range(options.cold)))
    return time.monotonic() - started


def _plain(plain: Plain, options: argparse.Namespace) -> tuple[float, list[int]]:
    """Return seconds for a few seeds in plain processes, and each one's steps."""
    started = time.monotonic()
    with ThreadPoolExecutor(options.workers) as pool:
        episodes = list(pool.map(plain.episode, range(options.plain)))
    return time.monotonic() - started, [episode.steps for episode in episodes]


if __name__ == "__main__":
    main()
