"""Command line flags and ini settings.

For each setting the more specific place wins: the marker, then the command line, then the ini file.
"""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from microsim_vm.errors import NetworkError, SeedError, VideoError

from .replay import ReplayId
from .report.annotations import CHOICES as RUNNERS
from .seeds import parse_seeds
from .shard import Shard

if TYPE_CHECKING:
    from microsim_vm.options import Options

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


@dataclass(frozen=True)
class Settings:
    """What the command line and the ini file say, taken together.

    Attributes:
        world: The world of the session, or None if neither chooses one.
        world_source: The flag or ini setting that chose it.
        templates: Directories to search for templates, in order.
        seeds: Seeds that replace those of every marker, or None.
        engine, accel, isolation, locked, cache_dir: As the flags of these names.
        subnets: The range for rollouts' networks, or "" where neither flag nor ini setting says one.
        pcap: Where the captures of failed rollouts go, or None if nothing is captured.
        results: The file that the run's results go to, or None if they are not written.
        report: The HTML file that the run's report goes to, or None if there is to be none.
        trajectories: Where every episode goes, or None if none is written.
        video: Where the videos of failed rollouts go, or None if none are made.
        keep: Whether failed rollouts are kept.
        baseline: "off", "check" or "update".
        baseline_alpha: How often a run in which nothing changed may be called different from its baselines.
        baseline_across: Knobs in which the environment may differ from a baseline's, where the marker does not say.
        repeat: How often each seed is run, where the marker does not say.
        variance, min_effective_seeds, strict: What the marker ``microsim`` says of these where it says nothing.
        replay: The one rollout to run, or None for all.
        shell: Whether a shell is opened in rollouts that failed.
        shard: The part of the suite to run, or None for all of it.
        annotations: Whose log commands are written.
        replay_flags: The flags of the command line that a replay of one rollout needs too.
    """

    world: str | None
    world_source: str
    templates: tuple[Path, ...]
    seeds: tuple[int, ...] | None
    engine: str
    accel: str
    isolation: str
    locked: bool
    cache_dir: Path | None
    subnets: str
    pcap: Path | None
    trajectories: Path | None
    video: Path | None
    results: Path | None
    report: Path | None
    keep: bool
    baseline: str
    baseline_alpha: float
    baseline_across: tuple[str, ...]
    repeat: int
    variance: str
    min_effective_seeds: int | None
    strict: bool
    replay: ReplayId | None
    shell: bool
    shard: Shard | None
    annotations: str
    replay_flags: tuple[str, ...]

    def vm_options(self, session_id: str) -> Options:
        """Return the settings the VM layer takes; the id is shared by all workers of one run."""
        from microsim_vm.options import Options

        return Options(
            engine=self.engine,
            accel=self.accel,
            isolation=self.isolation,
            locked=self.locked,
            cache_dir=self.cache_dir,
            subnets=self.subnets,
            capture=self.pcap is not None,
            session_id=session_id,
        )

    def header(self) -> str | None:
        """Return the line for the top of the run, or None where the project makes no use of worlds."""
        if self.world is None and not self.replay_flags:
            return None
        world = f"world {self.world} (from {self.world_source})" if self.world else "no world for the session"
        locked = ", locked" if self.locked else ""
        means = f"engine {self.engine}, accel {self.accel}, isolation at least {self.isolation}"
        return f"microsim: {world}, {means}{locked}"


def read_settings(config: pytest.Config) -> Settings:
    """Read all settings of a run.

    Raises:
        pytest.UsageError: If an ini setting has a value it cannot have.
    """
    option = config.option
    ini_world: str = config.getini("microsim_world").strip()
    world = (
        located(option.microsim_world, config.invocation_params.dir)
        if option.microsim_world
        else located(ini_world, _ini_directory(config))
    )
    text = option.microsim_seeds
    cache_dir = option.microsim_cache_dir or config.getini("microsim_cache_dir").strip()
    variance, strict = _ini_variance(config), _ini_strict(config)
    if strict and variance == "off":
        raise pytest.UsageError(f"{config.inipath}: microsim_strict has nothing to judge under microsim_variance = off")
    return Settings(
        world=world or None,
        world_source="--microsim-world" if option.microsim_world else "the ini setting microsim_world",
        templates=(*map(Path, option.microsim_templates), *config.getini("microsim_templates")),
        seeds=None if text is None else tuple(parse_seeds(text)),
        engine=_choice(config, "microsim_engine", ENGINES, "auto"),
        accel=_choice(config, "microsim_accel", ACCELS, "auto"),
        isolation=_choice(config, "microsim_isolation", ISOLATIONS, "emulated"),
        locked=option.microsim_locked,
        cache_dir=_ini_directory(config) / Path(cache_dir).expanduser() if cache_dir else None,
        subnets=_subnets(config),
        pcap=Path(option.microsim_pcap) if option.microsim_pcap else None,
        trajectories=Path(option.microsim_trajectories) if option.microsim_trajectories else None,
        video=_video(option.microsim_video),
        results=_file(option.microsim_results, "--microsim-results"),
        report=_file(option.microsim_report, "--microsim-report"),
        keep=option.microsim_keep is not None,
        baseline=_choice(config, "microsim_baseline", BASELINE, "off"),
        baseline_alpha=_ini_alpha(config),
        baseline_across=tuple(config.getini("microsim_baseline_across")),
        repeat=option.microsim_repeat or 1,
        variance=variance,
        min_effective_seeds=_ini_min_effective_seeds(config),
        strict=strict,
        replay=ReplayId.parse(option.microsim_replay) if option.microsim_replay else None,
        shell=option.microsim_shell,
        shard=option.microsim_shard,
        annotations=_choice(config, "microsim_annotations", RUNNERS, "auto"),
        replay_flags=_replay_flags(option),
    )


def located(world: str, base: Path) -> str:
    """Return a world's name as it is, and a path (which has a slash or begins with a dot) made absolute.

    Args:
        world: A template's name, or the path of its folder.
        base: The directory of the file that wrote it.
    """
    return str((base / world).absolute()) if "/" in world or world.startswith(".") else world


def _choice(config: pytest.Config, name: str, allowed: tuple[str, ...], default: str) -> str:
    value: str = getattr(config.option, name) or config.getini(name).strip() or default
    if value not in allowed:
        raise pytest.UsageError(f"{config.inipath}: {name} is {value!r}; it can be {', '.join(allowed)}")
    return value


def _subnets(config: pytest.Config) -> str:
    flag: str = (config.option.microsim_subnets or "").strip()
    text: str = flag or config.getini("microsim_subnets").strip()
    if text:
        from microsim_vm.islands.policy import pool_of

        try:
            pool_of(text)
        except NetworkError as error:
            source = "--microsim-subnets" if flag else f"{config.inipath}: microsim_subnets"
            raise pytest.UsageError(f"{source}: {error}") from None
    return text


def _video(folder: str | None) -> Path | None:
    if folder is None:
        return None
    from .trajectories.video import usual_suffix

    try:
        usual_suffix()
    except VideoError as error:
        raise pytest.UsageError(f"--microsim-video: {error}") from None
    return Path(folder)


def _ini_variance(config: pytest.Config) -> str:
    value: str = config.getini("microsim_variance").strip() or "fail"
    if value not in VARIANCE:
        raise pytest.UsageError(f"{config.inipath}: microsim_variance is {value!r}; it can be {', '.join(VARIANCE)}")
    return value


def _ini_min_effective_seeds(config: pytest.Config) -> int | None:
    text = str(config.getini("microsim_min_effective_seeds")).strip()
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise pytest.UsageError(
            f"{config.inipath}: microsim_min_effective_seeds is {text!r}; it is a number of seeds, 1 or more"
        )
    return number


def _ini_alpha(config: pytest.Config) -> float:
    text = str(config.getini("microsim_baseline_alpha")).strip()
    try:
        alpha = float(text or "0.01")
    except ValueError:
        alpha = 0.0
    if not 0.0 < alpha < 1.0:
        raise pytest.UsageError(f"{config.inipath}: microsim_baseline_alpha is {text!r}; it is between 0 and 1")
    return alpha


def _ini_strict(config: pytest.Config) -> bool:
    try:
        return bool(config.getini("microsim_strict"))
    except (ValueError, pytest.UsageError):  # which of them depends on pytest's version
        raise pytest.UsageError(f"{config.inipath}: microsim_strict is neither true nor false") from None


def _ini_directory(config: pytest.Config) -> Path:
    return config.inipath.parent if config.inipath else config.rootpath


def _replay_flags(option: argparse.Namespace) -> tuple[str, ...]:
    """Repeat the flags that were given, quoted for a shell, so that a replay means the same run."""
    flags: list[str] = []
    names = ("world", "templates", "seeds", "repeat", "engine", "accel", "isolation", "cache_dir", "subnets", "pcap")
    for name in names:
        value = getattr(option, f"microsim_{name}")
        for single in value if isinstance(value, list) else [value]:
            if single is not None:
                flags += [f"--microsim-{name.replace('_', '-')}", shlex.quote(str(single))]
    if (steps := getattr(option, "count", 1)) not in (None, 1):  # pytest-repeat's: it is in the ids
        flags += ["--count", str(steps)]
    return (*flags, "--microsim-locked") if option.microsim_locked else tuple(flags)


def _file(given: str | None, flag: str) -> Path | None:
    """Refuse at once what could not be written after hours."""
    if given is None:
        return None
    path = Path(given)
    if path.is_dir():
        raise pytest.UsageError(f"{flag}: {path} is a folder; name a file in it")
    existing = next((folder for folder in path.parents if folder.exists()), path.parent)
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise pytest.UsageError(f"{flag}: nothing can be written in {existing}; name a file in another folder")
    return path


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
