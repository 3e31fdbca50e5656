"""What a sandbox's operations take, each against other ways to the same end in the same run."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import alternatives
import common
from alternatives import Alternative
from microsim_vm import Sandbox
from microsim_vm.cache import Cache
from microsim_vm.options import Options
from microsim_vm.sandbox import saved
from microsim_vm.sandbox.store import HIBERNATED, Store
from microsim_vm.world import WarmWorld

Ended = contextlib.AbstractContextManager[object]
HEADER = ["p50", "p99", "n", "ratio"]
SIZES = {"1 KiB": 1 << 10, "50 MiB": 50 << 20}
PATH = "/workspace/file"
STEPS = 100


def main() -> None:
    """Print the tables."""
    options = common.arguments(
        __doc__ or "", n=50, big=5, boots=3, children=16, trees=3, branches=20, replays=3, action="[0.1, 0.2]"
    )
    world = common.world("base", options.engine)
    with alternatives.working(world) as others:
        saves, loads, disk = alternatives.savevm(world, options.boots)
        _starts(world, others, loads, options)
        with _created(options) as sandbox:
            _commands(sandbox, others, options)
            _files(sandbox, others, options)
        _hibernation(saves, loads, options)
        _sizes(world, disk, options)
    _branches(common.world(options.world, options.engine), options)


def _starts(world: WarmWorld, others: list[Alternative], loads: list[float], options: argparse.Namespace) -> None:
    measured: dict[str, list[float]] = {
        "create, from the template's snapshot": _each(options.n, partial(_created, options))
    }
    with _created(options) as parent:
        parent.fork().kill()  # makes the copy that the next ones share
        measured["fork of a sandbox at rest"] = _each(options.n, parent.fork)
        measured["fork of one just used, a copy each"] = _each(
            options.n, parent.fork, before=partial(parent.exec, ["true"], check=True)
        )
        label = f"fork_tree({options.children}), per child"
        measured[label] = [_tree(parent, options.children) for _ in range(options.trees)]
    measured["cold boot"] = []
    for index in range(options.boots):
        common.progress(f"cold boot {index + 1} of {options.boots}")
        with common.cold(world) as machine:
            measured["cold boot"].append(machine.timings["cold"])
    if loads:
        measured["QEMU's loadvm"] = loads
    for other in others:
        measured[other.start_label] = []
        for _ in range(options.n):
            measured[other.start_label] += common.times(1, other.start)
            other.stop()
    common.table(["start, to the first answer (ms)", *HEADER], common.compared(measured))


def _commands(sandbox: Sandbox, others: list[Alternative], options: argparse.Namespace) -> None:
    measured = {"exec": common.times(options.n, partial(sandbox.exec, ["true"], check=True))}
    for other in others:
        other.start()
        measured[other.run_label] = common.times(options.n, partial(other.run, ["true"]))
        other.stop()
    common.table(["the command true (ms)", *HEADER], common.compared(measured))


def _files(sandbox: Sandbox, others: list[Alternative], options: argparse.Namespace) -> None:
    write, read = ["sh", "-c", f"cat >{PATH}"], ["cat", PATH]
    for other in others:
        other.start()
    rows = []
    for name, size in SIZES.items():
        data, count = os.urandom(size), options.n if size < 1 << 20 else options.big
        written = {"filesystem": common.times(count, partial(sandbox.filesystem.write, PATH, data))}
        found = {"filesystem": common.times(count, partial(sandbox.filesystem.read, PATH))}
        assert sandbox.filesystem.read(PATH) == data
        for other in others:
            written[other.run_label] = common.times(count, partial(other.run, write, data))
            found[other.run_label] = common.times(count, partial(other.run, read))
            assert other.run(read) == data
        for verb, measured in (("write", written), ("read", found)):
            for row, values in zip(common.compared(measured), measured.values(), strict=True):
                speed = size / 1e6 / (statistics.median(values) / 1e3)
                rows.append([f"{verb} {name}: {row[0]}", *row[1:], f"{speed:.2f}"])
    for other in others:
        other.stop()
    common.table(["one file (ms)", *HEADER, "MB/s"], rows)


def _hibernation(saves: list[float], loads: list[float], options: argparse.Namespace) -> None:
    down: list[float] = []
    up: list[float] = []
    with _created(options) as sandbox:
        for _ in range(options.n):
            sandbox.exec(["true"], check=True)
            down += common.times(1, sandbox.hibernate)
            up += common.times(1, sandbox.wake)
    common.table(
        ["hibernation (ms)", *HEADER],
        common.compared({"hibernate": down, **({"QEMU's savevm": saves} if saves else {})})
        + common.compared({"wake": up, **({"QEMU's loadvm": loads} if loads else {})}),
    )


def _sizes(world: WarmWorld, disk: int, options: argparse.Namespace) -> None:
    """Print what each kind of snapshot adds on disk: a file with several names is counted where it comes first."""
    cache, seen = Cache(), set[int]()
    rows = [("warm: the template's", _blocks(world.snapshot.directory.iterdir(), seen))]
    with _created(options) as sandbox, contextlib.ExitStack() as stack:
        snapshot = sandbox.snapshot()
        stack.callback(saved.delete, cache, snapshot.id)  # at the end: a new file may get a deleted one's inode
        rows.append(("saved, of a sandbox just made", _blocks(saved.folder_of(cache, snapshot.id).iterdir(), seen)))
        sandbox.hibernate()
        folder = Store(cache).folder(sandbox.id) / HIBERNATED
        rows.append(("hibernated, likewise", _blocks(folder.iterdir(), seen)))
    if disk:
        rows.append(("QEMU's savevm: the qcow2 disk", disk))
    common.table(
        ["a snapshot on disk", "MiB", "ratio"],
        [[label, f"{size / (1 << 20):.1f}", f"{size / rows[0][1]:.2f}"] for label, size in rows],
    )


def _created(options: argparse.Namespace) -> Sandbox:
    return Sandbox.create("base", templates=[common.REPOSITORY / "templates"], options=Options(engine=options.engine))


def _each(count: int, start: Callable[[], Ended], before: Callable[[], object] = lambda: None) -> list[float]:
    """Return how long each of ``count`` starts takes, milliseconds; what was started is ended again."""
    found = []
    for _ in range(count):
        before()
        started = time.monotonic()
        with start():
            found.append((time.monotonic() - started) * 1000.0)
    return found


def _tree(parent: Sandbox, count: int) -> float:
    """Return wall-clock milliseconds per child of one ``fork_tree``."""
    started = time.monotonic()
    results = parent.fork_tree(count)
    spent = (time.monotonic() - started) * 1000.0
    for result in results:
        if result.error is not None:
            raise result.error
        assert result.sandbox is not None
        result.sandbox.kill()
    return spent / count


def _blocks(paths: Iterable[Path], seen: set[int]) -> int:
    """Return the bytes that files occupy, those aside whose inode was seen before."""
    fresh = {info.st_ino: info.st_blocks * 512 for info in (path.stat() for path in paths) if info.st_ino not in seen}
    seen.update(fresh)
    return sum(fresh.values())


def _branches(world: WarmWorld, options: argparse.Namespace) -> None:
    action = json.loads(options.action)
    with world.fork(0) as machine:
        machine.reset()
        for _ in range(STEPS):
            machine.step(action)
        branched = _each(options.branches, lambda: machine.fork(1)[0])

    def replayed() -> None:
        with world.fork(0) as again:
            again.reset()
            for _ in range(STEPS):
                again.step(action)

    measured = {
        f"Machine.fork(1) after {STEPS} steps": branched,
        "fork from the template": _each(options.branches, partial(world.fork, 0)),
        f"the same, and its {STEPS} steps again": common.times(options.replays, replayed),
    }
    common.table([f"mid-episode branch, {options.world} (ms)", *HEADER], common.compared(measured))


if __name__ == "__main__":
    main()
