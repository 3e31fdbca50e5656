"""What the tests of the host's side share: templates to change, caches to spoil, sessions to kill."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from microsim_vm import Sandbox, owner, runtime
from microsim_vm.cache import Cache
from microsim_vm.options import Options
from microsim_vm.sandbox.store import Store
from microsim_vm.templates import load_template
from microsim_vm.templates.bake import bake
from microsim_vm.templates.spec import Template
from microsim_vm.world import WarmWorld, warm

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parents[1]
TEMPLATES = FOLDER / "host_templates"
NOBODY = 65534
# Of root's rights it has the one to read what is in root's folders, for the interpreter may be there.
AS_NOBODY = (
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all,+dac_read_search",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
)  # fmt: skip

ENDING_S = 2.0
"""How long a process may take to end that the kernel has killed."""

Warmed = Callable[[str], WarmWorld]
"""What the fixture ``warmed`` is: from a world's name to the warm world."""


def gvisor_works() -> bool:
    """Tell whether this machine has what gVisor's guests need, as far as that can be seen."""
    return shutil.which("runsc") is not None and os.geteuid() == 0


QUICK = "gvisor" if gvisor_works() else "qemu"
"""The engine that boots in the least time here, emulation being what QEMU may come to."""
ON_ANY_ENGINE = pytest.mark.parametrize("engine", [QUICK], indirect=True)
"""For a test whose subject is not up to the engine, and is shown on whichever is quick."""

# How every script of these tests begins: its arguments are a template's file, a cache and an engine.
PRELUDE = """
import os, sys, threading, time
from pathlib import Path
from microsim_vm.errors import MicrosimError
from microsim_vm.templates import load_template
from microsim_vm.options import Options
from microsim_vm.world import warm

def say(*words):
    print(*words, flush=True)

template = load_template(Path(sys.argv[1]))
options = Options(cache_dir=Path(sys.argv[2]), engine=sys.argv.pop(3))
"""

# And how those go on that use sandboxes; ``stop`` lets them stand still at a point, to be killed there.
SANDBOXES = """
from microsim_vm import Mount, Sandbox, Volume

def create(**settings):
    return Sandbox.create(template.path, options=options, **settings)

def stop(place, name, when=lambda *a: True, after=False):
    real = getattr(place, name)
    def stopping(*args, **kwargs):
        if not when(*args):
            return real(*args, **kwargs)
        if after:
            real(*args, **kwargs)
        say("stopped")
        time.sleep(600)
    setattr(place, name, stopping)

def sleep():
    time.sleep(600)
"""


def plain(folder: Path, *changes: tuple[str, str]) -> Template:
    """Copy the template ``plain`` into a folder, replace texts in its YAML, and load it."""
    copy = folder / "plain"
    if not copy.exists():
        shutil.copytree(TEMPLATES / "plain", copy)
    path = copy / "template.yaml"
    for old, new in changes:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    return load_template(path)


def fresh_cache(root: Path, *shared: str) -> Cache:
    """Make a cache without images and snapshots that shares the slow layers with the user's cache."""
    usual = Cache()
    bake(plain(root.with_name(root.name + "-first")), usual, locked=False, progress=print)
    root.mkdir(parents=True)
    for name in shared or ("bases", "pythons", "wheels", "probes"):
        (root / name).symlink_to(usual.folder(name))
    return Cache(root)


def warm_cache(root: Path, template: Template, engine: str, *, to_be_spoiled: bool = False) -> Cache:
    """Make a fresh cache in which a template is warm; see ``share_snapshot``."""
    cache = fresh_cache(root)
    share_snapshot(cache, template, engine, to_be_spoiled=to_be_spoiled)
    return cache


def share_snapshot(cache: Cache, template: Template, engine: str, *, to_be_spoiled: bool = False) -> None:
    """Give a cache the snapshot that the user's cache has of a template, or makes now.

    Args:
        cache: Which has none yet.
        template: What is to be warm in it.
        engine: On which engine.
        to_be_spoiled: Whether the snapshot's files are to be written to: else they are the user's, by another name.
    """
    snapshot = warm(template, Options(engine=engine), print).snapshot
    copy = shutil.copy2 if to_be_spoiled else link_or_copy
    shutil.copytree(snapshot.directory, cache.folder("snapshots") / snapshot.key, copy_function=copy)


def link_or_copy(source: str, target: str) -> None:
    """Give a file another name, or copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


class Place:
    """A template and a cache that only these tests use, so that all that is in it is theirs."""

    def __init__(self, template: Template, cache: Cache, engine: str) -> None:
        self.template = template
        self.cache = cache
        self.engine = engine
        self.options = Options(cache_dir=cache.root, engine=engine)
        self.store = Store(cache)

    @classmethod
    def fresh(cls, folder: Path, engine: str) -> Place:
        """Make one in an empty folder, with nothing warm in it."""
        return cls(plain(folder), fresh_cache(folder / "cache"), engine)

    @classmethod
    def warm(cls, folder: Path, engine: str) -> Place:
        """Make one in an empty folder, whose template is warm."""
        template = plain(folder)
        return cls(template, warm_cache(folder / "cache", template, engine), engine)

    @property
    def arguments(self) -> tuple[Path, Path, str]:
        """What every script takes."""
        return self.template.path, self.cache.root, self.engine

    def create(self, **settings: Any) -> Sandbox:
        """Make a sandbox in this process."""
        return Sandbox.create(self.template.path, options=self.options, **settings)

    def session(self, body: str, *arguments: object) -> contextlib.AbstractContextManager[Session]:
        """Run a script that works with sandboxes of this place; it is dead at the end."""
        return session(SANDBOXES + body, *self.arguments, *arguments)

    def left(self, pid: int = 0, *, hibernated: Collection[str] = ()) -> list[str]:
        """Return what lies about although nothing runs here, and what a process that has ended has left."""
        with runtime.locked() as path:
            records = [record.label for _, record in runtime.records(path) if record.owner.pid == pid]
            doors = [door.name for door in path.glob(f"{pid}-*")]
            bundles = [folder.name for folder in path.glob(f"{runtime.GVISOR}*") if _owner_of(folder) == pid]
        folders = [f"{kind}/{each.name}" for kind in ("staging", "sandboxes")
                   for each in self.cache.folder(kind).iterdir() if each.name not in hibernated]  # fmt: skip
        deadline = time.monotonic() + ENDING_S  # the kernel has killed them, and takes their memory away first
        while (guests := guests_of(self.cache.root)) and time.monotonic() < deadline:
            time.sleep(0.05)
        processes = [*guests, *keepers_of(self.cache.root), *orphans()]
        mounts = [line for line in Path("/proc/mounts").read_text().splitlines()
                  if str(self.cache.root) in line or runtime.GVISOR in line]  # fmt: skip
        # Others' groups end while these are listed, which is no error to os.walk.
        groups = [f"{top}/{name}" for top, names, _ in os.walk("/sys/fs/cgroup") for name in names
                  if name.startswith(runtime.GVISOR)]  # fmt: skip
        return [*map(str, processes), *folders, *records, *doors, *bundles, *mounts, *groups]


def guests_of(root: Path) -> list[int]:
    """Return the processes of engines that run guests from a cache, one per guest."""
    return _running(lambda words: _is_qemu(words, root) or _is_runsc(words, root))


def _is_qemu(words: list[str], root: Path) -> bool:
    return "qemu" in words[0] and any(str(root) in word for word in words)


def _is_runsc(words: list[str], root: Path) -> bool:
    """Tell it by the root folder of the bundle that it was started with."""
    if not words[0].endswith("/runsc") or not {"run", "restore"} & set(words) or "--bundle" not in words:
        return False
    bundle = Path(words[words.index("--bundle") + 1])
    with contextlib.suppress(OSError, ValueError):  # it is being removed
        return str(json.loads((bundle / "config.json").read_text())["root"]["path"]).startswith(f"{root}/")
    return False


def orphans(within_s: float = ENDING_S) -> list[int]:
    """Return processes of gVisor's guests whose owner is gone, and that do not end by themselves within a moment."""
    deadline = time.monotonic() + within_s
    while (found := _running(_is_orphan)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _is_orphan(words: list[str]) -> bool:
    start = f"--root={runtime.folder()}/{runtime.GVISOR}"
    folders = [Path(word.removeprefix("--root=")) for word in words if word.startswith(start)]
    holder = owner.read(folders[0]) if folders else None
    return bool(folders) and (holder is None or not holder.alive())


def _owner_of(folder: Path) -> int:
    holder = owner.read(folder)
    return holder.pid if holder is not None else 0


def keepers_of(root: Path) -> list[int]:
    """Return the keepers of a cache's detached sandboxes."""
    return _running(lambda words: words[1:4] == ["-m", "microsim_vm.sandbox.keeper", str(root)])


def _running(wanted: Callable[[list[str]], bool]) -> list[int]:
    processes = [(process.pid, process.info["cmdline"]) for process in psutil.process_iter(["cmdline"])]
    return [pid for pid, words in processes if words and wanted(words)]


def give_to_nobody(world: WarmWorld, folder: Path) -> None:
    """Copy what a world's forks are made of: kernel, initramfs and layers by their names, and the folder snapshot.

    An emulator has its user's rights alone, and the cache may be below a home that is root's.
    """
    boot = world.forker.boot
    (folder / "snapshot").mkdir()
    files = {"kernel": boot.kernel, "initramfs": boot.initramfs, **boot.layers,
             **{f"snapshot/{path.name}": path for path in world.snapshot.directory.iterdir()}}  # fmt: skip
    for name, path in files.items():
        shutil.copyfile(path, folder / name)
        os.chown(folder / name, NOBODY, NOBODY)


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 60.0, period_s: float = 0.01) -> None:
    """Poll until a condition holds.

    Raises:
        AssertionError: It did not in time.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} not within {timeout_s:g} s"
        time.sleep(period_s)


class Session:
    """A Python process of its own that uses the library, as a test session would."""

    def __init__(self, body: str, *arguments: object, env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + body, *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **(env or {})},
        )  # fmt: skip
        self.output: list[str] = []
        self._fresh: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self.output.append(line.rstrip("\n"))
                self._fresh.put(line.rstrip("\n"))
        self._fresh.put(None)

    @property
    def text(self) -> str:
        """All that it printed so far."""
        return "\n".join(self.output)

    def expect(self, word: str, timeout_s: float = 60.0) -> str:
        """Wait for a line that contains a word, and return it."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._fresh.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {word!r} within {timeout_s:g} s:\n{self.text}") from None
            assert line is not None, f"it ended without {word!r}:\n{self.text}"
            if word in line:
                return line

    def kill(self) -> None:
        """Kill it as a crash does: nothing of it runs any more."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def wait(self, timeout_s: float = 60.0) -> int:
        """Wait for its end and return its exit status."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s:g} s:\n{self.text}") from None
        self._reader.join(10)
        return status


@contextlib.contextmanager
def session(body: str, *arguments: object, env: Mapping[str, str] | None = None) -> Iterator[Session]:
    """Run a script; it is dead at the end."""
    started = Session(body, *arguments, env=env)
    try:
        yield started
    finally:
        started.kill()
        started.wait()
