"""Seeds that are run twice, in two forks: the same bits pass, and the first different one is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from microsim_vm import owner
from microsim_vm.cache import Cache

pytestmark = pytest.mark.timeout(600)

Run = Callable[..., pytest.RunResult]
WORLD = "--microsim-world=cartpole"
LEAVES_THE_SEED = """
import os

steps = 0

def act(observation):
    global steps
    steps += 1
    return 0.0 if steps < 4 else int.from_bytes(os.urandom(6), "little") / 2**48
"""


def groups(result: pytest.RunResult) -> str:
    """Return the line that counts the groups."""
    return next((line for line in result.outlines if line.startswith("gates: ")), "")


def left() -> list[Path]:
    """Return the folders of trajectories that no live session owns."""
    found = ((folder, owner.read(folder)) for folder in Cache().folder("staging").glob("repeats-*"))
    return [folder for folder, holder in found if holder is not None and not holder.alive()]


def test_a_world_that_follows_its_seed_gives_the_same_bits_in_every_run(
    pytester: pytest.Pytester, run: Run, controllers: Path
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.fixture
        def started(rollout):
            assert rollout.episodes == []
            return rollout

        @pytest.mark.seeds(range(3))
        def test_over_seeds(started):
            started.run("controllers/balance.py", max_steps=20)
            started.run("controllers/balance.py", max_steps=5)

        @pytest.mark.microsim(deterministic=True)
        @pytest.mark.seeds(range(2))
        def test_declared(rollout):
            rollout.run("controllers/balance.py", max_steps=5, seed=1)

        def test_alone(rollout):
            rollout.run("controllers/balance.py", max_steps=5)

        @pytest.mark.microsim(repeat=1)
        def test_once(rollout):
            rollout.exec("true", check=True)

        @pytest.mark.microsim(repeat=3)
        def test_by_hand(rollout):
            rollout.reset()
            rollout.step(1)
        """
    )
    before = left()
    result = run(WORLD, "-n", "2", "--microsim-repeat=2", "--junitxml=report.xml")
    result.assert_outcomes(passed=16)
    assert result.ret == 0
    assert groups(result) == "gates: 4 passed"
    assert left() == before
    ran: dict[str, list[tuple[str, ...]]] = {}
    for case in ElementTree.parse(pytester.path / "report.xml").iter("testcase"):
        properties = {str(each.get("name")): str(each.get("value")) for each in case.iter("property")}
        name = re.sub(r"-?run\d", "", str(case.get("name"))).replace("[]", "")
        same = tuple(properties[f"microsim_{what}"] for what in ("seed", "environment", "knobs"))
        ran.setdefault(name, []).append((*same, properties.get("microsim_run", "")))
    assert {name: len(runs) for name, runs in ran.items()} == {
        **{f"test_over_seeds[seed-000{seed}]": 2 for seed in range(3)},
        **{f"test_declared[seed-000{seed}]": 2 for seed in range(2)},
        "test_alone": 2,
        "test_once": 1,
        "test_by_hand": 3,
    }
    for name, runs in ran.items():
        assert len({same for *same_, _ in runs for same in [tuple(same_)]}) == 1, name
        assert sorted(number for *_, number in runs) == (list("123")[: len(runs)] if len(runs) > 1 else [""]), name


def test_what_does_not_follow_the_seed_is_named_by_step_field_and_values(
    pytester: pytest.Pytester, run: Run, workers: int, controllers: Path
) -> None:
    (controllers / "free.py").write_text(LEAVES_THE_SEED)
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.microsim(repeat=2)
        @pytest.mark.seeds(range(2))
        def test_free(rollout):
            rollout.run("controllers/free.py", max_steps=6)

        @pytest.mark.microsim(repeat=2)
        @pytest.mark.seeds(range(2))
        def test_good(rollout):
            rollout.run("controllers/balance.py", max_steps=6)
        """
    )
    before = left()
    result = run(WORLD, "--junitxml=report.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=8, failed=1)
    assert groups(result) == "gates: 1 passed, 1 failed"
    text = result.stdout.str()
    assert "FAILED test_it.py::test_free[determinism] - " in text
    assert "2 of 2 repeated seeds of test_it.py::test_free gave another episode when they were run again" in text
    found = re.findall(
        r"seed (\d): the first difference is at step 4, action\[3\]: (0\.\d+|\d\S+) and (\S+), (\d+) ULP apart", text
    )
    assert {seed for seed, *_ in found} == {"0", "1"}
    assert all(first != second and int(distance) > 0 for _, first, second, distance in found)
    assert "not pinned: wall_clock" in text
    assert left() == before
    if workers:
        return  # what the next runs repeat is not up to them
    # The next run repeats the group; one seed of it shows the same; and one run of it shows nothing.
    for arguments, passed, failed, outcome in (
        (["--lf"], 4, 1, "1 failed"),
        (["-k", "free and seed-0001"], 2, 1, "1 failed"),
        (["-k", "free and run2"], 2, 0, "1 not assessed"),
    ):
        result = run(WORLD, *arguments)
        result.assert_outcomes(passed=passed, failed=failed)
        assert groups(result) == f"gates: {outcome}", arguments


def test_a_lost_run_leaves_its_group_unassessed(
    pytester: pytest.Pytester, run: Run, controllers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makepyfile(
        test_it="""
        import os

        import pytest

        @pytest.mark.microsim(repeat=2, variance="off")
        @pytest.mark.seeds(range(3))
        def test_it(rollout, request):
            rollout.run("controllers/balance.py", max_steps=3)
            if "seed-0001-run2" in request.node.name:
                assert "PYTEST_XDIST_WORKER" not in os.environ or os._exit(1)
                pytest.fail("stop here")
        """
    )
    before = left()
    for arguments in (["-x"], ["-n", "2"]):
        result = run(WORLD, *arguments)
        assert result.ret != 0
        assert "INTERNALERROR" not in result.stdout.str()
        assert groups(result) == "gates: 1 not assessed", arguments
        assert re.search(
            r"not assessed: test_it.py::test_it: (\d of 3 seeds ran twice|1 of 3 repeated)", result.stdout.str()
        )
    assert left() == before
