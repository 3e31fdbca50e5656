"""What it costs that a controller runs apart, also in a machine of its own, against the same one called in place."""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import common
from alternatives import Plain
from microsim_vm import controllers
from microsim_vm.engines import select
from microsim_vm.errors import MicrosimError
from microsim_vm.machine import Machine
from microsim_vm.options import Options
from microsim_vm.templates import load_template
from microsim_vm.templates.spec import Template
from microsim_vm.world import WarmWorld, warm

MACHINE = "controller"
SHORT = 10  # steps of the shorter of two episodes, whose difference is what steps cost


@dataclass
class Cost:
    """What was measured of one way to run a controller.

    Attributes:
        step_us: Of a step of the world and the controller, microseconds.
        episode_ms: Of an episode beyond its steps, milliseconds: starting and ending the controller.
    """

    step_us: list[float] = field(default_factory=list)
    episode_ms: list[float] = field(default_factory=list)

    def add(self, machine: Machine, controller: controllers.Controller, seed: int, steps: int) -> None:
        """Measure by two episodes of different length, each the guest's second or later one."""
        short, long = (episode(machine, controller, seed, count) for count in (SHORT, steps))
        step_ms = (long - short) / (steps - SHORT)
        self.step_us.append(step_ms * 1000.0)
        self.episode_ms.append(short - SHORT * step_ms)


def episode(machine: Machine, controller: controllers.Controller, seed: int, steps: int) -> float:
    """Run an episode; return how long it took, until its controller has ended, milliseconds."""
    began = time.monotonic()
    record = machine.run_episode(
        controller.data, filename=controller.filename, kind=controller.kind, seed=seed, max_steps=steps
    )
    took_ms = (time.monotonic() - began) * 1000.0
    if record.error is not None:
        raise record.error
    if record.steps != steps:
        raise SystemExit(f"seed {seed} ended after {record.steps} steps: choose fewer")
    return took_ms


def compiled(source: Path) -> controllers.Controller | None:
    """Return a program made of a C file, or None where nothing compiles it."""
    if shutil.which("cc") is None:
        print("not measured: a program; there is no C compiler")
        return None
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder, source.stem)
        subprocess.run(["cc", "-O2", "-static", "-o", binary, source], check=True, timeout=60)
        return controllers.read(binary, "program")


def in_two_machines(world: str, folder: Path) -> Template:
    """Return a template of a world whose controllers run in another machine of the same template."""
    for name, more in (
        (world + "-on-an-island", f"extends: {world}\nnetwork: island\n"),
        (
            world + "-with-two",
            f"extends: {world}\nnetwork: island\ncontroller: {{machine: {MACHINE}}}\n"
            f"machines: {{{MACHINE}: {{template: {world}-on-an-island}}}}\n",
        ),
    ):
        (folder / name).mkdir()
        (folder / name / "template.yaml").write_text(f"name: {name}\n{more}")
    return load_template(folder / f"{world}-with-two")


def rows(
    world: WarmWorld, two: WarmWorld, program: controllers.Controller | None, options: argparse.Namespace
) -> list[list[str]]:
    """Measure in one engine's guests: a fork for each repetition, in which all ways take turns.

    Args:
        world: Whose controllers run beside it.
        two: The same, whose controllers run in a machine of their own.
        program: One that is none of Python.
        options: Of the command line.
    """
    path = common.CONTROLLERS / options.controller
    python = controllers.read(path, "python")
    plain = Plain(world.template, path, options.steps)
    in_place: list[float] = []
    first: list[float] = []
    apart, other, remote = Cost(), Cost(), Cost()
    for seed in range(options.n):
        with world.fork(seed) as machine:
            # The first episode finds its controller confined and waiting.
            first.append(episode(machine, python, seed, SHORT))
            apart.add(machine, python, seed, options.steps)
            if program is not None:
                other.add(machine, program, seed, options.steps)
            alone = plain.inside(machine, seed)
            in_place.append(alone.seconds / alone.steps * 1e6)
        with two.fork(seed) as machine:
            remote.add(machine, python, seed, options.steps)
    base = statistics.median(in_place)
    name = world.forker.engine.describe()
    found = [[name, "called in place", f"{base:.0f}", "1.0", "-"]]
    waiting = statistics.median(first) - SHORT * statistics.median(apart.step_us) / 1000.0
    for what, cost, episode_ms in (
        (f"{options.controller} apart, a fork's first episode", apart, waiting),
        ("the same, a later episode", apart, statistics.median(apart.episode_ms)),
        (f"{options.program}, a later episode", other, statistics.median(other.episode_ms or [0.0])),
        (f"{options.controller} in a machine of its own", remote, statistics.median(remote.episode_ms)),
    ):
        if cost.step_us:
            step_us = statistics.median(cost.step_us)
            found.append([name, what, f"{step_us:.0f}", f"{step_us / base:.1f}", f"{episode_ms:.0f}"])
    return found


def main() -> None:
    """Print the table."""
    options = common.arguments(
        __doc__ or "", n=15, controller="balance.py", program="balance.c", steps=200, world="cartpole"
    )
    program = compiled(common.CONTROLLERS / options.program)
    found: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        template, apart = common.template(options.world), in_two_machines(options.world, Path(folder))
        for engine in select.ENGINES[1:]:
            if options.engine not in ("auto", engine):
                continue
            try:
                world, two = (warm(each, Options(engine=engine), common.progress) for each in (template, apart))
            except MicrosimError as error:
                print(f"not measured: {engine}: {error.what}: {error.cause}")
                continue
            common.progress(f"measuring {world.engine_line}")
            found += rows(world, two, program, options)
    print(f"world {options.world}, medians of {options.n} forks; {common.machine()}\n")
    common.table(["engine", "controller", "a step (us)", "ratio", "an episode beyond its steps (ms)"], found)


if __name__ == "__main__":
    main()
