"""By what the rollouts of a group find each other, and a test its seed, where other plugins change ids."""

from __future__ import annotations

import pytest

from pytest_microsim.seeds import seed_of_test

SUITE = """
    import pytest

    @pytest.mark.seeds(range(2))
    def test_over_seeds(rollout):
        pass

    def test_alone(rollout):
        pass

    @pytest.mark.microsim(repeat=2)
    def test_twice(rollout):
        pass

    @pytest.mark.microsim(repeat=2)
    @pytest.mark.parametrize("gain", ["", "-", "run2"])
    def test_parametrized(rollout, gain):
        pass
"""
CONFTEST = """
    import os

    import pytest

    from pytest_microsim.collection import other_parameters, param_of, plain_id, seed_of

    def pytest_collection_finish(session):
        if "SUFFIX" in os.environ:  # as xdist does in its workers, before pytest 9.2
            nodeid = pytest.Item.nodeid
            pytest.Item.nodeid = property(lambda item: nodeid.fget(item) + os.environ["SUFFIX"])
        with open("found.txt", "w") as file:
            for item in session.items:
                others = other_parameters(item) if param_of(item) else None
                print(item.nodeid, plain_id(item), seed_of(item), others, sep="\\t", file=file)
"""


def found(pytester: pytest.Pytester, *arguments: str) -> list[list[str]]:
    """Return what each test says: its id, that without a suffix, its seed, and its other parameters."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=SUITE)
    result = pytester.runpytest_subprocess("--microsim-world=cartpole", "--collect-only", *arguments, timeout=60)
    assert result.ret == pytest.ExitCode.OK, result.stdout.str()
    return [line.split("\t") for line in (pytester.path / "found.txt").read_text().splitlines()]


def test_what_xdist_adds_to_ids_changes_no_seed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = found(pytester)
    assert [name for name, *_ in alone] == [plain for _, plain, *_ in alone]
    seeds = {plain: seed for _, plain, seed, _ in alone}
    assert seeds["test_it.py::test_alone"] == str(seed_of_test("test_it.py::test_alone"))
    monkeypatch.setenv("SUFFIX", "@robot")
    assert found(pytester) == [[f"{name}@robot", *rest] for name, *rest in alone]


def test_steps_of_pytest_repeat_are_groups_of_their_own_and_keep_their_runs_together(
    pytester: pytest.Pytester,
) -> None:
    groups: dict[tuple[str, str], list[str]] = {}
    seeds: dict[tuple[str, str], set[str]] = {}
    for _, plain, seed, others in found(pytester, "--count=2"):
        key = plain.partition("::")[2].partition("[")[0], others
        groups.setdefault(key, []).append(plain)
        seeds.setdefault(key, set()).add(seed)
    del groups["test_alone", "None"]
    assert set(groups) == {
        *(("test_over_seeds", repr(("", step))) for step in ("1-2", "2-2")),
        *(("test_twice", repr((step, ""))) for step in ("1-2", "2-2")),
        *(("test_parametrized", repr((f"{gain}-{step}", ""))) for gain in ("", "-", "run2") for step in ("1-2", "2-2")),
    }
    assert {len(members) for members in groups.values()} == {2}
    assert all(len(found) == 1 for (test, _), found in seeds.items() if test in ("test_twice", "test_parametrized"))
