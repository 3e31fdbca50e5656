"""What command line and ini file say, taken together.

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
from microsim_vm.errors import NetworkError, VideoError

from .options import ACCELS, BASELINE, ENGINES, ISOLATIONS, VARIANCE
from .replay import ReplayId
from .report.annotations import CHOICES as RUNNERS
from .seeds import parse_seeds
from .shard import Shard

if TYPE_CHECKING:
    from microsim_vm.options import Options


@dataclass(frozen=True)
class Settings:
    """What the command line and the ini file say, taken together.

    Attributes:
        world: The world of the session, or None if neither chooses one.
        world_source: The flag or ini setting that chose it.
        templates: Directories to search for templates, in order.
        seeds: Seeds that replace those of every marker, or None.
        deterministic: Whether every rollout runs in a deterministic machine.
        interleavings: Schedules that replace those of every marker, or None.
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
    deterministic: bool
    interleavings: tuple[int, ...] | None
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

    def vm_options(self, session_id: str, *, deterministic: bool | None = None) -> Options:
        """Return the settings the VM layer takes.

        Args:
            session_id: Shared by all workers of one run.
            deterministic: What a test asks for itself; None for what the run does.
        """
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
            deterministic=self.deterministic if deterministic is None else deterministic,
        )

    def header(self) -> str | None:
        """Return the line for the top of the run, or None where the project makes no use of worlds."""
        if self.world is None and not self.replay_flags:
            return None
        world = f"world {self.world} (from {self.world_source})" if self.world else "no world for the session"
        locked = (", deterministic" if self.deterministic else "") + (", locked" if self.locked else "")
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
    schedules = option.microsim_interleavings
    variance, strict = _ini_variance(config), _ini_bool(config, "microsim_strict")
    if strict and variance == "off":
        raise pytest.UsageError(f"{config.inipath}: microsim_strict has nothing to judge under microsim_variance = off")
    return Settings(
        world=world or None,
        world_source="--microsim-world" if option.microsim_world else "the ini setting microsim_world",
        templates=(*map(Path, option.microsim_templates), *config.getini("microsim_templates")),
        seeds=None if text is None else tuple(parse_seeds(text)),
        deterministic=option.microsim_deterministic or _ini_bool(config, "microsim_deterministic"),
        interleavings=None if schedules is None else tuple(parse_seeds(schedules)),
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


def _ini_bool(config: pytest.Config, name: str) -> bool:
    try:
        return bool(config.getini(name))
    except (ValueError, pytest.UsageError):  # which of them depends on pytest's version
        raise pytest.UsageError(f"{config.inipath}: {name} is neither true nor false") from None


def _ini_directory(config: pytest.Config) -> Path:
    return config.inipath.parent if config.inipath else config.rootpath


def _replay_flags(option: argparse.Namespace) -> tuple[str, ...]:
    """Repeat the flags that were given, quoted for a shell, so that a replay means the same run."""
    flags: list[str] = []
    names = ("world", "templates", "seeds", "interleavings", "repeat", "engine", "accel", "isolation", "cache_dir",
             "subnets", "pcap")  # fmt: skip
    for name in names:
        value = getattr(option, f"microsim_{name}")
        for single in value if isinstance(value, list) else [value]:
            if single is not None:
                flags += [f"--microsim-{name.replace('_', '-')}", shlex.quote(str(single))]
    if (steps := getattr(option, "count", 1)) not in (None, 1):  # pytest-repeat's: it is in the ids
        flags += ["--count", str(steps)]
    given = [name for name in ("deterministic", "locked") if getattr(option, f"microsim_{name}")]
    return (*flags, *(f"--microsim-{name}" for name in given))


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
