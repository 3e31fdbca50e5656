"""Baselines on disk: what is written can be read, merged, and interrupted."""

import hashlib
import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from microsim_vm import digests

from pytest_microsim.baselines import store, toml
from pytest_microsim.baselines.orphans import orphans
from pytest_microsim.baselines.store import Baseline, Entry, place_of
from pytest_microsim.baselines.updating import New, flat, name_of, update
from pytest_microsim.errors import BaselineError

MORNING = datetime(2026, 11, 30, 8, 0, tzinfo=UTC)
EVENING = datetime(2026, 11, 30, 20, 0, tzinfo=UTC)
HERE = flat({"cpu": {"model": "a"}, "digest": "d", "wall_clock": None})
ELSEWHERE = flat({"cpu": {"model": "b"}, "digest": "d", "wall_clock": None})


SEED = "format = 1\ntest = 't'\n[environments.e]\n[seeds.1]\nenvironment = 'e'\noutcome = ''\nfingerprint = ''\n"


def entry(
    number: float = 1.0, when: datetime = MORNING, environment: dict[str, object] = HERE, host: str = "h"
) -> Entry:
    fingerprint = hashlib.sha256(str(number).encode()).hexdigest()[:32]
    metrics = {"time_s": number, "none": None}
    return Entry("passed", fingerprint, metrics, name_of(environment), when, host, (), {"load": "2"})


@pytest.fixture
def new(tmp_path: Path) -> Callable[..., New]:
    """Return what makes a seed's new result, with a file of its episode."""
    (tmp_path / "spool").mkdir()

    def make(
        seed: int, number: float = 1.0, when: datetime = EVENING, environment: dict[str, object] = HERE, host: str = "h"
    ) -> New:
        made = entry(number, when, environment, host)
        spooled = tmp_path / "spool" / f"{seed}-{number}"
        spooled.write_text(f"{seed} {number}")
        return New(made, ((spooled, store.trajectory_name(seed, 1, made.fingerprint)),))

    return make


def kept(path: Path) -> dict[str, str]:
    folder = store.trajectories_of(path)
    return {file.name: file.read_text() for file in sorted(folder.iterdir())}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    baseline = Baseline(
        'test "x" \\ \x7f\n[ü]', {name_of(HERE): HERE}, {3: entry(0.1), 10: entry(1e-9), 2**127: entry(5e300)}
    )
    path = tmp_path / "b.toml"
    digests.write_atomically(path, store.encoded(baseline))
    assert store.read(path) == baseline
    assert baseline.recorded == MORNING
    assert path.read_text().index("[seeds.3]") < path.read_text().index("[seeds.10]")
    assert store.read(tmp_path / "none.toml") is None
    assert os.listdir(tmp_path) == ["b.toml"]


@given(
    st.dictionaries(
        st.text(min_size=1),
        st.text() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False),
    )
)
def test_toml_is_read_by_pythons_own_reader(facts: dict[str, toml.Value]) -> None:
    assert tomllib.loads("\n".join(toml.lines(facts))) == facts


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x", "no baseline that can be read"),
        ("format = 2\ntest = ''", "its format is 2, and this version reads 1"),
        ("format = 1\ntest = 't'\nwhat = 3", "unknown field `what`"),
        ("format = 1\ntest = 't'\n<<<<<<< ours\n", "is not merged yet"),
        (
            "format = 1\ntest = 't'\n[seeds.1]\nrecorded = 2026-11-30T08:00:00Z\nenvironment = 'e'\noutcome = ''\n"
            "fingerprint = ''",
            "seed 1 is from the environment 'e', which it does not have",
        ),
        ("format = 1\ntest = 't'\n[environments.e]\ncpu.model = 'a'", "Expected `str | int | float | bool`"),
        (f"{SEED}recorded = 2026-11-30T08:00:00", "timezone"),
        (f"{SEED}recorded = 2026-11-30T08:00:00Z\ntrajectories = ['a\\b']", "seed 1 has the file"),
        (f'{SEED}recorded = 2026-11-30T08:00:00Z\ntrajectories = ["1\\u0000.mcap"]', "seed 1 has the file"),
        (f"{SEED}recorded = 2026-11-30T08:00:00Z\ntrajectories = ['../1.mcap']", "seed 1 has the file"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_an_error_and_is_not_overwritten(
    tmp_path: Path, text: str, problem: str, new: Callable[..., New]
) -> None:
    path = tmp_path / "b.toml"
    path.write_text(text)
    with pytest.raises(BaselineError, match=problem):
        store.read(path)
    with pytest.raises(BaselineError, match=problem):
        update(path, "t", HERE, {1: new(1)}, seeds=None)
    assert path.read_text() == text


def test_places(tmp_path: Path) -> None:
    file = tmp_path / "test_dock.py"
    folder = tmp_path / "baselines" / "test_dock.py"
    assert place_of(file, "a/test_dock.py::test_x") == folder / "test_x.toml"
    assert place_of(file, "a/test_dock.py::TestY::test_x[load=2]") == folder / "TestY.test_x+load=2.toml"
    keys = [
        "test_x",
        "test_x[a b]",
        "test_x[a_b]",
        "test_x[a/b]",
        "test_x[a+b]",
        "test_x[a][b]",
        "test_x[a[b]",
        "test_x[ab]",
        "test_x[a]b]",
        "test_x[a.b]",
        "test_x[a::b]",
        "test_x[]",
        "TestX::test_x[a]",
        "test_x[..]",
        "test_x[ü]",
        f"test_x[{'l' * 300}]",
    ]
    places = {place_of(file, f"test_dock.py::{key}") for key in keys}
    assert len(places) == len(keys)
    assert all(place.parent == folder and len(place.name) < 130 for place in places)


def test_an_update_that_changes_nothing_changes_no_byte(tmp_path: Path, new: Callable[..., New]) -> None:
    path = tmp_path / "baselines" / "b.toml"
    first = update(path, "t", HERE, {seed: new(seed, when=MORNING) for seed in range(3)}, seeds=None)
    assert (first.changed, first.same) == ((0, 1, 2), ())
    before, files = path.read_bytes(), kept(path)
    second = update(path, "t", HERE, {seed: new(seed) for seed in range(3)}, seeds=frozenset(range(3)))
    assert (second.changed, second.same) == ((), (0, 1, 2))
    assert path.read_bytes() == before
    assert kept(path) == files
    third = update(path, "t", HERE, {1: new(1, 2.0)}, seeds=None)
    assert (third.changed, third.same) == ((1,), ())
    baseline = store.read(path)
    assert baseline is not None
    assert baseline.seeds[0].recorded == MORNING
    assert baseline.seeds[1].recorded == EVENING
    assert sorted(kept(path).values()) == ["0 1.0", "1 2.0", "2 1.0"]


def test_the_hosts_kernel_is_no_reason_to_write_and_the_processor_is(tmp_path: Path, new: Callable[..., New]) -> None:
    path = tmp_path / "b.toml"
    update(path, "t", HERE, {1: new(1, host="6.1")}, seeds=None)
    before = path.read_bytes()
    update(path, "t", HERE, {1: new(1, host="6.2")}, seeds=None)
    assert path.read_bytes() == before
    found = update(path, "t", ELSEWHERE, {1: new(1, environment=ELSEWHERE)}, seeds=None)
    assert found.changed == (1,)
    assert b'"cpu.model" = "b"' in path.read_bytes()
    assert b'"cpu.model" = "a"' not in path.read_bytes()
    assert list(kept(path).values()) == ["1 1.0"]


def test_seeds_that_were_not_run_keep_what_they_have_and_those_that_are_no_more_are_dropped(
    tmp_path: Path, new: Callable[..., New]
) -> None:
    path = tmp_path / "b.toml"
    update(path, "t", HERE, {seed: new(seed) for seed in range(4)}, seeds=None)
    update(path, "t", HERE, {2: new(2, 5.0)}, seeds=None)
    baseline = store.read(path)
    assert baseline is not None
    assert sorted(baseline.seeds) == [0, 1, 2, 3]
    found = update(path, "t", HERE, {0: new(0), 1: new(1)}, seeds=frozenset({0, 1}))
    assert found.dropped == (2, 3)
    assert sorted(kept(path).values()) == ["0 1.0", "1 1.0"]


@pytest.mark.parametrize("at", range(6))
def test_an_update_that_is_killed_at_any_step_leaves_a_whole_baseline(
    tmp_path: Path, new: Callable[..., New], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "b.toml"
    update(path, "t", HERE, {seed: new(seed) for seed in range(3)}, seeds=None)
    before = path.read_bytes()
    steps = iter(range(100))

    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            if next(steps) == at:
                raise KeyboardInterrupt
            return real(*arguments, **named)

        return call

    with monkeypatch.context() as patched:
        for owner, name in ((shutil, "copyfile"), (Path, "replace"), (os, "replace"), (Path, "unlink")):
            patched.setattr(owner, name, dying(getattr(owner, name)))
        with pytest.raises(KeyboardInterrupt):
            update(path, "t", HERE, {seed: new(seed, 7.0) for seed in range(3)}, seeds=None)
    if path.read_bytes() == before:
        assert {"0 1.0", "1 1.0", "2 1.0"} <= set(kept(path).values())
    baseline = store.read(path)
    assert baseline is not None
    named = {name for each in baseline.seeds.values() for name in each.trajectories}
    assert named <= set(kept(path))
    update(path, "t", HERE, {seed: new(seed, 7.0) for seed in range(3)}, seeds=None)
    assert sorted(kept(path).values()) == ["0 7.0", "1 7.0", "2 7.0"]
    assert sorted(os.listdir(tmp_path)) == ["b", "b.toml", "spool"]


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_two_branches_that_update_different_seeds_merge(tmp_path: Path, new: Callable[..., New]) -> None:
    root = tmp_path / "project"
    path = root / "baselines" / "test_x.py" / "test_x.toml"
    update(path, "t", HERE, {seed: new(seed) for seed in range(4)}, seeds=None)
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "a")
    for branch, seed in (("one", 1), ("two", 2)):
        git(root, "checkout", "-qb", branch, "main")
        update(path, "t", HERE, {seed: new(seed, 9.0 + seed, host=branch)}, seeds=None)
        git(root, "add", "-A")
        git(root, "commit", "-qm", branch)
    changed = [
        line for line in git(root, "diff", "main", "two", "--", "*.toml").splitlines() if line[:2] in ("-m", "+m")
    ]
    assert changed == ["-metrics.time_s = 1.0", "+metrics.time_s = 11.0"]
    git(root, "checkout", "-q", "one")
    git(root, "merge", "-q", "two", "-m", "both")
    merged = store.read(path)
    assert merged is not None
    assert [merged.seeds[seed].metrics["time_s"] for seed in range(4)] == [1.0, 10.0, 11.0, 1.0]
    assert {name for each in merged.seeds.values() for name in each.trajectories} == set(kept(path))
    git(root, "checkout", "-qb", "three", "main")
    update(path, "t", HERE, {1: new(1, 30.0)}, seeds=None)
    git(root, "commit", "-qam", "three")
    with pytest.raises(subprocess.CalledProcessError):
        git(root, "merge", "-q", "one")
    with pytest.raises(BaselineError, match="is not merged yet"):
        store.read(path)


def test_orphans(tmp_path: Path) -> None:
    here, there = tmp_path / "a", tmp_path / "b"
    for name in ("test_x.py/test_1", "test_x.py/test_gone", "test_gone.py/test_1", "test_left.py/test_1"):
        for folder in (here, there):
            path = folder / "baselines" / f"{name}.toml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    (here / "test_x.py").touch()
    (here / "test_left.py").touch()
    files = {str(here / "test_x.py"): [str(here / "baselines" / "test_x.py" / "test_1.toml")]}
    found = [str(path.relative_to(tmp_path / "a" / "baselines")) for path in orphans(files, [])]
    assert found == ["test_gone.py/test_1.toml", "test_x.py/test_gone.toml"]
    assert len(orphans(files, [tmp_path])) == 2 + 4
