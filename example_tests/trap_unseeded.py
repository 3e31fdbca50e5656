"""The trap that forked simulators set, shown on purpose: this test must fail. It is collected only when named.

    pytest example_tests/trap_unseeded.py

A forked microVM inherits its parent's random state. With `reseed=False` the plugin leaves it that way, for this
test alone: every fork draws the same numbers, all eight seeds replay one episode, each of them passes, and the
average looks great. The gate over the group notices that eight results are one, and fails it.
"""

import pytest


@pytest.mark.microsim(world="cartpole", reseed=False)
@pytest.mark.seeds(range(8))
def test_every_seed_replays_the_same_episode(rollout):
    start, _ = rollout.reset()
    print(f"seed {rollout.seed}: the world drew the start {[round(value, 6) for value in start]}")
    episode = rollout.run("controllers/balance.py", max_steps=100)
    assert episode.metrics["balanced_steps"] == 100
