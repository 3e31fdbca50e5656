"""Returns a list in a list, ten thousand times over."""


def act(observation):
    action = 0.0
    for _ in range(10_000):
        action = [action]
    return action
