"""What the plugin keeps in pytest's stashes: one object per run and one per test."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest
from microsim_vm.errors import MicrosimError, TemplateError

from .replay import ReplayId
from .settings import Settings, read_settings

if TYPE_CHECKING:
    from microsim_vm.islands.island import Island
    from microsim_vm.templates.spec import Template
    from microsim_vm.world import WarmWorld

    from .interleavings.search import Search
    from .repeats import Repeats
    from .rollout import Rollout
    from .worlds import WorldPool


ERASE_BELOW = "\x1b[J"
"""Tells a terminal to erase all that follows its cursor."""

REPEATS, SEARCH = "microsim_repeats", "microsim_search"
"""The names under which workers are told of :attr:`Run.repeats` and :attr:`Run.search`."""


@dataclass(frozen=True)
class SeedParam:
    """The hidden parameter of a rollout: one seed of a group, or one of several runs of it.

    Attributes:
        seed: The seed; None for that of a test without the marker, which comes from its id.
        group_size: How many seeds the group has.
        id: What the seed, and the run, is called in the test's id; empty where nothing is.
        run: Which run of the seed it is, from 1.
        runs: How often each seed is run.
        schedule: In which order its threads take turns, where each run of the seed has another one; else None.
        exhaustive: Whether it is run although a schedule before it has failed.
    """

    seed: int | None
    group_size: int
    id: str
    run: int = 1
    runs: int = 1
    schedule: int | None = None
    exhaustive: bool = False


class Run:
    """The state of one pytest process.

    Attributes:
        config: pytest's configuration.
        settings: The flags and ini settings.
        session_id: Shared by all workers of one run.
        stderr: A duplicate of the real stderr, which capturing does not touch, or None if there is none.
        pool: The warm worlds of this process, once a fixture has asked for one.
        nextitem: The test that will run after the present one, as far as it is known.
        controls: This process controls the session: it is no worker of another one.
        replayed: Whether the replay that was asked for came out as it was, and a line on it, once it has ended.
        began: When this process began to configure itself, in seconds since 1970.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings: Settings = read_settings(config)
        self.began = time.time()
        self.session_id = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
        self.controls = not hasattr(config, "workerinput")
        self._repeats: Repeats | None = None
        self._search: Search | None = None
        self.pool: WorldPool | None = None
        self.nextitem: pytest.Item | None = None
        self.replayed: tuple[bool, str] | None = None
        self._templates: dict[str, Template | MicrosimError] = {}
        try:
            # Capturing is suspended while plugins are configured, and in a worker stderr is inherited.
            self.stderr: int | None = os.dup(2)
        except OSError:
            self.stderr = None

    @property
    def detailed(self) -> bool:
        """Somebody wants to look at more of each rollout than what the gates and the terminal need."""
        return any(getattr(self.config.option, f"microsim_{name}", None) for name in ("results", "report"))

    @property
    def repeats(self) -> Repeats:
        """Where the runs of one seed leave their trajectories for each other; shared by all workers of one run."""
        if self._repeats is None:
            from .repeats import Repeats

            given = getattr(self.config, "workerinput", {}).get(REPEATS)
            self._repeats = Repeats.at(given) if given else Repeats.of_session(self.settings.cache_dir)
        return self._repeats

    @property
    def search(self) -> Search:
        """Where the schedules that failed are noted; shared by all workers of one run."""
        if self._search is None:
            from .interleavings.search import Search

            given = getattr(self.config, "workerinput", {}).get(SEARCH)
            self._search = Search.at(given) if given else Search.of_session(self.settings.cache_dir)
        return self._search

    def deterministic(self, name: str) -> bool:
        """Tell whether all rollouts of a world have deterministic machines: those of the run do, or its template's.

        Raises:
            TemplateError: If there is no such world.
        """
        return self.settings.deterministic or self.template(name).deterministic

    def template(self, name: str) -> Template:
        """Find and read a world's template; nothing is built or started.

        Raises:
            TemplateError: If there is none of that name, it cannot be used as written, or has no world of its own.
        """
        if name not in self._templates:
            from microsim_vm.templates import find_template, search_path

            search = search_path(list(self.settings.templates), self.config.rootpath)
            try:
                self._templates[name] = _with_world(find_template(name, search))
            except MicrosimError as error:
                self._templates[name] = error  # a group of 5,000 seeds asks 5,000 times
        found = self._templates[name]
        if isinstance(found, MicrosimError):
            raise found
        return found

    def header(self) -> list[str]:
        """Return the lines for the top of the run; none where the project makes no use of worlds."""
        settings = self.settings.header()
        if settings is None:
            return []
        from microsim_vm.world import known_engine

        engine = known_engine(self.settings.vm_options(self.session_id))
        return [settings, f"microsim: {engine or 'the engine is probed when the first world is warmed'}"]

    def progress(self, text: str) -> None:
        """Write to the real stderr at once, past all capturing: warming a world can take minutes."""
        if self.stderr is not None:
            # The lines that show how far groups have come, of another process perhaps, are below pytest's own.
            erase = ERASE_BELOW if os.isatty(self.stderr) and os.environ.get("TERM", "dumb") != "dumb" else ""
            # One write call, so that the lines of several workers do not mix.
            os.write(self.stderr, (erase + text).encode("utf-8", "replace"))

    def close(self) -> None:
        """Give back the duplicate of stderr, and remove what the runs of this session have left for each other."""
        for shared in (self._repeats, self._search):
            if self.controls and shared is not None:
                shared.close()
        if self.stderr is not None:
            os.close(self.stderr)
            self.stderr = None


def _with_world(template: Template) -> Template:
    if template.has_world:
        return template
    raise TemplateError(
        f"{template.path}:1: the template {template.name!r} has no world of its own, and nothing in it to test",
        hint="choose a template with world or processes in it, or extend this one and add them; "
        "a Sandbox can be created from it as it is",
    )


@dataclass
class ItemState:
    """The state of one test that uses a rollout, from the fixture's set-up on.

    Attributes:
        world: The world's name.
        seed: The rollout's seed.
        param: Its hidden parameter, if it has one.
        environment: What it ran in, once its world is warm.
        digest: The image digest of the world, once it is warm.
        snapshot: The key of the snapshot that was forked, once it is warm.
        env: What the world's template sets in every process.
        others: The worlds of the rollout's other machines, by the machines' names.
        warm: The world itself, once it is warm.
        rollout: The rollout, once it is forked.
        replay: What it is to be replayed by, as far as it is known before it begins.
        pcap: Where its frames are to be written, once it has failed.
        frames: Networks of it and its forks, and what was captured there, by what the files' names end with; held for
            its last report.
        phases: What took time before the test's own part, as name, seconds since 1970, and seconds.
        missed: Why its seed counts as missed, where the group is judged by its pass rate; empty where it does not.
        parameters: What a scenario set for this seed.
        scenario: The scenario's file; empty for a test in Python.
        tags: The scenario's.
        files: What it has left on disk, by what it is: "video", "trajectory", "pcap".
        film: Where its video is to be written, once it has failed.
        remarks: What is to be said of its files in the report of its failure.
        afterwards: What is to be said of them in its last report.
    """

    world: str
    seed: int
    param: SeedParam | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    snapshot: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    warm: WarmWorld | None = field(default=None, repr=False)
    rollout: Rollout | None = field(default=None, repr=False)
    replay: ReplayId | None = None
    pcap: Path | None = None
    frames: dict[str, tuple[Island, BinaryIO]] = field(default_factory=dict, repr=False)
    phases: list[tuple[str, float, float]] = field(default_factory=list)
    missed: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    scenario: str = ""
    tags: tuple[str, ...] = ()
    files: dict[str, Path] = field(default_factory=dict)
    film: Path | None = None
    remarks: list[str] = field(default_factory=list)
    afterwards: list[str] = field(default_factory=list)


RUN = pytest.StashKey[Run]()
ITEM = pytest.StashKey[ItemState]()
