"""A second world in the same suite: the marker chooses it, and it is warmed once like any other."""

import pytest

pytestmark = pytest.mark.microsim(world="cartpole")


@pytest.mark.seeds(range(8))
def test_pole_stays_up(rollout):
    episode = rollout.run("controllers/balance.py", max_steps=200)
    assert episode.metrics["balanced_steps"] == 200


@pytest.mark.seeds(range(8))
def test_pole_topples_without_feedback(rollout):
    episode = rollout.run("controllers/topple.py", max_steps=200)
    assert episode.terminated
    assert episode.metrics["fallen"] == 1


@pytest.mark.interleavings(8)
def test_two_threads_keep_the_pole_up(rollout):
    """Each schedule is another order of the controller's threads; race_threads.py has the same with a race in it."""
    episode = rollout.run("controllers/threaded_fixed.py", max_steps=150)
    assert episode.metrics["balanced_steps"] == 150


def test_driving_by_hand(rollout):
    """Without the marker `seeds` a rollout has one seed, derived from the test's id and stable between runs."""
    observation, _ = rollout.reset()
    assert abs(observation[2]) < 0.1  # the pole starts almost upright
    total = 0.0
    for _ in range(20):
        observation, reward, terminated, _, _ = rollout.step(1 if observation[2] > 0 else 0)
        total += reward
        if terminated:
            break
    rollout.record("reward", total)
    assert total > 5


def test_commands_run_in_the_same_guest(rollout):
    """`exec` and `filesystem` reach the rollout's own microVM; whatever they break dies with it."""
    rollout.filesystem.write("/workspace/note.txt", f"seed {rollout.seed}\n")
    result = rollout.exec("cat note.txt && rm -rf /usr && echo gone", check=True)
    assert result.stdout == f"seed {rollout.seed}\ngone\n"
