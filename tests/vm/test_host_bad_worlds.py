"""Worlds that cannot be warmed, and hosts that lack a program: one clear error each, and never a hang."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from hosting import ON_ANY_ENGINE, QUICK, TEMPLATES, fresh_cache, guests_of, plain, session
from microsim_vm.cache import Cache
from microsim_vm.errors import MicrosimError, TemplateError, WarmUpError
from microsim_vm.options import Options
from microsim_vm.templates import load_template
from microsim_vm.tools import install_command
from microsim_vm.world import WarmWorld, warm

pytestmark = pytest.mark.timeout(240)

COMMON = """
name: {name}
base: {{suite: bookworm, packages: [python3]}}
machine: {{vcpus: 1, memory_mib: 160}}
network: none
warmup_timeout_s: {timeout}
"""
# Those that wait for a time-out come first: the others are warmed meanwhile.
WORLDS = {
    "sleeps": 'world: {factory: "world:sleeps"}',
    "unready": """
processes:
  - name: simulator
    command: "echo waiting for a GPU; exec sleep 3600"
    readiness: "false"
""",
    "raises": 'world: {factory: "world:raises"}',
    "no-world": 'world: {factory: "world:not_a_world"}',
    "no-package": 'world: {factory: "world:imports_what_is_missing"}',
    "served": """
processes:
  - name: simulator
    command: "echo $$ > /run/simulator.pid; echo simulator is up; exec sleep 3600"
    readiness: "test -s /run/simulator.pid"
""",
    "dying": """
processes:
  - name: simulator
    command: "echo no display found >&2; exit 3"
    readiness: "false"
""",
}
SHORT = {"sleeps": 2, "unready": 2}
# What is warmed on each engine. The others are what the guest says of a world, and need one engine.
ON_EACH = ("served",)


class Outcome:
    """What warming a world came to."""

    def __init__(self, name: str, cache: Cache, folder: Path, engine: str) -> None:
        self.lines: list[str] = []
        self.folder = folder / name
        self._name = name
        self._cache = cache
        self._engine = engine
        shutil.copytree(TEMPLATES / "faulty", self.folder)
        text = COMMON.format(name=name, timeout=SHORT.get(name, 60)) + WORLDS[name]
        (self.folder / "template.yaml").write_text(text)

    def warm(self, session_id: str = "") -> WarmWorld:
        self.lines = []
        options = Options(cache_dir=self._cache.root, session_id=session_id, engine=self._engine)
        return warm(load_template(self.folder / "template.yaml"), options, self.lines.append)

    def error(self, session_id: str = "") -> WarmUpError:
        with pytest.raises(MicrosimError) as caught:
            self.warm(session_id)
        assert type(caught.value) is WarmUpError, str(caught.value)
        return caught.value


Get = Callable[[str], tuple[Outcome, "WarmWorld | WarmUpError"]]


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Get:
    """Return a function that gives a world's outcome; an engine's are warmed at the first call, two at a time."""
    folder = tmp_path_factory.mktemp("bad")
    cache = fresh_cache(folder / "cache")
    outcomes = {name: Outcome(name, cache, folder, engine) for name in (WORLDS if engine == QUICK else ON_EACH)}
    results: dict[str, Future[WarmWorld | WarmUpError]] = {}

    def get(name: str) -> tuple[Outcome, WarmWorld | WarmUpError]:
        if not results:
            with ThreadPoolExecutor(2) as pool:
                for each, outcome in outcomes.items():
                    results[each] = pool.submit(outcome.warm if each == "served" else outcome.error, "first session")
            assert guests_of(cache.root) == []
            assert list(cache.folder("staging").iterdir()) == []
        return outcomes[name], results[name].result()

    return get


def error_of(warmed: Get, name: str) -> WarmUpError:
    error = warmed(name)[1]
    assert isinstance(error, WarmUpError)
    return error


@ON_ANY_ENGINE
def test_a_factory_that_raises_shows_the_guests_traceback(warmed: Get) -> None:
    error = error_of(warmed, "raises")
    assert error.what == "world raises cannot be loaded: ValueError: the mesh in shelves.obj has no faces"
    assert 'File "/opt/microsim/world/world.py", line 8, in raises' in error.details
    assert 'File "/opt/microsim/world/world.py", line 12, in _load' in error.details
    assert 'return _load("shelves.obj")' in error.details
    assert error.details.rstrip().endswith("ValueError: the mesh in shelves.obj has no faces")


def test_a_missing_factory_module_is_refused_before_anything_boots(tmp_path: Path) -> None:
    template = plain(tmp_path).path
    template.write_text(template.read_text().replace("world:make", "elsewhere:make"))
    with pytest.raises(TemplateError, match=rf"{template}:7: there is no module 'elsewhere'"):
        load_template(template)


@ON_ANY_ENGINE
def test_a_factory_that_returns_no_world_is_told_what_is_missing(warmed: Get) -> None:
    error = error_of(warmed, "no-world")
    assert "reset" in str(error)
    assert "dict" in str(error)


@ON_ANY_ENGINE
def test_a_missing_package_is_named_with_the_users_line(warmed: Get) -> None:
    error = error_of(warmed, "no-package")
    assert "No module named 'a_package_nobody_installed'" in error.what
    assert 'File "/opt/microsim/world/world.py", line 22, in imports_what_is_missing' in error.details


@ON_ANY_ENGINE
def test_a_world_that_is_never_ready_fails_in_time_with_what_it_printed(warmed: Get) -> None:
    error = error_of(warmed, "sleeps")
    assert error.what == "world sleeps was not ready within 2 s"
    assert "warmup_timeout_s" in error.hint
    assert "world: waiting for a licence server" in error.details


def test_processes_that_become_ready_are_a_world(warmed: Get) -> None:
    world = warmed("served")[1]
    assert isinstance(world, WarmWorld)
    with world.fork(1) as machine:
        assert machine.exec("kill -0 $(cat /run/simulator.pid)").exit_code == 0
        assert "simulator is up" in machine.logs()["simulator"]


@ON_ANY_ENGINE
def test_a_process_that_is_never_ready_is_named_with_its_output(warmed: Get) -> None:
    error = error_of(warmed, "unready")
    assert "process 'simulator' was not ready in time" in error.what
    assert "waiting for a GPU" in str(error)


@ON_ANY_ENGINE
def test_a_process_that_dies_is_named_with_its_output(warmed: Get) -> None:
    error = error_of(warmed, "dying")
    assert "process 'simulator' ended with 3 before it was ready" in error.what
    assert "no display found" in str(error)


@ON_ANY_ENGINE
def test_a_failure_is_not_repeated_within_a_session_and_tried_afresh_in_the_next(warmed: Get) -> None:
    outcome, first = warmed("raises")
    started = time.monotonic()
    again = outcome.error("first session")
    assert time.monotonic() - started < 2
    assert not [line for line in outcome.lines if "booting" in line]
    assert str(again) == str(first)
    assert str(outcome.error("second session")) == str(first)
    assert [line for line in outcome.lines if "booting" in line]


FAILS = """
try:
    warm(template, options, say)
except MicrosimError as error:
    say(type(error).__name__, str(error))
"""


@pytest.mark.parametrize(
    ("engine", "program", "package", "shared"),
    [
        ("qemu", "qemu-system-x86_64", "qemu-system-x86", ["bases"]),
        ("gvisor", "runsc", "runsc", ["bases"]),
        ("gvisor", "fsck.erofs", "erofs-utils", ["bases"]),
        ("auto", "mmdebstrap", "mmdebstrap", ["wheels"]),
    ],
)
def test_a_missing_program_is_named_with_the_command_that_installs_it(
    tmp_path: Path, engine: str, program: str, package: str, shared: list[str]
) -> None:
    farm = tmp_path / "bin"
    farm.mkdir()
    for folder in ("/bin", "/usr/bin", "/usr/local/bin"):
        for entry in Path(folder).iterdir():
            if entry.name != program and not (farm / entry.name).is_symlink():
                (farm / entry.name).symlink_to(entry)
    cache = fresh_cache(tmp_path / "cache", *shared)
    with session(FAILS, plain(tmp_path).path, cache.root, engine, env={"PATH": str(farm)}) as other:
        assert other.wait(30) == 0
    assert f"MissingToolError {program} not found on this machine" in other.text
    sudo = "" if os.geteuid() == 0 else "sudo "
    assert f"run: {sudo}apt-get install --no-install-recommends {package}\n" in other.text + "\n"
    assert install_command(program) in other.text
    assert "building" not in other.text
