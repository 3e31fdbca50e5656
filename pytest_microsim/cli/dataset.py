"""``microsim dataset``: recorded episodes as a data set."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from microsim_vm.cli.common import command
from microsim_vm.cli.output import Output, counted

if TYPE_CHECKING:
    from microsim_vm.cli.common import Commands

FORMATS = ("lerobot", "parquet")
TEXT = """Make a data set of the episodes that pytest --microsim-trajectories has written: a LeRobot data set of version
3.0, or two Parquet tables in which every number is as it was."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "dataset", run, " ".join(TEXT.split()))
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder with episodes in it or below it")
    parser.add_argument("--to", choices=FORMATS, required=True, help="the format")
    parser.add_argument("target", type=Path, metavar="OUT", help="the data set's folder, which must be new or empty")
    parser.add_argument("--passed", action="store_true", help="leave out the episodes of tests that did not pass")
    parser.add_argument(
        "--task",
        default="",
        metavar="TEXT",
        help="what the robot is to do, in words (default: the test's name)",
    )
    parser.add_argument(
        "--fps", type=_rate, default=0.0, metavar="N",
        help="steps a second, where the world tells no time, or another one (lerobot)",
    )  # fmt: skip
    parser.add_argument("--robot", default="", metavar="NAME", help="the kind of robot (lerobot)")


def run(args: argparse.Namespace, output: Output) -> int:
    """Export, and say what was left out."""
    from pytest_microsim.trajectories import dataset, lerobot, parquet

    dataset.arrow()  # before anything is read
    if args.to == "parquet":
        made = dataset.export(args.folder, args.target, parquet.write, passed_only=args.passed)
    else:
        made = dataset.export(
            args.folder,
            args.target,
            lambda episodes, folder: lerobot.Writer(
                folder, task=args.task, fps=args.fps, robot=args.robot
            ).write(episodes),
            passed_only=args.passed,
        )  # fmt: skip
    for line in made.left_out:
        output.progress(f"left out: {line}")
    output.result(
        {"folder": str(args.target), "episodes": made.episodes, "steps": made.frames, "left_out": made.left_out},
        f"{args.target}: {counted(made.episodes, 'episode')}, {counted(made.frames, 'step')}",
    )
    return 0


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of steps a second")
    return rate
