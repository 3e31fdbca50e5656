"""Scores an episode by what was recorded of it."""


def metrics(trajectory):
    """Return how far it went, and a number that the world gives too."""
    state = trajectory["state"].tolist()
    return {"travelled": state[-1] - state[0], "steps": 2.0 * len(trajectory["action"])}
