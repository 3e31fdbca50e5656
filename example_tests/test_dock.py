"""A scenario regression suite: 64 seeds of one docking manoeuvre, each in a microVM of its own.

pytest example_tests/test_dock.py --microsim-world warehouse
"""

import pytest


@pytest.mark.microsim(
    better={"facing_s": "lower", "time_s": "lower", "distance_to_dock": "lower", "collisions": "lower"}
)
@pytest.mark.seeds(range(64))
def test_robot_docks(rollout):
    """The competent controller reaches the dock, wherever the seed puts robot and pallets."""
    episode = rollout.run("controllers/dock.py", max_steps=500)
    assert episode.metrics["distance_to_dock"] < 0.25
    assert episode.metrics["collisions"] == 0


@pytest.mark.seeds(range(64))
def test_dead_reckoning_is_not_enough(rollout):
    """The bad controller trusts its wheels, and the floor's friction differs with every seed."""
    episode = rollout.run("controllers/bad.py", max_steps=120)
    assert episode.metrics["docked"] == 0
