"""Deterministic rollouts and the race finder, as a user runs them: the same bits, the same first schedule."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.timeout(600)

Run = Callable[..., pytest.RunResult]

# In which order the threads add to the list changes with the schedule, and with nothing else.
RACE = """
import hashlib, threading

order = []

def work(number):
    for _ in range(3000):
        order.append(number)

threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(hashlib.sha256(bytes(order)).hexdigest())
"""
# Half of all orders fail, but for the first three.
SUITE = """
    from pathlib import Path

    import pytest

    @pytest.mark.interleavings(20)
    def test_race(rollout):
        order = rollout.exec(["python3", "-"], stdin=Path("race").read_bytes(), check=True).stdout
        assert len(rollout.run_digest) == 64
        assert rollout.schedule < 3 or int(order, 16) % 2, order
"""


def race_lines(result: pytest.RunResult) -> list[str]:
    """Return what the race finder says at the end: its line, and the command that replays it."""
    at = next(number for number, line in enumerate(result.outlines) if line.startswith("interleavings: "))
    return result.outlines[at : at + 2]


def test_a_race_is_found_under_the_same_schedule_whatever_the_workers_and_replayed_to_the_last_bit(
    pytester: pytest.Pytester, run: Run, request: pytest.FixtureRequest
) -> None:
    (pytester.path / "race").write_text(RACE)
    pytester.makepyfile(test_it=SUITE)
    one = run("--microsim-world=cartpole", "--microsim-results=one.json", "-rs")
    line, command = race_lines(one)
    found = re.search(r"schedule (\d+) is the first of 20 of seed \d+ that fails \(all \d+ before it passed", line)
    assert found, line
    first = int(found[1])
    # One test has failed; those after it were skipped, those before it passed.
    one.assert_outcomes(failed=1, passed=first, skipped=19 - first)
    rollouts = json.loads((pytester.path / "one.json").read_text())["groups"][0]["rollouts"]
    assert [rollout["schedule"] for rollout in rollouts] == [str(number) for number in range(20)]
    digests = {rollout["run_digest"] for rollout in rollouts if rollout["outcome"] != "skipped"}
    assert len(digests) == first + 1

    request.getfixturevalue("busy")
    four = run("--microsim-world=cartpole", "-n", "4", "--microsim-results=four.json")
    assert race_lines(four)[0].startswith(line.partition(" (")[0])
    theirs = json.loads((pytester.path / "four.json").read_text())["groups"][0]["rollouts"]
    for ours, other in zip(rollouts[: first + 1], theirs, strict=False):
        assert (other["outcome"], other["run_digest"]) == (ours["outcome"], ours["run_digest"])

    words = shlex.split(command.partition("replay it: ")[2])
    assert words[0] == "pytest"
    again = run(*words[1:])
    again.assert_outcomes(failed=1)
    assert (
        f"to the last bit of the machine's memory the run of that rollout ({words[-1].rpartition('.')[2]})"
        in again.stdout.str()
    )


def test_all_rollouts_are_deterministic_where_the_run_says_so(
    pytester: pytest.Pytester, run: Run, controllers: object
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        from microsim_vm.errors import DeterminismError

        @pytest.mark.seeds(range(2))
        def test_repeats(rollout):
            episode = rollout.run("controllers/balance.py", max_steps=20)
            assert episode.schedule == rollout.schedule
            assert episode.run_digest == rollout.run_digest != ""

        @pytest.mark.seeds([5])
        def test_differs(rollout, tmp_path):
            rollout.exec(["true", str(tmp_path)])  # another path each time

        def test_is_refused(rollout):
            with pytest.raises(DeterminismError, match="by hand"):
                rollout.reset()
        """
    )
    result = run("--microsim-world=cartpole", "--microsim-deterministic", "--microsim-repeat=2")
    text = result.stdout.str()
    result.assert_outcomes(passed=8, failed=1)
    assert "engine auto, accel auto, isolation at least emulated, deterministic" in text
    assert "cartpole (deterministic) (" in text
    assert "1 of 1 repeated seeds of test_it.py::test_differs gave another episode when they were run again" in text
    assert "seed 5: the episodes are the same, and the rest of the deterministic machine is not" in text
