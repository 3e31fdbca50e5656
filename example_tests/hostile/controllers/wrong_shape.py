"""Returns three numbers where the world takes one."""


def act(observation):
    return [0.0, 0.0, 0.0]
