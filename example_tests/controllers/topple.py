"""Loses the cart-pole: corrects the lean but not the rate of fall, with the sign that seemed natural."""


def act(observation):
    """Return 0 (push left) or 1 (push right)."""
    return 0 if observation[2] > 0 else 1
