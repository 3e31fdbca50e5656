"""Memory: forks wait for room, and no guest costs another one, or the session, its life."""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hosting import ON_ANY_ENGINE, QUICK, fresh_cache, plain, session, wait_for, warm_cache
from microsim_vm import admission
from microsim_vm.engines import qemu
from microsim_vm.engines.gvisor import Gvisor
from microsim_vm.errors import MemoryBudgetError
from microsim_vm.options import Options
from microsim_vm.world import WarmWorld, warm

pytestmark = pytest.mark.timeout(180)

LIMIT = 1 << 30
ENGINE_MIB = 96
OVERHEAD_MIB = {"qemu": qemu.Qemu.overhead_mib, "gvisor": Gvisor.overhead_mib}
admitted = functools.partial(admission.admitted, overhead_mib=ENGINE_MIB)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, engine: str) -> WarmWorld:
    """A guest of 256 MiB, so that two of them fit into the control group of these tests and not three."""
    folder = tmp_path_factory.mktemp("admission")
    template = plain(folder, ("memory_mib: 160", "memory_mib: 256"))
    cache = warm_cache(folder / "cache", template, engine)
    return warm(template, Options(cache_dir=cache.root, engine=engine), print)


class Group:
    """A memory control group of our own."""

    def __init__(self, folder: Path, limit: str, oom: str) -> None:
        self.folder = folder
        self._oom = oom
        (folder / limit).write_text(str(LIMIT))

    def oom_kills(self) -> int:
        lines = (self.folder / self._oom).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


@pytest.fixture
def group() -> Iterator[Group]:
    """A control group of 1 GiB, version 1 or 2, whichever this machine has."""
    if os.geteuid() != 0:
        pytest.skip("making a control group takes root")
    name = f"microsim-test-{uuid.uuid4().hex[:8]}"
    if (admission.CGROUPS / "memory").is_dir():
        folder, files = admission.CGROUPS / "memory" / name, ("memory.limit_in_bytes", "memory.oom_control")
    elif "memory" in _text(admission.CGROUPS / "cgroup.subtree_control"):
        folder, files = admission.CGROUPS / name, ("memory.max", "memory.events")
    else:
        pytest.skip("no memory control groups on this machine")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"control groups cannot be made here: {error.strerror}")
    try:
        yield Group(folder, *files)
    finally:
        # A guest that was killed with its owner is in it for a moment more.
        wait_for(lambda: not (folder / "cgroup.procs").read_text(), "the end of all that is in the group")
        folder.rmdir()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


DIRTY = """
from concurrent.futures import ThreadPoolExecutor
Path(sys.argv[3], "cgroup.procs").write_text(str(os.getpid()))
from microsim_vm import admission
say("budget", admission.budget_mib())
world = warm(template, options, say)
lock, live, most = threading.Lock(), 0, 0

def dirty(seed):
    global live, most
    with world.fork(seed) as machine:
        with lock:
            live += 1
            most = max(most, live)
        result = machine.exec("dd if=/dev/zero of=/dev/shm/fill bs=1M count=64 && stat -c %s /dev/shm/fill", check=True)
        with lock:
            live -= 1
        return int(result.stdout)

forks = int(sys.argv[4])
with ThreadPoolExecutor(forks) as pool:
    sizes = list(pool.map(dirty, range(forks)))
say("finished", len(sizes), set(sizes), "most", most)
"""


def test_forks_that_dirty_64_mib_each_queue_in_a_control_group_of_1_gib(
    world: WarmWorld, group: Group, engine: str
) -> None:
    """Where another engine shows it with 16, a slow one has enough of 8: more than could be there at a time."""
    forks = 16 if engine == QUICK else 8
    cache = world.snapshot.directory.parents[1]
    with session(DIRTY, world.template.path, cache, engine, group.folder, forks) as other:
        assert other.wait(150) == 0, other.text
    assert f"budget {int(1024 * admission.SHARE)}" in other.text
    at_a_time = int(1024 * admission.SHARE) // (256 + world.forker.engine.overhead_mib)
    assert forks > 2 * at_a_time
    assert f"finished {forks} {{{64 << 20}}} most {at_a_time}" in other.text
    assert group.oom_kills() == 0


@ON_ANY_ENGINE
def test_guests_outside_a_control_group_do_not_count_in_it(world: WarmWorld, group: Group) -> None:
    inside = """
Path(sys.argv[3], "cgroup.procs").write_text(str(os.getpid()))
with warm(template, options, say).fork(1) as machine:
    say("answer", machine.exec("echo $EPISODE_SEED").stdout)
"""
    cache = world.snapshot.directory.parents[1]
    arguments = (world.template.path, cache, world.forker.engine.name, group.folder)
    with world.fork(1), world.fork(2), session(inside, *arguments) as other:
        assert other.wait(60) == 0, other.text
    assert "answer 1" in other.text


def test_a_guest_that_can_never_fit_is_refused_at_once(tmp_path: Path, engine: str) -> None:
    memory = psutil.virtual_memory().total >> 20
    if memory > 65536:
        pytest.skip("this machine has more memory than a template can ask for")
    template = plain(tmp_path, ("memory_mib: 160", f"memory_mib: {memory}"))
    cache = fresh_cache(tmp_path / "cache")
    lines: list[str] = []
    with pytest.raises(MemoryBudgetError, match=f"a guest of {memory} MiB needs {memory + OVERHEAD_MIB[engine]} MiB"):
        warm(template, Options(cache_dir=cache.root, engine=engine), lines.append)
    assert not [line for line in lines if f"booting {engine}" in line]
    assert list(cache.folder("staging").iterdir()) == []


def test_a_full_budget_is_an_error_that_names_the_live_guests(
    world: WarmWorld, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A runtime folder of its own: filling the real one would hold up everybody else on this machine.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with world.fork(5):
        rest = admission.budget_mib() - 2 * ENGINE_MIB - OVERHEAD_MIB[engine] - 256
        with (
            admitted(rest, "a very large guest"),
            pytest.raises(MemoryBudgetError) as caught,
            admitted(256, "one too many", wait_s=0.2),
        ):
            pass
    assert "2 live guests hold" in caught.value.what
    assert "did not become free within 0.2 s" in caught.value.what
    assert caught.value.details.splitlines() == [
        f"a very large guest (process {os.getpid()})",
        f"plain seed 5 (process {os.getpid()})",
    ]
    with admitted(256, "now there is room", wait_s=0.2):
        pass
