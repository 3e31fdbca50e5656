"""Seeds that are run several times: ids, what runs leave for each other, and the environment they are compared by."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from microsim_vm import owner, runtime
from microsim_vm.cache import Cache
from microsim_vm.episode import Column, EpisodeRecord
from microsim_vm.errors import ControllerError
from microsim_vm.machine import Machine
from microsim_vm.snapshots import Manifest, WarmUp
from microsim_vm.templates.spec import ControllerLimits

from pytest_microsim import repeats
from pytest_microsim.environment import as_text, digest_of, environment_of
from pytest_microsim.episode import Episode
from pytest_microsim.gates.comparability import compare, unpinned
from pytest_microsim.gates.differences import Difference
from pytest_microsim.gates.verdicts import Repeat
from pytest_microsim.repeats import Repeats
from pytest_microsim.report.repetitions import repeats_of
from pytest_microsim.rollout import Rollout
from pytest_microsim.seeds import seed_of_test

SUITE = """
    import pytest

    @pytest.mark.seeds([1, 12345])
    @pytest.mark.parametrize("gain", ["a", "b"])
    def test_over_seeds(rollout, gain):
        pass

    class TestAlone:
        @pytest.mark.parametrize("gain", ["run2", "-", ""])
        def test_with_parameters(self, rollout, gain):
            pass

    def test_alone(rollout):
        pass

    @pytest.mark.microsim(repeat=3)
    def test_thrice(rollout):
        pass

    @pytest.mark.microsim(repeat=1)
    def test_once(rollout):
        pass

    def test_without(warm_world):
        pass
"""
ALONE = "" if hasattr(pytest, "HIDDEN_PARAM") else "run1"


def collected(pytester: pytest.Pytester, *arguments: str) -> list[str]:
    pytester.makepyfile(test_it=SUITE)
    result = pytester.runpytest_inprocess("--microsim-world=cartpole", "--collect-only", "-q", *arguments)
    assert result.ret == 0
    return [line.partition("::")[2] for line in result.outlines if line.startswith("test_it.py::")]


def test_each_run_of_a_seed_has_an_id_and_the_first_keeps_its_own(pytester: pytest.Pytester) -> None:
    once = collected(pytester, "--microsim-seeds=1,12345")
    twice = collected(pytester, "--microsim-repeat=2")
    alone = f"[{ALONE}]" if ALONE else ""
    assert [name for name in twice if "over_seeds" in name] == [
        f"test_over_seeds[{gain}-seed-{seed}{run}]"
        for gain in "ab"
        for seed in ("00001", "12345")
        for run in ("", "-run2")
    ]
    assert [name for name in twice if "test_alone" in name] == [f"test_alone{alone}", "test_alone[run2]"]
    assert [name for name in twice if "thrice" in name] == [
        f"test_thrice{alone}",
        "test_thrice[run2]",
        "test_thrice[run3]",
    ]
    assert {name for name in twice if "once" in name or "without" in name} == {"test_once", "test_without"}
    if not ALONE:
        assert {name for name in once if "thrice" not in name} < set(twice)


def test_all_runs_of_a_test_without_seeds_have_the_seed_that_it_has_when_run_once(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from pytest_microsim.collection import other_parameters, param_of, seed_of

        def pytest_collection_modifyitems(items):
            with open("seeds.txt", "w") as file:
                for item in items:
                    if "rollout" in item.fixturenames:
                        others = other_parameters(item) if param_of(item) else None
                        print(item.nodeid, seed_of(item), others, sep="\\t", file=file)
        """
    )
    collected(pytester, "--microsim-repeat=2")
    lines = [line.split("\t") for line in (pytester.path / "seeds.txt").read_text().splitlines()]
    seeds = {name: seed for name, seed, _ in lines}
    # By these the runs of one test are found to belong together.
    others = [(name.partition("[")[0], text) for name, _, text in lines if "TestAlone" in name or "thrice" in name]
    assert Counter(others) == {
        **{("test_it.py::TestAlone::test_with_parameters", repr((gain, ""))): 2 for gain in ("run2", "-", "")},
        ("test_it.py::test_thrice", repr(("", ""))): 3,
    }
    for name, runs in {
        "test_alone": [f"test_alone{f'[{ALONE}]' if ALONE else ''}", "test_alone[run2]"],
        "test_once": ["test_once"],
        "TestAlone::test_with_parameters[run2]": ["TestAlone::test_with_parameters[run2-run2]"],
        "TestAlone::test_with_parameters[-]": ["TestAlone::test_with_parameters[--run2]"],
        "TestAlone::test_with_parameters[]": ["TestAlone::test_with_parameters[-run2]"],
    }.items():
        for run in runs:
            assert seeds[f"test_it.py::{run}"] == str(seed_of_test(f"test_it.py::{name}")), run
    assert seeds["test_it.py::test_over_seeds[b-seed-12345-run2]"] == "12345"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("@pytest.mark.microsim(repeat=11)", "repeat is a number of runs from 1 to 10, not 11"),
        ("@pytest.mark.microsim(repeat=True)", "repeat is a number of runs from 1 to 10, not True"),
        (
            '@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.microsim(repeat=2))])',
            "repeat is too late in the marks of one parameter",
        ),
    ],
)
def test_a_number_of_runs_that_cannot_be_had_is_refused(pytester: pytest.Pytester, source: str, words: str) -> None:
    pytester.makepyfile(
        f"import pytest\n{source}\ndef test_it(rollout{', x' if 'param' in source else ''}):\n    pass\n"
    )
    result = pytester.runpytest_inprocess("--microsim-world=cartpole", "--collect-only")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert words in result.stdout.str()


@pytest.mark.parametrize("number", ["1", "11", "x", "-2"])
def test_the_flag_takes_2_to_10(pytester: pytest.Pytester, number: str) -> None:
    result = pytester.runpytest_subprocess(f"--microsim-repeat={number}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "is not a number of runs from 2 to 10" in result.stderr.str()


def column(name: str, *values: float) -> Column:
    return Column(name, "<f8", (len(values),), struct.pack(f"<{len(values)}d", *values))


def ran(*values: float, failed: bool = False) -> Rollout:
    """Return a rollout with one episode of such actions."""
    machine = Machine(cast(Any, None), cast(Any, None), seed=7, limits=ControllerLimits())
    rollout = Rollout(machine, seed=7, world="w", controller_folders=[])
    rollout._next_seed(None)
    columns = {"action": column("action", *values)}
    error = ControllerError("it failed") if failed else None
    rollout.episodes.append(Episode(EpisodeRecord(7, 1, True, False, 0.0, {}, columns, 1.0, b"", b"", error)))
    return rollout


@pytest.fixture
def store(tmp_path: Path) -> Repeats:
    return Repeats.of_session(tmp_path)


def left(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("staging/repeats-*/*.run"))


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_whichever_run_ends_last_tells_where_they_differ(
    store: Repeats, tmp_path: Path, order: tuple[int, int]
) -> None:
    runs = {1: ran(0.5, 1.0), 2: ran(0.5, 1.0 + 2**-52)}
    assert store.leave("k", order[0], 2, runs[order[0]]) == []
    assert len(left(tmp_path)) == 1
    (found,) = store.leave("k", order[1], 2, runs[order[1]])
    assert (found["run"], found["fingerprints"]) == (2, [runs[1].fingerprint(), runs[2].fingerprint()])
    assert Difference(**found["difference"]) == Difference(
        "the first difference is at step 2, action[1]: 1.0 and 1.0000000000000002, 1 ULP apart",
        step=2,
        column="action",
        values=("1.0", "1.0000000000000002"),
        distance=1,
    )
    assert left(tmp_path) == [], "both have been compared"


def test_equal_runs_say_nothing_and_tests_are_kept_apart(store: Repeats, tmp_path: Path) -> None:
    for key, value in (("a", 1.0), ("b", 2.0)):
        assert store.leave(key, 1, 2, ran(value)) == []
    for key, value in (("a", 1.0), ("b", 2.0)):
        assert store.leave(key, 2, 2, ran(value)) == []
    assert left(tmp_path) == []
    store.close()
    assert not list((tmp_path / "staging").iterdir())


def test_each_further_run_is_compared_with_the_first_and_nothing_is_left(store: Repeats, tmp_path: Path) -> None:
    assert store.leave("k", 3, 3, ran(3.0)) == []
    assert store.leave("k", 2, 3, ran(2.0)) == [], "the first one has not ended"
    found = store.leave("k", 1, 3, ran(1.0))
    assert [(each["run"], each["difference"]["values"]) for each in found] == [(2, ("1.0", "2.0")), (3, ("1.0", "3.0"))]
    assert left(tmp_path) == []


def test_a_run_without_a_finished_episode_is_different_in_nothing_that_can_be_shown(
    store: Repeats, tmp_path: Path
) -> None:
    store.leave("k", 1, 2, ran(1.0))
    (found,) = store.leave("k", 2, 2, ran(2.0, failed=True))
    assert found["fingerprints"][1] is None
    assert found["difference"] is None
    assert left(tmp_path) == []


def test_what_is_left_is_bounded(store: Repeats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MOST_BYTES", 4000)
    for number in range(40):
        store.leave(str(number), 1, 2, ran(*[float(number)] * 100))
    sizes = [path.stat().st_size for path in tmp_path.glob("staging/repeats-*/*.run")]
    assert len(sizes) == 40
    assert sum(sizes) < 4000 + 40 * 100
    (found,) = store.leave("39", 2, 2, ran(*[0.0] * 100))
    assert found["difference"] is None, "the first run's numbers were not kept"
    (found,) = store.leave("0", 2, 2, ran(*[1.0] * 100))
    assert found["difference"]["values"] == ("0.0", "1.0")


def test_a_folder_that_cannot_be_written_leaves_the_fingerprints(tmp_path: Path) -> None:
    (tmp_path / "staging").write_text("a file")
    assert Repeats.of_session(tmp_path).leave("k", 1, 2, ran(1.0)) == []


def test_workers_share_the_folder_and_one_of_two_at_the_same_time_finds_the_other(tmp_path: Path) -> None:
    store = Repeats.of_session(tmp_path)
    address = json.loads(json.dumps(store.address))
    for number in range(20):
        workers = [Repeats.at(address), Repeats.at(address)]
        with ThreadPoolExecutor(2) as pool:
            found = list(
                pool.map(lambda run: workers[run - 1].leave(str(number), run, 2, ran(float(run))), [1, 2])  # noqa: B023
            )
        assert sorted(map(len, found)) == [0, 1]
    assert left(tmp_path) == []
    assert len(list((tmp_path / "staging").iterdir())) == 1


def test_the_folder_of_a_dead_session_is_reaped_and_that_of_a_live_one_is_not(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        dead = Repeats(tmp_path / "staging" / "repeats-dead", owner.Process.of(process.pid))
        dead.leave("k", 1, 2, ran(1.0))
    Repeats.of_session(tmp_path).leave("k", 1, 2, ran(1.0))
    assert len(left(tmp_path)) == 2
    runtime.reap(Cache(tmp_path))
    assert len(left(tmp_path)) == 1
    assert not (tmp_path / "staging" / "repeats-dead").exists()


def member(seed: int, run: int, fingerprint: str | None, *differences: dict[str, Any], **knobs: Any) -> dict[str, Any]:
    return {
        "sample": {"seed": seed, "fingerprint": fingerprint, "run_digest": ""},
        "environment": {"wall_clock": None, "cpu": "Xeon", **knobs},
        "run": run,
        "differences": list(differences),
    }


FOUND = {"text": "at step 3", "episode": 0, "step": 3, "column": "state", "index": [1], "values": ["1", "2"]}


def test_the_reports_of_both_runs_make_one_comparison() -> None:
    told = {"run": 2, "fingerprints": ["a", "b"], "difference": {**FOUND, "distance": 1}}
    difference = Difference("at step 3", step=3, column="state", index=(1,), values=("1", "2"), distance=1)
    expected = Repeat(5, ("a", "b"), difference, unpinned=("wall_clock",))
    assert repeats_of([member(5, 2, "b"), member(5, 1, "a", told)]) == (expected,)
    assert repeats_of([member(5, 1, "a"), member(5, 2, "b", told)]) == (expected,)
    # One of them was rerun since, and gave something else.
    assert repeats_of([member(5, 1, "c"), member(5, 2, "b", told)]) == (
        replace(expected, fingerprints=("c", "b"), difference=None),
    )


def test_runs_are_in_order_and_those_without_their_first_are_not_compared() -> None:
    members = [member(9, 3, "x"), member(9, 1, "x"), member(4, 2, "x"), member(9, 2, None), member(1, 1, "x")]
    assert [(each.seed, each.run, each.fingerprints) for each in repeats_of(members)] == [
        (9, 2, ("x", None)),
        (9, 3, ("x", "x")),
    ]


def test_runs_in_other_environments_are_not_comparable_and_say_why() -> None:
    (found,) = repeats_of([member(1, 1, "a"), member(1, 2, "b", cpu="EPYC")])
    assert found.incomparable[0].startswith("cpu is 'Xeon' in one and 'EPYC' in the other")


def world(
    env: dict[str, str] | None = None, wall_clock: float | None = None, *, deterministic: bool = False, **others: Any
) -> Any:
    engine = {"engine": "qemu", "version": "7.2", "accelerator": "tcg", "cpu": "max on Xeon", "arguments": "console=x"}
    warmup = WarmUp(1.0, 1.0, [], [], {"python": "3.11.2"})
    manifest = Manifest("key", "w", "d" * 64, engine, "boot", {}, warmup)
    return SimpleNamespace(
        template=SimpleNamespace(env=env or {}),
        snapshot=SimpleNamespace(manifest=manifest, contents="c"),
        deterministic=deterministic,
        digest="d" * 64,
        wall_clock=wall_clock,
        others=others,
    )


def test_everything_is_pinned_but_the_clock() -> None:
    environment = environment_of(world(), 7)
    assert unpinned(environment) == ("wall_clock",)
    assert environment["threads"] == dict.fromkeys(environment["threads"], "1")
    assert len(environment["threads"]) == 4
    assert (environment["timezone"], environment["locale"]["LC_ALL"]) == ("UTC", "C.UTF-8")
    assert environment["hash_seed"].isdigit()
    assert environment["cpu"].keys() == {"model", "seen"}
    assert environment["engine"] == {"engine": "qemu", "version": "7.2", "accelerator": "tcg"}
    assert (environment["digest"], environment["versions"]) == ("d" * 64, {"python": "3.11.2"})
    assert unpinned(environment_of(world(wall_clock=1.7e9), 7)) == ()
    assert compare(environment, json.loads(as_text(environment))).comparable


def test_a_template_can_unpin_and_its_other_machines_count() -> None:
    env = {"PYTHONHASHSEED": "random", "OMP_NUM_THREADS": "", "MKL_NUM_THREADS": "4", "TZ": "Asia/Tokyo"}
    mine, usual = environment_of(world(env, controller=world()), 7), environment_of(world(), 7)
    assert unpinned(mine) == ("hash_seed", "threads.OMP_NUM_THREADS", "wall_clock")
    assert compare(mine, usual).knobs == (
        "hash_seed",
        "machines.controller.digest",
        "machines.controller.versions.python",
        "threads.MKL_NUM_THREADS",
        "threads.OMP_NUM_THREADS",
        "timezone",
    )
    assert digest_of(mine) != digest_of(usual) == digest_of(environment_of(world(), 7))


def test_of_a_deterministic_machine_schedule_and_snapshot_count() -> None:
    usual, exact = environment_of(world(), 7), environment_of(world(deterministic=True), 7)
    assert exact.keys() - usual.keys() == {"schedule", "snapshot"}
    assert compare(exact, environment_of(world(deterministic=True), 8, 3)).knobs == ("hash_seed", "schedule")
