"""Every acceptance test runs a pytest of its own in a process of its own, mostly without and with workers."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import platformdirs
import pytest
from microsim_vm import scaffold
from microsim_vm.cache import Cache
from microsim_vm.options import Options
from microsim_vm.templates import load_template
from microsim_vm.templates.bake import bake
from microsim_vm.world import WarmWorld, warm

REPOSITORY = Path(__file__).parents[2]
# pytester gives each test an empty home: without this, each would bake its world anew.
CACHE = os.environ.get("MICROSIM_CACHE_DIR") or platformdirs.user_cache_dir("microsim")
LIMIT_S = 600
SLOW_LAYERS = ("bases", "pythons", "wheels", "probes")

Run = Callable[..., pytest.RunResult]


@pytest.fixture(params=[0, 2], ids=["n0", "n2"])
def workers(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Run:
    """Run pytest in a process, with the test's number of workers."""
    monkeypatch.setenv("MICROSIM_CACHE_DIR", CACHE)

    def in_process(*arguments: str, timeout_s: float = LIMIT_S) -> pytest.RunResult:
        number = request.getfixturevalue("workers") if "workers" in request.fixturenames else 0
        command = [sys.executable, "-m", "pytest", *(["-n", str(number)] if number else []), *arguments]
        return pytester.run(*command, timeout=timeout_s)

    return in_process


@pytest.fixture
def controllers(pytester: pytest.Pytester) -> Path:
    """Copy the example controllers next to the test files."""
    return Path(shutil.copytree(REPOSITORY / "example_tests" / "controllers", pytester.path / "controllers"))


@pytest.fixture(scope="session")
def cache_with_layers() -> Callable[[Path], None]:
    """Return what makes a cache of its own, with nothing in it but the user's layers that take minutes to build."""
    usual = Cache(Path(CACHE))
    # Built under the usual cache's own locks: others of this run may want the same layers at this moment.
    bake(load_template(REPOSITORY / "templates" / "cartpole"), usual, locked=False, progress=print)

    def make(root: Path) -> None:
        root.mkdir(parents=True)
        for name in SLOW_LAYERS:
            (root / name).symlink_to(usual.folder(name))

    return make


@pytest.fixture(scope="session")
def cache_with_cartpole(cache_with_layers: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return what makes a cache of its own in which cartpole is warm, for whatever asks for it: that is no subject."""
    template = load_template(REPOSITORY / "templates" / "cartpole")
    # The engine that is chosen, and that for guests with volumes; warmed in the usual cache, which others use too.
    worlds = [warm(template, Options(engine=engine), print) for engine in ("auto", "qemu")]

    def make(root: Path) -> None:
        cache_with_layers(root)
        _link_snapshots(root, worlds)

    return make


@pytest.fixture(scope="session")
def cache_with_new_project(
    cache_with_cartpole: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Path], None]:
    """Return what makes such a cache in which the world that ``microsim init`` writes is warm as well."""
    folder = tmp_path_factory.mktemp("new") / "project"
    scaffold.write(folder, "cart")
    world = warm(load_template(folder / "templates" / "cart"), Options(), print)

    def make(root: Path) -> None:
        cache_with_cartpole(root)
        _link_snapshots(root, [world])

    return make


def _link_snapshots(root: Path, worlds: Iterable[WarmWorld]) -> None:
    for folder in {world.snapshot.directory for world in worlds}:
        shutil.copytree(folder, root / "snapshots" / folder.name, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


@pytest.fixture
def cold_cache(tmp_path: Path, cache_with_layers: Callable[[Path], None]) -> Iterator[Path]:
    """Make a cache in which nothing is warm."""
    root = tmp_path / "cache"
    cache_with_layers(root)
    yield root
    shutil.rmtree(root / "snapshots", ignore_errors=True)
