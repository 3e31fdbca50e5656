"""A race that few orders of threads show: this test must fail. It is collected only when named.

    pytest example_tests/race_threads.py -n 2

Each schedule is another order in which the controller's two threads get the processor. The first one that makes the
pole fall is named at the end, with the command that makes it fall again. docs/determinism.md goes through it;
test_cartpole.py has the same test of the controller without the race.
"""

import pytest


@pytest.mark.microsim(world="cartpole")
@pytest.mark.seeds([1])
@pytest.mark.interleavings(200)
def test_pole_stays_up(rollout):
    episode = rollout.run("controllers/threaded.py", max_steps=150)
    assert episode.metrics["balanced_steps"] == 150
