"""Command line flags and ini settings, as they may be written; :mod:`.settings` reads them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from microsim_vm.errors import SeedError

from .replay import ReplayId
from .report.annotations import CHOICES as RUNNERS
from .seeds import parse_seeds
from .shard import Shard

ENGINES = ("auto", "qemu", "gvisor")
ACCELS = ("auto", "kvm", "tcg")
ISOLATIONS = ("hardware", "sandbox", "emulated")
KEEP = ("failed",)
REPEAT = range(1, 11)
VARIANCE = ("fail", "warn", "off")
BASELINE = ("off", "check", "update")


def add_options(parser: pytest.Parser) -> None:
    """Register every flag and ini setting; all names start with ``microsim``."""
    group = parser.getgroup("microsim", "microVMs forked from a warmed robot simulator")
    group.addoption(
        "--microsim-world",
        metavar="NAME",
        help="the world (a template's name, or the path of its folder) that rollouts are forked "
        "from; a test's own @pytest.mark.microsim(world=...) wins over this, and this over the ini setting "
        "microsim_world",
    )
    group.addoption(
        "--microsim-templates",
        action="append",
        type=_absolute,
        default=[],
        metavar="DIR",
        help="a directory of templates, searched before those of the ini setting microsim_templates, the "
        "project's own templates/ and the shipped ones (may be repeated)",
    )
    group.addoption(
        "--microsim-seeds",
        type=_seeds_text,
        metavar="SEEDS",
        help="run these seeds in place of those of the seeds marker: a range 0:8 or 0:64:8 (the end is not "
        "included), or a list 1,7,9",
    )
    group.addoption(
        "--microsim-repeat",
        type=_repeat,
        metavar="N",
        help="run each seed N times (2 to 10), each time in a fork of its own, and fail where one gives another "
        "episode than the first, bit by bit; @pytest.mark.microsim(repeat=...) wins over this",
    )
    group.addoption(
        "--microsim-shard",
        type=Shard.parse,
        metavar="K/N",
        help="run the K-th of N parts of the suite, for jobs side by side; the seeds of one test stay together",
    )
    group.addoption(
        "--microsim-deterministic",
        action="store_true",
        help="run every rollout in a deterministic machine, whose seed decides also when which thread runs: each bit "
        "is the same in every run, at the cost of speed (default: the ini setting microsim_deterministic, or the "
        "template's own deterministic: true)",
    )
    group.addoption(
        "--microsim-interleavings",
        type=_schedules_text,
        metavar="SCHEDULES",
        help="try these schedules in place of those of the interleavings marker: a range 0:1000 (the end is not "
        "included), or a list 37,112",
    )
    group.addoption("--microsim-engine", choices=ENGINES, help="the program that runs the guests (default: auto)")
    group.addoption(
        "--microsim-accel",
        choices=ACCELS,
        help="how QEMU runs guest code (default: auto, which is KVM where it really works)",
    )
    group.addoption(
        "--microsim-isolation",
        choices=ISOLATIONS,
        help="the weakest boundary you accept around a guest (default: emulated, the weakest of the three)",
    )
    group.addoption(
        "--microsim-locked",
        action="store_true",
        help="refuse a template whose inputs no longer match its template.lock",
    )
    group.addoption(
        "--microsim-cache-dir",
        type=_absolute,
        metavar="DIR",
        help="where images and snapshots are kept between runs",
    )
    group.addoption(
        "--microsim-subnets",
        metavar="RANGE",
        help="the range of addresses that rollouts' networks are given theirs from, such as 10.213.0.0/16 (default: "
        "the variable MICROSIM_SUBNETS, else 198.18.0.0/16)",
    )
    group.addoption(
        "--microsim-pcap",
        type=_absolute,
        metavar="DIR",
        help="write what passed in the network of each failed rollout to a pcap file in this directory",
    )
    group.addoption(
        "--microsim-results",
        type=_absolute,
        metavar="FILE",
        help="write what the run found to this file, as JSON by a published schema",
    )
    group.addoption(
        "--microsim-report",
        type=_absolute,
        metavar="FILE",
        help="write a report of the run to this HTML file, which needs neither network nor server to be read",
    )
    group.addoption(
        "--microsim-trajectories",
        type=_absolute,
        metavar="DIR",
        help="write every episode to an MCAP file in this directory, which Foxglove and PlotJuggler open, and of which "
        "microsim dataset makes a data set",
    )
    group.addoption(
        "--microsim-video",
        type=_absolute,
        metavar="DIR",
        help="write a video of the last episode of each failed rollout to this directory: it is run again, with a "
        "camera on",
    )
    group.addoption(
        "--microsim-baseline",
        choices=BASELINE,
        help="update: keep what each seed gives beside its test; check: compare with that, bit by bit and by paired "
        "statistics, and fail a group that got worse (default: the ini setting microsim_baseline, else off)",
    )
    group.addoption(
        "--microsim-keep",
        choices=KEEP,
        help="keep the microVM of each failed rollout as it was when its test failed: a sandbox that hibernates, until "
        "microsim shell wakes it, or microsim rm removes it",
    )
    group.addoption(
        "--microsim-replay",
        type=_replay_id,
        metavar="ID",
        help="run the one rollout again whose failure printed this ID, from the same snapshot with the same seed, and "
        "say whether its episodes are the same bit by bit; without workers",
    )
    group.addoption(
        "--microsim-shell",
        action="store_true",
        help="open a shell in the microVM of each failed rollout, and of a replayed one, before it ends; without "
        "workers",
    )
    parser.addini(
        "microsim_scenarios", "which files are scenarios, by their names", type="args", default=["*.scenario.yaml"]
    )
    group.addoption(
        "--microsim-annotations",
        choices=RUNNERS,
        help="whose log commands mark failed seeds in a pull request (default: auto, which is those of the build "
        "server that this runs on)",
    )
    parser.addini("microsim_annotations", f"one of {', '.join(RUNNERS)}")
    parser.addini("microsim_world", "the world that rollouts are forked from")
    parser.addini("microsim_templates", "directories of templates, relative to this file", type="paths", default=[])
    parser.addini(
        "microsim_deterministic",
        "whether every rollout runs in a deterministic machine",
        type="bool",
        default=False,
    )
    parser.addini("microsim_engine", f"one of {', '.join(ENGINES)}")
    parser.addini("microsim_accel", f"one of {', '.join(ACCELS)}")
    parser.addini("microsim_isolation", f"one of {', '.join(ISOLATIONS)}")
    parser.addini("microsim_cache_dir", "where images and snapshots are kept, relative to this file")
    parser.addini("microsim_subnets", "the range of addresses that rollouts' networks are given theirs from")
    parser.addini(
        "microsim_variance",
        "what a group of copied episodes amounts to, where the marker does not say: fail (the default), warn or off",
    )
    parser.addini(
        "microsim_min_effective_seeds",
        "how many independent episodes each group of seeds has to amount to, where the marker does not say",
    )
    parser.addini("microsim_baseline", f"one of {', '.join(BASELINE)}")
    parser.addini(
        "microsim_baseline_alpha",
        "how often a run in which nothing changed may be called different from its baselines (default: 0.01)",
    )
    parser.addini(
        "microsim_baseline_across",
        "knobs in which the environment may differ from a baseline's, such as digest, where the marker does not say: "
        "metrics are compared all the same",
        type="args",
        default=[],
    )
    parser.addini(
        "microsim_strict",
        "whether a group that holds nothing to tell copies by fails, where the marker does not say",
        type="bool",
        default=False,
    )


def _absolute(text: str) -> str:
    # A relative directory of the command line means the shell's, also in a worker started elsewhere.
    return str(Path(text).expanduser().absolute())


def _repeat(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number == 1 or number not in REPEAT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of runs from 2 to {REPEAT[-1]}")
    return number


def _replay_id(text: str) -> str:
    try:
        return str(ReplayId.parse(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _seeds_text(text: str) -> str:
    """Check the flag's value, and keep it as written: all of it decides the ids, and so a replay needs it."""
    try:
        parse_seeds(text)
    except SeedError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _schedules_text(text: str) -> str:
    try:
        return _seeds_text(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"schedules are given as seeds are: {error}") from None
