"""One rollout alone, in front of somebody: ``--microsim-replay`` and ``--microsim-shell``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from microsim_vm.errors import MicrosimError

from .collection import PARAMETER, plain_id, seed_of
from .errors import ReplayError
from .replay import ReplayId, digest_of, verdict
from .state import ITEM, RUN, ItemState

if TYPE_CHECKING:
    from microsim_vm.world import WarmWorld


def without_workers(config: pytest.Config) -> None:
    """Run in this process, whatever the ini file says of workers: one rollout needs none, and a shell our terminal."""
    settings = config.stash[RUN].settings
    if (settings.replay or settings.shell) and hasattr(config.option, "numprocesses"):
        config.option.numprocesses, config.option.dist, config.option.tx = 0, "no", []


def check_terminal(config: pytest.Config) -> None:
    """Refuse a shell where there is no terminal to open it on.

    Raises:
        pytest.UsageError: There is none.
    """
    if config.stash[RUN].settings.shell:
        with _uncaptured(config):
            if not (sys.stdin.isatty() and sys.stdout.isatty()):
                raise pytest.UsageError("--microsim-shell needs a terminal; in a script, use --microsim-keep failed")


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the one test that is to be replayed.

    Raises:
        pytest.UsageError: It is not among those collected.
    """
    asked = config.stash[RUN].settings.replay
    if asked is None:
        return
    names = [item for item in items if digest_of(plain_id(item)) == asked.test]
    chosen = [item for item in names if PARAMETER in getattr(item, "fixturenames", ()) and seed_of(item) == asked.seed]
    if not chosen:
        raise pytest.UsageError(
            f"--microsim-replay: none of {len(items)} collected tests is the one of {asked}; "
            "start it from the same directory, with the whole command that the failure printed"
        )
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def replay_of(item: pytest.Item, seed: int, world: WarmWorld) -> ReplayId:
    """Return the id of the rollout that a test is about to have, whose clock starts where a replayed one's did.

    Raises:
        ReplayError: It is to be a replay, and the world has been changed since.
    """
    asked = item.config.stash[RUN].settings.replay
    come = ReplayId.of(plain_id(item), seed, world, asked.wall_clock if asked else world.wall_clock)
    if asked and come.image != asked.image:
        raise ReplayError(
            f"the world {world.template.name} is not the one of that rollout: its image is {come.image} now, and was "
            f"{asked.image} then",
            cause="the template, a package that it takes, or pytest-microsim itself has been changed since",
            hint="check out what was tested then; or leave --microsim-replay out: this seed in the world of today",
        )
    return come


def note_replay(item: pytest.Item) -> None:
    """Note what came of a replay, for the summary; to be called when its call has ended."""
    run, state = item.config.stash[RUN], item.stash.get(ITEM, None)
    if run.settings.replay and state is not None and state.rollout is not None and state.replay is not None:
        run.replayed = verdict(run.settings.replay, state.replay.ended(state.rollout))


def offer_shell(item: pytest.Item, report: pytest.TestReport) -> None:
    """Show why a test has failed, and open a shell in its microVM; in that of a replay whatever came of it."""
    settings, state = item.config.stash[RUN].settings, item.stash.get(ITEM, None)
    if not settings.shell or state is None or state.rollout is None or not (report.failed or settings.replay):
        return
    terminal: Any = item.config.pluginmanager.get_plugin("terminalreporter")
    with _uncaptured(item.config):
        terminal.ensure_newline()
        if report.failed:
            terminal.section(item.nodeid)
            report.toterminal(terminal._tw)
        terminal.section(f"a shell in the guest of seed {state.seed}; it ends with it")
        _attach(terminal, state)
        terminal.section("going on")


def _attach(terminal: Any, state: ItemState) -> None:
    assert state.rollout is not None
    try:
        state.rollout.shell()
    except (MicrosimError, OSError) as error:
        terminal.line(f"microsim: no shell: {error}")


@contextmanager
def _uncaptured(config: pytest.Config) -> Iterator[None]:
    """Have the real terminal, keyboard and all, as pytest's own debugger has it."""
    manager: Any = config.pluginmanager.get_plugin("capturemanager")
    if manager is not None:
        manager.suspend(in_=True)
    try:
        yield
    finally:
        if manager is not None:
            manager.resume()
