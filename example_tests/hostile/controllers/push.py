"""Pushes to one side, as those do who would rather be scored than drive."""


def act(observation):
    return 1.0
