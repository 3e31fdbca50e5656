"""The fixtures: ``warm_world`` for a whole session, ``rollout`` for one test and one seed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from microsim_vm.errors import MicrosimError

from .alone import replay_of
from .collection import deterministic, forks_next, param_of, seed_of, session_world, world_of
from .environment import environment_of
from .interleavings.skipping import skip_needless
from .markers import microsim_mark
from .report import captures, videos
from .report.rollouts import fork_phases
from .scenarios.collection import scenario_of
from .scenarios.running import describe
from .state import ITEM, RUN, ItemState
from .stopping import stops
from .worlds import WorldPool, label_of

if TYPE_CHECKING:
    from microsim_vm.world import WarmWorld

    from .rollout import Rollout


@pytest.fixture(scope="session")
def _microsim_worlds(pytestconfig: pytest.Config) -> Iterator[WorldPool]:
    """Hold the warm worlds of this process, and close them at the end of the session."""
    run = pytestconfig.stash[RUN]
    run.pool = WorldPool(run)
    yield run.pool
    run.pool.close()


@pytest.fixture(scope="session")
def warm_world(request: pytest.FixtureRequest, _microsim_worlds: WorldPool) -> WarmWorld:
    """The session's world, loaded once: template, digest, snapshot, fork(seed) and map(controller, seeds).

    --microsim-world chooses it, or the ini setting microsim_world.
    """
    _refuse_when_stopping(request)
    run = request.config.stash[RUN]
    with _plain_failure():
        name = session_world(request.session)
        return _microsim_worlds.get(name, deterministic=run.deterministic(name))


@pytest.fixture
def rollout(request: pytest.FixtureRequest, _microsim_worlds: WorldPool) -> Iterator[Rollout]:
    """A microVM of this test's own, forked from its warm world for one seed: run(controller), exec(), ...

    With @pytest.mark.seeds(range(64)) the test runs once per seed. Without, its one seed comes from its id.
    """
    from .rollout import Rollout

    _refuse_when_stopping(request)
    item: pytest.Item = request.node
    seed = seed_of(item)
    with _plain_failure():
        mark = microsim_mark(item)
        name = world_of(item)
        state = item.stash[ITEM] = ItemState(world=name, seed=seed, param=param_of(item))
        scenario = scenario_of(item)
        if scenario is not None:
            describe(scenario, item, state)
        skip_needless(item, state)
        world = _microsim_worlds.get(name, deterministic=deterministic(item, name))
        state.world, state.warm = label_of(world), world
        state.digest, state.snapshot, state.env = world.digest, world.snapshot.key, world.template.env
        state.others = {machine: other.template.name for machine, other in world.others.items()}
        schedule = state.param.schedule if state.param else None
        state.environment = environment_of(world, seed, schedule)
        state.replay = replay_of(item, seed, world)
        clock = state.replay.wall_clock
        again = partial(
            world.fork, seed, reseed=mark.reseed, wall_clock="now" if clock is None else clock, schedule=schedule
        )
        asked = time.time()
        machine = again()
        if not world.deterministic:  # whose machine is forked when it is asked something
            state.phases += fork_phases(asked, time.time(), machine.timings["fork"] / 1000.0)
    state.rollout = Rollout(
        machine,
        seed=seed,
        world=world.template.name,
        controller_folders=[item.path.parent, item.config.rootpath, Path.cwd()],
        reseed=mark.reseed,
        max_steps=mark.max_steps,
        limits=mark.limits,
        again=again,
    )
    with captures.kept(state):
        if forks_next(item, name):
            world.prepare()
        yield state.rollout
    videos.made(state)


@contextmanager
def _plain_failure() -> Iterator[None]:
    """Show an error of ours as its message alone: a traceback through the plugin helps nobody."""
    try:
        yield
    except MicrosimError as error:
        # Raised, not called: "from None" keeps the report from showing the message twice.
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def _refuse_when_stopping(request: pytest.FixtureRequest) -> None:
    if stops(request.session):
        pytest.skip("microsim: the run is stopping, so nothing new is started")
