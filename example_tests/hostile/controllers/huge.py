"""Returns an integer of a hundred thousand digits."""


def act(observation):
    return 10**100_000
