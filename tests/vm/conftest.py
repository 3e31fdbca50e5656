"""Real guests for the tests of this folder: each template is warmed once per session, and cached between them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hosting import REPOSITORY, Warmed, gvisor_works
from microsim_vm.options import Options
from microsim_vm.templates import find_template, search_path
from microsim_vm.world import WarmWorld, warm

FOLDER = Path(__file__).parent


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Where templates are looked for: copies of those in this folder (a bake writes its lock there), then ours."""
    copies = tmp_path_factory.mktemp("vm") / "templates"
    shutil.copytree(FOLDER / "templates", copies)
    return search_path([copies], REPOSITORY)


@pytest.fixture(scope="session", params=["qemu", "gvisor"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn: whatever uses this, or a world, is a part of the contract that all of them keep."""
    name: str = request.param
    if name == "gvisor" and not gvisor_works():
        pytest.skip("gVisor's guests need runsc, and root")
    return name


@pytest.fixture(scope="session")
def warmed(templates: list[Path], engine: str) -> Warmed:
    """Return a function that gives a template's warmed world, made at the first call."""
    worlds: dict[str, WarmWorld] = {}

    def get(name: str) -> WarmWorld:
        if name not in worlds:
            found = find_template(name, templates)
            worlds[name] = warm(found, Options(engine=engine), lambda line: print(f"[{name}] {line}"))
        return worlds[name]

    return get


@pytest.fixture(scope="session")
def cartpole(warmed: Warmed) -> WarmWorld:
    """The shipped world without any Python package."""
    return warmed("cartpole")


@pytest.fixture(scope="session")
def pendulum(warmed: Warmed) -> WarmWorld:
    """The shipped world with numpy and Gymnasium, named by its Gymnasium id."""
    return warmed("pendulum")
